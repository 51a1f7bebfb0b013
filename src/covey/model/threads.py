"""The number of threads that torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def limited_to(threads: int) -> dict[str, str]:
    """The environment in which nothing computes with more, for a process that has not loaded torch yet.

    On ARM the library behind torch's convolutions counts its threads when it is loaded, and hears nothing of
    `torch.set_num_threads`.
    """
    return {"OMP_NUM_THREADS": str(threads)}


@contextmanager
def one_thread() -> Iterator[None]:
    """One, meanwhile: times are of one core, small products are faster, and every run adds in one order."""
    import torch  # late: those who start processes need only the other

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

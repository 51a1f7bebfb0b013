"""Compile with numba, keep the result on disk, and share the work among threads.

numba's own threads do not survive a fork, and roles are forked, so a small pool of Python threads calls kernels that
let go of the GIL. Every kernel works on whole tiles, and a tile gives the same whoever computes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., Any])
HERE = Path(__file__).parent
CONFIG: Any = numba.config
ALONE = 1 << 16  # numbers below which waking a thread costs more than it brings


def _folder() -> str:
    """Named by the sources: numba by itself does not notice when a function in another file has changed."""
    text = b"".join(path.read_bytes() for path in sorted(HERE.glob("c*.py")))
    base = CONFIG.CACHE_DIR or str(HERE / "__pycache__")
    if not os.access(HERE, os.W_OK) and not CONFIG.CACHE_DIR:
        base = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "covey")
    return os.path.join(base, f"numba-{sha256(text).hexdigest()[:12]}")


_FOLDER = _folder()


def compiled(function: Function, sums: bool = False) -> Function:
    """Without the GIL. `sums` lets the compiler reorder additions, which is what vectors of them need."""
    settings: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "nsz"} if sums else False}
    before, CONFIG.CACHE_DIR = CONFIG.CACHE_DIR, _FOLDER
    try:
        made: Function = numba.njit(cache=True, **settings)(function)
    except (OSError, RuntimeError):  # nowhere to keep it: compiled again in every process
        made = numba.njit(**settings)(function)
    finally:
        CONFIG.CACHE_DIR = before
    return made


def summing(function: Function) -> Function:
    return compiled(function, sums=True)


_pool: ThreadPoolExecutor | None = None


def _forget() -> None:
    """A forked process has the pool, but not its threads."""
    global _pool  # noqa: PLW0603
    _pool = None


os.register_at_fork(after_in_child=_forget)


def shared(work: Callable[[int, int], Any], count: int, tile: int) -> list[Any]:
    """`work(start, stop)` over 0 to count in runs of whole tiles, one for each of torch's threads, in order."""
    threads = torch.get_num_threads()
    run = -(-count // (threads * tile)) * tile
    if threads == 1 or count <= max(ALONE, tile):
        return [work(0, count)]
    global _pool  # noqa: PLW0603
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="covey-kernels")
    return list(_pool.map(lambda start: work(start, min(start + run, count)), range(0, count, run)))

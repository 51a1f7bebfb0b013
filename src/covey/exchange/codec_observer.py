"""Observers of encoding and decoding, by which virtual time charges for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal

Act = Literal["encode", "decode"]
Watch = Callable[[tuple[str, ...], Act, int], AbstractContextManager[None]]
"""Entered around the work: the names of the codec, what it does, and the bytes of plain numbers."""

_watches: list[Watch] = []


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Coders that are made meanwhile tell what they do."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)


def watched() -> bool:
    return bool(_watches)


@contextmanager
def told(codec: tuple[str, ...], act: Act, size: int) -> Iterator[None]:
    """Around the work of a coder."""
    with ExitStack() as stack:
        for watch in _watches:
            stack.enter_context(watch(codec, act, size))
        yield

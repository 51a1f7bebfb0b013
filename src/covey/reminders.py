"""What takes so long? A line now and then while something does that cannot say so itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

EVERY = 5.0  # seconds before the first line


@contextmanager
def reminded(say: Callable[[str], None] | None, what: str, every: float | None = None) -> Iterator[None]:
    """Say after some seconds what is being done inside and for how long; then after twice as many, and so on."""
    if say is None:
        yield
        return
    through, begun = Event(), time.monotonic()

    def tell() -> None:
        pause = every or EVERY
        while not through.wait(pause):
            say(f"{what}, {time.monotonic() - begun:.0f} s so far")
            pause *= 2

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        through.set()
        teller.join()  # no thread may be alive when roles are forked

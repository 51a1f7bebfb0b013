"""The role's compute thread: one piece of work at a time, while the driver goes on listening."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple


class Done(NamedTuple):
    """How a piece of work ended."""

    value: Any
    error: BaseException | None


class Desk:
    """Work goes in from the driver's thread; the thread that calls `serve` does it and rings the bell."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._todo: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: deque[Done] = deque()
        self._posted: deque[Any] = deque()

    def put(self, work: Callable[[], Any]) -> None:
        self._todo.put(work)

    def serve(self) -> None:
        """Do the work that comes, until closed."""
        while (work := self._todo.get()) is not None:
            try:
                done = Done(work(), None)
            except BaseException as error:  # the driver passes it on; this thread stays
                done = Done(None, error)
            self._done.append(done)
            self.ring()

    def post(self, message: Any) -> None:
        """Hand the driver a message from inside a piece of work."""
        self._posted.append(message)
        self.ring()

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def collect(self) -> tuple[list[Any], list[Done]]:
        """What was posted and what was done since the last time; posts come before the end of their work."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            return [], []
        done = [self._done.popleft() for _ in range(len(self._done))]
        posted = [self._posted.popleft() for _ in range(len(self._posted))]
        return posted, done

    def close(self) -> None:
        self._todo.put(None)

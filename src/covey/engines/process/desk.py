"""The role's compute thread: one piece of work at a time, while the driver goes on listening."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, NamedTuple

from covey.program import Effect


class Done(NamedTuple):
    """How a piece of work ended."""

    value: Any
    error: BaseException | None


class Question(NamedTuple):
    """A program that work wants done before it goes on, and where its answer goes."""

    program: Coroutine[Effect[Any], Any, Any]
    answer: SimpleQueue[Done]


class Closed(Exception):
    """The run is over; nobody answers work any more."""


class Desk:
    """Work goes in from the driver's thread; the thread that calls `serve` does it and rings the bell."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._todo: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: deque[Done] = deque()
        self._posted: deque[Any] = deque()
        self._asked: deque[Question] = deque()
        self._open: deque[Question] = deque()  # not answered yet
        self._closed = False

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

    def consult(self, program: Coroutine[Effect[Any], Any, Any]) -> Any:
        """Let the driver run a program in the middle of a piece of work, and wait for its answer."""
        question = Question(program, SimpleQueue())
        self._open.append(question)
        if self._closed:
            raise Closed
        self._asked.append(question)
        self.ring()
        value, error = question.answer.get()
        self._open.remove(question)
        if error is not None:
            raise error
        return value

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def collect(self) -> tuple[list[Any], list[Question], list[Done]]:
        """What was posted, asked and done since the last time; posts come before the end of their work."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            return [], [], []
        done = [self._done.popleft() for _ in range(len(self._done))]
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        posted = [self._posted.popleft() for _ in range(len(self._posted))]
        return posted, asked, done

    def close(self) -> None:
        """No more work; work that waits for an answer is broken off."""
        self._closed = True
        for question in list(self._open):
            question.answer.put(Done(None, Closed()))
        self._todo.put(None)

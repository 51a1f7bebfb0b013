"""The role's compute thread: one piece of work at a time; after brief work it drives the role (`driving_turn.py`)."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from covey.engines.process.child_process import end
from covey.engines.process.driving_turn import DrivingTurn
from covey.engines.process.role.cuda_stream import CudaStream, Mark, follow, mark
from covey.program import Effect

T = TypeVar("T")


class Todo(NamedTuple):
    """A piece of work."""

    work: Callable[[], Any]
    through: bool
    begun: Mark | None
    drive: Callable[[], None] | None = None  # how to drive the role afterwards, where the turn comes with the work


class WorkDone(NamedTuple):
    """How a piece of work ended."""

    value: Any
    error: BaseException | None


class Question(NamedTuple):
    """A program that work wants done before it goes on, and where its answer goes."""

    program: Coroutine[Effect[Any], Any, Any]
    answer: SimpleQueue[tuple[WorkDone, Mark | None]]


class ComputeClosed(Exception):
    """The run is over; no more work is answered."""


class ComputeThread:
    """The thread that calls `serve` does the work that is put here and wakes the driver; while it drives, `do_in_turn`.

    On a GPU both have streams, and with all that is handed over goes a mark of how far the giver's had come.
    """

    def __init__(self, stream: CudaStream | None = None) -> None:
        self.stream = stream
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._todo: SimpleQueue[Todo | None] = SimpleQueue()
        self._done: deque[tuple[WorkDone, Mark | None]] = deque()
        self._posted: deque[tuple[Any, Mark | None]] = deque()
        self._asked: deque[tuple[Question, Mark | None]] = deque()
        self._open: deque[Question] = deque()  # not answered yet
        self._closed = False
        self.turn = DrivingTurn()
        self.took = math.inf  # seconds of the last work; if it had something to say in its middle, it counts as endless
        self._spoke = False
        self._process = os.getpid()

    def put(self, work: Callable[[], Any], through: bool = False) -> None:
        """Work to be done, on a GPU too where it has to be `through` before anything else happens."""
        self._todo.put(Todo(work, through, mark(self.stream)))

    def put_with_turn(self, work: Callable[[], Any], drive: Callable[[], None]) -> None:
        """Work to be done, after which the compute thread drives, unless the driver's thread has taken the turn."""
        self.turn.lay()
        self._todo.put(Todo(work, False, None, drive))

    def serve(self) -> None:
        """Do the work that comes, until closed."""
        while (todo := self._todo.get()) is not None:
            self._do(todo)
            drive = todo.drive if todo.drive and self.turn.take() else None
            self.wake()
            if drive:
                drive()

    def do_in_turn(self, work: Callable[[], Any]) -> bool:
        """(Compute thread, which drives) Do this work; whether the turn is still one's own."""
        self.turn.lay()
        self._do(Todo(work, False, None))
        mine = self.turn.take()
        self.wake()
        return mine

    def _do(self, todo: Todo) -> None:
        self._spoke, began = False, time.monotonic()
        try:
            follow(self.stream, todo.begun)
            done = WorkDone(todo.work(), None)
            if self.stream and todo.through:
                self.stream.mark().synchronize()
        except BaseException as error:  # the driver passes it on; this thread stays
            done = WorkDone(None, error)
        if os.getpid() != self._process:  # a child that the work has forked, and that did not end there: it is no role
            end(0)
        self.took = math.inf if self._spoke else time.monotonic() - began
        self._done.append((done, mark(self.stream)))

    def post(self, message: Any) -> None:
        """Hand the driver a message from inside a piece of work."""
        self._spoke = True
        self._posted.append((message, mark(self.stream)))
        self.wake()

    def consult(self, program: Coroutine[Effect[Any], Any, Any]) -> Any:
        """Let the driver run a program in the middle of a piece of work, and wait for its answer."""
        self._spoke, question = True, Question(program, SimpleQueue())
        self._open.append(question)
        if self._closed:
            raise ComputeClosed
        self._asked.append((question, mark(self.stream)))
        self.wake()
        (value, error), found = question.answer.get()
        follow(self.stream, found)
        self._open.remove(question)
        if error is not None:
            raise error
        return value

    def wake(self) -> None:
        """Let the driver hear what there is, on whichever thread."""
        os.eventfd_write(self.wakeup, 1)
        self.turn.call()

    def collect(self) -> tuple[list[Any], list[Question], list[WorkDone]]:
        """What was posted, asked and done since the last time; posts come before the end of their work."""
        try:
            os.eventfd_read(self.wakeup)
        except BlockingIOError:
            return [], [], []
        done = self._taken(self._done)
        asked = self._taken(self._asked)
        posted = self._taken(self._posted)
        return posted, asked, done

    def reply(self, question: Question, done: WorkDone) -> None:
        """Let work go on with the answer to its question."""
        question.answer.put((done, mark(self.stream)))

    def _taken(self, given: deque[tuple[T, Mark | None]]) -> list[T]:
        """All that was handed over."""
        found = []
        for _ in range(len(given)):
            what, how_far = given.popleft()
            follow(self.stream, how_far)
            found.append(what)
        return found

    def close(self) -> None:
        """No more work; work that waits for an answer is broken off."""
        self._closed = True
        for question in list(self._open):
            question.answer.put((WorkDone(None, ComputeClosed()), None))
        self._todo.put(None)

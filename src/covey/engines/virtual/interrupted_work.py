"""Work with requests in its middle, in virtual time: on a thread that never runs at the same time as the engine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import torch

from covey.program import Effect


class Asked(NamedTuple):
    """Work stands still until this program, begun at this much progress, has an answer."""

    program: Coroutine[Effect[Any], Any, Any]
    progress: float


class Through(NamedTuple):
    """Work has come to its end."""

    result: Any
    error: Exception | None


class WorkClosed(Exception):
    """The run is over; no more work is answered."""


class InterruptedWork:
    """One piece of work, from question to question; the chance inside the model is its own all the way."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self._said: SimpleQueue[Asked | Through] = SimpleQueue()
        self._chance = torch.get_rng_state()
        self._closed = False
        self._thread = Thread(target=self._run, name="work", daemon=True)
        self._thread.start()

    def go_on(self, answer: Any = None) -> Asked | Through:
        """(The engine) Let the work run until it asks again, or is through."""
        torch.set_rng_state(self._chance)
        self._answers.put((answer, None))
        said = self._said.get()
        self._chance = torch.get_rng_state()
        return said

    def ask(self, program: Coroutine[Effect[Any], Any, Any], progress: float) -> Any:
        """(The work) Stand still until there is an answer."""
        if self._closed:  # it was told so, and asks once more on its way out
            program.close()
            raise WorkClosed
        self._said.put(Asked(program, progress))
        answer, error = self._answers.get()
        if error is not None:
            program.close()
            raise error
        return answer

    def close(self) -> None:
        """(The engine) Break the work off where it stands."""
        self._closed = True
        self._answers.put((None, WorkClosed()))
        self._thread.join()

    def _run(self) -> None:
        _, error = self._answers.get()
        if error is not None:
            return
        try:
            said = Through(self._work(), None)
        except Exception as failure:
            said = Through(None, failure)
        self._said.put(said)

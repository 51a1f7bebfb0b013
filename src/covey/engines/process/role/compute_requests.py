"""Requests from the compute thread in the middle of work: the driver runs a program for each, while the work waits."""

from __future__ import annotations

import time
from typing import Protocol

from covey.engines.process.role.compute_thread import ComputeThread, Question, WorkDone
from covey.engines.process.role.metrics import Metrics
from covey.engines.process.role.pause import Pause
from covey.engines.process.role.running_program import RunningProgram


class AskedDriver(Protocol):
    """What answering a question needs of the role's driver."""

    metrics: Metrics
    pause: Pause
    compute_thread: ComputeThread

    def launch(self, program: RunningProgram) -> None: ...
    def chill(self) -> None: ...


class ComputeRequests:
    """The question that is open, if any. A role whose work waits for an answer does not compute: it can be frozen."""

    def __init__(self, driver: AskedDriver) -> None:
        self.driver = driver
        self.asking: RunningProgram | None = None  # the program that finds the answer
        self._since = 0.0
        self._found: tuple[Question, WorkDone] | None = None  # an answer that waits for the thaw

    def take(self, question: Question) -> None:
        """Run what the work asks for; in a frozen run this is where the work stands still."""
        driver = self.driver
        driver.metrics.computed()
        self._since = time.monotonic()
        self.asking = RunningProgram(self._find(question), main=False)
        driver.launch(self.asking)
        if driver.pause.on:
            driver.chill()

    async def _find(self, question: Question) -> None:
        try:
            done = WorkDone(await question.program, None)
        except Exception as error:  # it goes to the work, whose traceback leads through the user's model
            done = WorkDone(None, error)
        self._found = question, done
        self.give()

    def give(self) -> None:
        """Let the work go on with its answer, unless the run stands still."""
        driver = self.driver
        if self._found is None:
            return
        if driver.pause.on:
            return driver.pause.refuse()
        question, done = self._found
        self.asking = self._found = None
        driver.metrics.computing()
        driver.metrics.waited(self._since, "an answer for its work")
        driver.compute_thread.reply(question, done)

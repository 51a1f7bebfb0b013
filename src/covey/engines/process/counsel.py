"""Questions that work asks in its middle: the driver runs a program for each, and the work stands still meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from covey.engines.process.desk import Done, Question
from covey.engines.process.running import Running

if TYPE_CHECKING:
    from covey.engines.process.driver import Driver


class Counsel:
    """The question that is open, if any. A role whose work waits for an answer does not compute: it can be frozen."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.asking: Running | None = None  # the program that finds the answer
        self._since = 0.0
        self._found: tuple[Question, Done] | None = None  # an answer that waits for the thaw

    def take(self, question: Question) -> None:
        """Run what the work asks for; in a frozen run this is where the work stands still."""
        driver = self.driver
        driver.account.computed()
        self._since = time.monotonic()
        self.asking = Running(self._find(question), main=False)
        driver.launch(self.asking)
        if driver.standstill.on:
            driver.chill()

    async def _find(self, question: Question) -> None:
        try:
            done = Done(await question.program, None)
        except Exception as error:  # it goes to the work, whose traceback leads through the user's model
            done = Done(None, error)
        self._found = question, done
        self.give()

    def give(self) -> None:
        """Let the work go on with its answer, unless the run stands still."""
        driver = self.driver
        if self._found is None:
            return
        if driver.standstill.on:
            return driver.standstill.refuse()
        question, done = self._found
        self.asking = self._found = None
        driver.account.computing()
        driver.account.waited(self._since, "an answer for its work")
        driver.desk.reply(question, done)

"""What is the compute thread asked to do, one work at a time, and what does work ask in its middle?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from covey.engines.process import control
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.driving_turn import BRIEF
from covey.engines.process.role.compute_thread import Question, WorkDone
from covey.engines.process.role.metrics import Metrics
from covey.engines.process.role.pause import Pause
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import LoopEnded, RolePrograms, RunningProgram
from covey.engines.transport.zmq import ZmqTransport, calm
from covey.message import Message
from covey.program import Compute


class ComputingDriver(Protocol):
    """What computing needs of the role's driver."""

    metrics: Metrics
    line: RoleLine
    links: ZmqTransport
    host: RoleHost
    programs: RolePrograms

    def answer(self, running: RunningProgram, value: Any, error: BaseException | None = None) -> None: ...
    def deliver(self, message: Message) -> None: ...
    def report(self, now: bool = False) -> None: ...
    def stand_still(self) -> None: ...
    def leave(self, votes: int) -> None: ...


class ComputeRequests:
    """Programs whose work is done or waits for that, and the question that is open, if any.

    While the run is paused no work begins, and none goes on with an answer. A role whose work waits for an answer does
    not compute: it can be frozen.
    """

    def __init__(self, driver: ComputingDriver) -> None:
        self.driver = driver
        self.pause = Pause()
        self.pause_at: int | None = None  # the step from which on nothing is computed until the model has been scored
        self.frozen = False  # the launcher waits for the end of what runs, or has heard of it
        self.waiting: deque[RunningProgram] = deque()
        self.running: RunningProgram | None = None
        self.asking: RunningProgram | None = None  # the program that finds the answer
        self.brief: Callable[[], Any] | None = None  # work with which the turn to drive goes, after this round
        self._since = 0.0
        self._found: tuple[Question, WorkDone] | None = None  # an answer that waits for the thaw

    @property
    def busy(self) -> bool:
        """Whether work runs, or would if it were given time."""
        return self.running is not None or (bool(self.waiting) and not self.pause.endless)

    def put(self, running: RunningProgram) -> None:
        """This program waits for its work."""
        self.waiting.append(running)
        self.admit()

    def admit(self) -> None:
        """Give the compute thread its next work, unless the run stands still."""
        if not self.waiting or self.running is not None:
            return
        if self.pause.on:
            return self.refuse()
        self.running = self.waiting.popleft()
        self.driver.metrics.computing()
        effect = self.running.effect
        assert isinstance(effect, Compute)
        if self._seems_brief(effect):
            self.brief = effect.work
            return
        # while programs do something besides, they must not wait for a GPU that is behind
        self.driver.host.compute_thread.put(effect.work, through=len(self.driver.programs.running) > 1)

    def _seems_brief(self, effect: Compute[Any]) -> bool:
        """Whether nobody misses the driver while this work runs: the last one was brief, and nothing else goes on."""
        driver, compute_thread = self.driver, self.driver.host.compute_thread
        if compute_thread.took >= BRIEF or effect.talks or compute_thread.stream or len(driver.programs.running) > 1:
            return False
        return driver.line.loop is None and calm(driver.links)

    def hear(self) -> None:
        """The compute thread has something: messages, questions, or its work is done."""
        posted, asked, done = self.driver.host.compute_thread.collect()
        for message in posted:
            self.driver.deliver(message)
        for question in asked:
            self.take(question)
        for value, error in done:
            running, self.running = self.running, None
            assert running is not None
            self.driver.metrics.computed()
            if isinstance(error, LoopEnded):
                self.driver.leave(error.votes)
            else:
                self.driver.answer(running, value, error)
            if self.frozen:
                self.driver.stand_still()
            self.admit()

    # -- pauses -------------------------------------------------------------------------------------------------------

    def pause_here(self, main: bool = True) -> None:
        """Begin nothing from now on if the (main) program is at the step to pause at, or through with its last."""
        pace = self.driver.host.pace
        over = self.driver.programs.ended or pace.over(pace.step)
        if not main or self.pause_at is None or not (over or pace.step >= self.pause_at):
            return
        self.pause_at = None
        self.driver.report(now=True)
        if not over:
            self.begin_pause()
            self.driver.links.waive()
        self.driver.line.tell(control.Frozen())

    def cancel_pause(self) -> None:
        """The model will not be scored any more."""
        self.pause_at = None
        self.pause.cancel()

    def begin_pause(self) -> None:
        """Begin nothing from now on."""
        self.pause.begin()
        self.give()
        self.admit()  # what has been waiting since the last time waits on

    def freeze(self) -> None:
        """The same, and say when nothing runs. One that pauses already does so from the moment in which it began."""
        self.frozen = True
        if not self.pause.endless:
            self.begin_pause()
        if self.running is None or self.asking is not None:
            self.driver.stand_still()

    def refuse(self) -> None:
        """There is work, which must wait: from now on this role stands still."""
        self.pause.refuse()
        self.driver.metrics.watch.stop()

    def thaw(self) -> None:
        """Go on."""
        self.frozen = False
        self.give()
        self.admit()

    # -- questions ----------------------------------------------------------------------------------------------------

    def take(self, question: Question) -> None:
        """Run what the work asks for; in a frozen run this is where the work stands still."""
        driver = self.driver
        driver.metrics.computed()
        self._since = time.monotonic()
        self.asking = RunningProgram(self._find(question), main=False)
        driver.programs.launch(self.asking)
        if self.frozen:
            driver.stand_still()

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
        if self.pause.on:
            return self.refuse()
        question, done = self._found
        self.asking = self._found = None
        driver.metrics.computing()
        driver.metrics.waited(self._since, "an answer for its work")
        driver.host.compute_thread.reply(question, done)

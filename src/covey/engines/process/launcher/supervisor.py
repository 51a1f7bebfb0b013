"""The launcher's side of a run on real processes: start together, score, keep, stop, and name what went wrong."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import msgspec

from covey.checkpoint import RunRecord
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.contention_meter import ContentionMeter
from covey.engines.process.launcher.interval import Interval
from covey.engines.process.launcher.keeping import CheckpointKeeper, take_over
from covey.engines.process.launcher.model_scoring import ModelScoring
from covey.engines.process.launcher.monitor import Monitor, RunProcesses
from covey.engines.process.launcher.quiescence import Quiescence
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.run_wishes import ProcessOutcome, RunWishes
from covey.engines.process.launcher.warming import Warming, start
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PlanError
from covey.message import Address
from covey.observe.referee import Referee
from covey.observe.result import Stopped
from covey.observe.tally import read_measured
from covey.strategy import Plan

SHOW_EVERY = 0.1
STATE = 12  # bytes that a role usually holds for a parameter: itself, and two numbers of its optimizer


class Supervisor:
    """Leads the roles of one run through it."""

    def __init__(
        self, plan: Plan, board: Switchboard, processes: RunProcesses, referee: Referee, wishes: RunWishes
    ) -> None:
        self.plan, self.board, self.processes, self.referee, self.wishes = plan, board, processes, referee, wishes
        self.roles = [role.address for role in plan.roles]
        self.trainers = [role.address for role in plan.roles if role.trains]
        self.roster = Roster(self.roles, self.trainers)
        self.seen = self.roster.seen
        self.monitor = Monitor(
            self.roster, board, processes, wishes.stall, self.say, self.meanwhile, plan.in_step, wishes.before,
            wishes.renewal,
        )  # fmt: skip
        self.rebirths, self.collect = self.monitor.rebirths, self.monitor.collect
        self.quiescence = Quiescence(self.roster, board, self.monitor, plan.lockstep)
        scored = [role.address for role in plan.shown()]
        self.scoring = ModelScoring(scored, self.roster, board, self.monitor, self.quiescence, referee)
        self.pauses = self.scoring.pauses
        self.warming = Warming(self.roster, board, self.monitor, self.quiescence)
        self.watch = Stopwatch()
        self.profiles: dict[Address, control.Profiled] = {}
        self.contention: ContentionMeter | None = None
        self.stopped: Stopped | None = None
        self.parameters, self.stopping = 0, False  # parameters of a role
        self.last_step: int | None = None  # of a worker that is born again while the run ends
        self.stood_still = 0.0  # seconds between the failure of the attempt before and the first step of this one
        self.shown, self.paused = time.monotonic(), processes.paused
        self.keeper: CheckpointKeeper | None = None
        if wishes.checkpoints:
            every = Interval(wishes.keep_every)
            self.keeper = CheckpointKeeper(wishes.checkpoints, every, self.roles, board, self.monitor, self.say)

    # -- the run, in order -------------------------------------------------------------------------------------------

    def run(self) -> ProcessOutcome:
        try:
            return self.lead()
        finally:
            if self.keeper:
                self.keeper.close()

    def lead(self) -> ProcessOutcome:
        self.assemble()
        if self.wishes.first and self.score_first():
            return self.finish()
        if self.wishes.warm:
            self.warming.run()
        self.begin()
        while not all(self.seen[address].ended for address in self.roles):
            self.monitor.pump(0.05)
            if self.keeper:
                self.keeper.look()
            if not (self.rebirths.seats or self.stopping):  # a lost worker comes back first
                self.proceed()
        return self.finish()

    def proceed(self) -> None:
        """Score, stop or keep, if it is time for that."""
        if self.stopped:
            self.stop()
        elif self.pauses.begun:
            if not self.pauses.missing():
                self.score()
        elif self.wishes.score and self.referee.due(self.roster.samples):
            self.score()
        elif self.keeper and self.keeper.due():
            self.keep(self.keeper)

    def assemble(self) -> None:
        """Wait until all roles are built, and check that all start from the same weights."""
        if self.board.introduces:
            bound = self.collect(control.Bound, [*self.roles, SCORER])
            book = {str(address): word.endpoint for address, word in bound.items()}
            self.board.tell([*self.roles, SCORER], control.Endpoints(book))
        ready = self.collect(control.RoleReady, [*self.roles, SCORER])
        first = ready[self.roles[0]]
        self.parameters = max(ready[address].parameters for address in self.roles)
        for address in self.roles:
            if ready[address].fingerprint != first.fingerprint:
                raise PlanError(f"{address} built different initial weights from {self.roles[0]}: {self.wishes.alike}")

    def score_first(self) -> bool:
        """Score the initial weights, which the scorer has built, too; whether they meet the target already."""
        self.monitor.phase = "scoring"
        self.board.tell([SCORER], control.Score(0, True))
        metrics = self.collect(control.Scored, [SCORER])[SCORER].metrics
        if not self.referee.judge(0.0, 0, 0, metrics, math.nan):
            return False
        self.stopped = "target"
        self.write_model()
        return True

    def begin(self) -> None:
        """Start all roles together; the clock starts with the last."""
        self.processes.begin()
        self.contention = ContentionMeter(self.processes.pids)
        self.monitor.phase = "training"
        if self.wishes.score:
            self.pauses.tell_next()
        start(self.roles, self.board, self.monitor)
        self.rebirths.begun = True
        if lost := self.wishes.lost:
            self.stood_still = time.monotonic() - lost.moment
            self.watch = Stopwatch(lost.clock + self.stood_still)
        self.watch.start()
        if self.keeper:
            self.keeper.interval.begin(time.monotonic(), STATE * self.parameters)

    def score(self) -> None:
        """Stop the clock and all computing, score the model, go on."""
        step = self.pauses.step
        if step is not None and not self.scoring.at_rest(self.watch):
            return
        with self.scoring.standing_still(self.watch):
            metrics = self.ask_scorer(evaluate=True)
            if self.judge(metrics) and not self.stopped:
                self.stopped = "target"
                self.write_model()
            if step is not None:
                self.referee.passed(step)
                self.pauses.tell_next(over=self.stopped == "target")

    def score_before(self, step: int) -> None:
        """Workers that are sent to a step may pause on their way: score them there."""
        while self.pauses.step is not None and self.pauses.step < step:
            self.monitor.wait_for(lambda: [] if self.pauses.begun and not self.pauses.missing() else self.trainers)
            self.score()

    def write_model(self) -> None:
        """Keep what was scored last: the model that reached the target is the run's model, though some steps follow."""
        self.board.tell([SCORER], control.Score(0, False, str(self.wishes.model or "")))
        self.collect(control.Scored, [SCORER])

    def ask_scorer(self, evaluate: bool, file: Path | None = None) -> dict[str, float]:
        return self.scoring.ask(control.Score(0, evaluate, str(file or "")))

    def judge(self, metrics: dict[str, float]) -> bool:
        roster, found = self.roster, {**metrics, **read_measured(self.roster.tallies.values())}
        return self.referee.judge(self.watch.now(), roster.samples, roster.bytes, found, roster.read_loss())

    def keep(self, keeper: CheckpointKeeper, go_on: bool = True) -> None:
        """Bring every role to a common point, let the links drain, copy; then train on, or end there."""
        before, self.monitor.phase = self.monitor.phase, "saving"
        keeper.complete()
        keeper.last = not go_on
        begun = time.monotonic()
        self.quiescence.hold(self.score_before)
        self.quiescence.drain()
        self.watch.stop()
        keeper.copy(self.record)
        self.board.tell(self.roles, control.Release(train=go_on))
        self.watch.start()
        keeper.stood_still(time.monotonic() - begun)
        self.monitor.phase = before

    def record(self) -> RunRecord:
        """What a checkpoint says of the run now."""
        assert self.wishes.run is not None
        ended = [address.rank for address in self.trainers if self.through(address)]
        return msgspec.structs.replace(self.wishes.run, ended=ended, progress=self.progress_kept())

    def through(self, worker: Address) -> bool:
        """Whether the worker has done all its steps, though it may still wait for the others' goodbye."""
        limit = self.plan.limits[worker.rank]
        return self.seen[worker].ended or (limit is not None and self.seen[worker].step >= limit)

    def stop(self) -> None:
        """Send every worker its last step: a common one where they wait for one another."""
        self.stopping, self.monitor.phase = True, "stopping"
        if self.stopped == "interrupted" and self.keeper:
            self.keep(self.keeper, go_on=False)  # an interrupted run with checkpoints can continue from here
            return self.pauses.cancel()
        self.pauses.cancel()
        steps = self.quiescence.where()
        last = max(steps.values(), default=0) + 1  # a worker may have begun the step that it would begin next
        self.last_step = last if self.plan.lockstep else 0
        for address, step in steps.items():
            self.board.tell([address], control.Stop(last if self.plan.lockstep else step + 1))

    def finish(self) -> ProcessOutcome:
        """All roles have ended: the newest checkpoint, the last score, the model, goodbye."""
        self.watch.stop()
        if self.keeper:
            self.keeper.complete()
        contention = self.contention.result() if self.contention else None
        if self.wishes.profiled and self.rebirths.begun:
            self.profiles = self.collect(control.Profiled, self.roles)
        self.stopped = self.stopped or "budget"
        if self.stopped != "target" and (self.wishes.score or self.wishes.model):
            metrics = self.ask_scorer(self.wishes.score, self.wishes.model)
            if self.wishes.score and self.judge(metrics) and self.stopped == "budget":
                self.stopped = "target"
        self.monitor.phase = "ended"
        self.show()
        self.board.tell([*self.roles, SCORER], control.Quit())
        return ProcessOutcome(
            self.watch.now(), self.stopped, list(self.roster.tallies.values()), self.roster.meter.rows,
            self.monitor.refused.lines(), contention,
        )  # fmt: skip

    def see_off(self) -> None:
        """Wait until every process is gone: what a user's script does after the run may still fail."""
        while self.processes.alive:
            self.monitor.pump(0.05)
            if self.wishes.interrupt.asked and self.stopped != "interrupted":
                raise KeyboardInterrupt

    def skip_pause(self) -> None:
        """The time for which a person has stopped all processes is not training time."""
        pause, self.paused = self.processes.paused - self.paused, self.processes.paused
        if pause > 0:
            self.watch.skip(pause)
            self.board.tell(self.roles, control.Skip(pause))

    def meanwhile(self) -> None:
        """Stop as soon as every role can when that is asked for; before the run there is nothing to end well."""
        self.skip_pause()
        self.rebirths.advance(self.monitor, self.pauses.orders(self.last_step), self.watch.now())
        if self.wishes.interrupt.asked and not self.stopped:
            if self.monitor.phase in ("starting", "warming"):
                raise KeyboardInterrupt
            self.stopped = "interrupted"
        if time.monotonic() - self.shown >= SHOW_EVERY:
            self.show()

    # -- telling -----------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        if self.wishes.watcher:
            self.wishes.watcher.say(line)

    def show(self) -> None:
        self.shown = time.monotonic()
        if self.monitor.phase == "training":
            self.roster.meter.read(self.watch.now(), self.roster.bytes, len(self.roles))
        if self.wishes.watcher:
            now = self.roster.progress(self.monitor.phase, self.watch.now(), self.wishes.budget, self.referee.metrics())
            self.wishes.watcher.update(now)

    def progress_kept(self) -> dict[str, Any]:
        """What a resumed run must know of the past."""
        return {"seconds": self.watch.now(), "history": list(self.referee.history), "tallies": self.roster.kept()}

    def resume(self, run: RunRecord) -> None:
        """Take the past of a kept run over."""
        self.watch = Stopwatch(take_over(run, self.roster, self.referee))
        for line in run.torn:
            self.say(f"{line}; the run goes on from the checkpoint before")

"""The launcher's side of a run on real processes: start together, score, keep, stop, and name what went wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence

from covey.checkpoint import RunRecord
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.interval import Interval
from covey.engines.process.launcher.keeping import CheckpointKeeper, RunRecorder, take_over
from covey.engines.process.launcher.model_scoring import ModelScoring
from covey.engines.process.launcher.monitor import Monitor
from covey.engines.process.launcher.quiescence import Quiescence, RunEnding
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.run_clock import RunClock
from covey.engines.process.launcher.run_news import RunNews
from covey.engines.process.launcher.run_processes import RunProcesses
from covey.engines.process.launcher.run_start import assemble, start, warm
from covey.engines.process.launcher.run_wishes import ProcessOutcome, RunWishes
from covey.engines.process.snapshot_parts import SCORER
from covey.message import Address
from covey.observe.recording import Recording, joined
from covey.observe.referee import Referee
from covey.strategy import Plan

STATE = 12  # bytes that a role usually holds for a parameter: itself, and two numbers of its optimizer


class Supervisor:
    """Leads the roles of one run through it."""

    def __init__(
        self, plan: Plan, board: Switchboard, processes: RunProcesses, referee: Referee, wishes: RunWishes
    ) -> None:
        self.referee, self.wishes = referee, wishes
        roles = [role.address for role in plan.roles]
        roster = Roster(roles, [role.address for role in plan.roles if role.trains])
        self.clock = RunClock(processes)
        self.news = RunNews(wishes.watcher, wishes.budget, roster)
        self.monitor = Monitor(
            roster, board, processes, wishes.stall, self.news.say, self.meanwhile, plan.in_step, wishes.before,
            wishes.renewal,
        )  # fmt: skip
        self.quiescence = Quiescence(self.monitor, plan.lockstep)
        self.scoring = ModelScoring([role.address for role in plan.shown()], self.monitor, self.quiescence, referee)
        self.ending = RunEnding(self.quiescence)
        self.recorder = RunRecorder(wishes.run, plan.limits, roster, referee)
        self.keeper: CheckpointKeeper | None = None
        if wishes.checkpoints:
            self.keeper = CheckpointKeeper(wishes.checkpoints, Interval(wishes.keep_every), self.monitor, self.news.say)

    @property
    def roster(self) -> Roster:
        return self.monitor.roster

    @property
    def roles(self) -> Sequence[Address]:
        return self.monitor.roster.roles

    def run(self) -> ProcessOutcome:
        try:
            return self.lead()
        finally:
            if self.keeper:
                self.keeper.close()

    def lead(self) -> ProcessOutcome:
        parameters = assemble(self.monitor, self.wishes.alike)
        if self.wishes.first and self.scoring.score_first():
            self.ending.reason = "target"
            self.scoring.write_last(self.wishes.model)
            return self.finish()
        if self.wishes.warm:
            warm(self.monitor, self.quiescence)
        self.begin(parameters)
        while not all(self.roster.seen[address].ended for address in self.roles):
            self.monitor.pump(0.05)
            if self.keeper:
                self.keeper.look()
            if not (self.monitor.restarts.awaited or self.ending.begun):  # a lost worker comes back first
                self.proceed()
        return self.finish()

    def proceed(self) -> None:
        """Score, stop or keep, if it is time for that."""
        pauses = self.scoring.pauses
        if self.ending.reason:
            self.stop()
        elif pauses.begun:
            if not pauses.missing():
                self.score()
        elif self.wishes.score and self.referee.due(self.roster.samples, self.clock.watch.now()):
            self.score()
        elif self.keeper and self.keeper.due() and self.monitor.restarts.settled:
            self.keep(self.keeper)

    def begin(self, parameters: int) -> None:
        """Start all roles together; the clock starts with the last."""
        self.clock.processes.begin()
        self.clock.measure_contention()
        self.monitor.phase = "training"
        if self.wishes.score:
            self.scoring.pauses.tell_next()
        start(self.monitor)
        self.monitor.restarts.begun = True
        self.clock.begin(self.wishes.lost)
        if self.keeper:
            self.keeper.interval.begin(time.monotonic(), STATE * parameters)

    def score(self) -> None:
        """Stop the clock and all computing, score the model, go on."""
        pauses, watch = self.scoring.pauses, self.clock.watch
        step = pauses.step
        if step is not None and not self.scoring.at_rest(watch):
            return
        with self.scoring.standing_still(watch):
            metrics = self.scoring.ask(evaluate=True)
            if self.scoring.judge(metrics, watch.now()) and not self.ending.reason:
                self.ending.reason = "target"
                self.scoring.write_last(self.wishes.model)  # though some steps follow
            self.ending.reason = self.scoring.spread(self.ending.reason)
            if step is not None:
                self.referee.passed(step)
                pauses.tell_next(over=self.ending.reason in ("target", "patience"))

    def score_before(self, step: int) -> None:
        """Workers that are sent to a step may pause on their way: score them there."""
        pauses, trainers = self.scoring.pauses, list(self.roster.trainers)
        restarts = self.monitor.restarts

        def missing() -> list[Address]:
            there = pauses.begun and not pauses.missing()
            return [] if there or not restarts.settled else trainers

        while pauses.step is not None and pauses.step < step and restarts.settled:
            self.monitor.wait_for(missing)
            if restarts.settled:
                self.score()

    def keep(self, keeper: CheckpointKeeper, go_on: bool = True) -> bool:
        """Bring every role to a common point, let the links drain, copy; then train on, or end there.

        False: a worker was lost on the way, so that all go on as they were, and nothing is kept.
        """
        before, self.monitor.phase = self.monitor.phase, "saving"
        restarts, kept = self.monitor.restarts, False
        keeper.complete()
        keeper.last = not go_on
        begun = time.monotonic()
        if self.quiescence.hold(self.score_before) and self.quiescence.drain(lambda: not restarts.settled):
            self.clock.watch.stop()
            keeper.copy(lambda: self.recorder.record(self.clock.watch.now()))
            kept = True
        self.monitor.board.tell(restarts.present(self.roles), control.Release(train=go_on or not kept))
        self.clock.watch.start()
        if kept or self.quiescence.stuck:
            keeper.stood_still(time.monotonic() - begun)
        self.monitor.phase = before
        return kept

    def stop(self) -> None:
        """Have the workers end: a run that can continue, where it was kept; else each after its step."""
        self.ending.begun, self.monitor.phase = True, "stopping"
        if self.ending.reason in ("interrupted", "paused") and self.keeper:
            # such a run with checkpoints can continue from here; a lost worker has to come back first
            self.ending.begun = self.keep(self.keeper, go_on=False)
            return self.scoring.pauses.cancel() if self.ending.begun else None
        self.scoring.pauses.cancel()
        self.ending.send_last_steps()

    def finish(self) -> ProcessOutcome:
        """All roles have ended: the newest checkpoint, the last score, the model, goodbye."""
        watch, wishes = self.clock.watch, self.wishes
        watch.stop()
        if self.keeper:
            self.keeper.complete()
        contention = self.clock.contention()
        profiled = self.wishes.profiled and self.monitor.restarts.begun
        profiles = self.monitor.collect(control.Profiled, self.roles) if profiled else {}
        stopped = self.ending.reason or "budget"
        if stopped != "target" and (wishes.score or wishes.model):
            metrics = self.scoring.ask(wishes.score, wishes.model)
            if wishes.score and self.scoring.judge(metrics, watch.now()) and stopped == "budget":
                stopped = "target"
        self.ending.reason = stopped
        self.monitor.phase = "ended"
        self.show()
        self.monitor.board.tell([*self.roles, SCORER], control.Quit())
        return ProcessOutcome(
            watch.now(), stopped, list(self.roster.tallies.values()), self.roster.meter.rows,
            self.monitor.notices.refused.lines(), contention, profiles,
        )  # fmt: skip

    def recording(self, outcome: ProcessOutcome, strategy: str, engine: str) -> Recording:
        """What each role did when; also what torch did, if that was asked for."""
        ops = {str(who): word.ops for who, word in outcome.profiles.items()} or None
        return joined(self.roster.lanes, self.roles, strategy, engine, ops)

    def see_off(self) -> None:
        """Wait until every process is gone: what a user's script does after the run may still fail."""
        while self.clock.processes.alive:
            self.monitor.pump(0.05)
            if self.wishes.interrupt.asked and self.ending.reason != "interrupted":
                raise KeyboardInterrupt

    def meanwhile(self) -> None:
        """Stop as soon as every role can when that is asked for; before the run there is nothing to end well."""
        self.wishes.lead()
        if (pause := self.clock.skip_pause()) > 0:
            self.monitor.board.tell(self.roles, control.Skip(pause))
        orders = self.scoring.pauses.orders(self.ending.last_step)
        self.monitor.restarts.advance(self.monitor, orders, self.clock.watch.now())
        if self.wishes.interrupt.asked and not self.ending.reason:
            if self.monitor.phase in ("starting", "warming"):
                raise KeyboardInterrupt
            self.ending.reason = "interrupted"
        if self.news.due():
            self.show()

    def show(self) -> None:
        self.news.show(self.monitor.phase, self.clock.watch.now(), self.referee.metrics())

    def resume(self, run: RunRecord) -> None:
        """Take the past of a kept run over."""
        self.clock.watch = Stopwatch(take_over(run, self.roster, self.referee))
        for line in run.torn:
            self.news.say(f"{line}; the run goes on from the checkpoint before")

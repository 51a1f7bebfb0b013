"""Attempts at a run in virtual time: faults strike, checkpoints are kept, and after a loss it starts again from one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from covey.checkpoint import CheckpointDirectory, RoleState, RunRecord
from covey.decoding import UNREADABLE
from covey.engines.virtual.keeping import RunKeeper
from covey.engines.virtual.run_faults import RunFaults, VirtualAttempt, killing
from covey.errors import CheckpointError, PeerLost
from covey.message import Address
from covey.model.named import named_numbers
from covey.observe.membership import MembershipLog
from covey.observe.referee import Referee
from covey.observe.result import Result
from covey.observe.tally import Tally, Teller
from covey.run.checks import keepable
from covey.run.kept import same_cut
from covey.run.request import Request, referee
from covey.run.restarting import FailureCount, interval
from covey.simulate.faults import FaultPlan

STARTING = 1.0  # seconds that a run needs to start again, besides its pause


@dataclass(slots=True)
class VirtualRestarts:
    """Attempts at one run in virtual time; its clock runs on between them."""

    asked: Request
    here: RunRecord
    plan: FaultPlan
    checkpoints: CheckpointDirectory | None
    train: Callable[[VirtualAttempt, Referee], Result]
    faults: RunFaults | None = field(init=False)
    failures: FailureCount = field(init=False)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        virtual, asked = self.asked.options.virtual, self.asked.options.checkpoints
        log, workers = MembershipLog(self.asked.left), len(self.asked.plan.limits)
        self.failures = FailureCount(asked, self.checkpoints, workers, log)
        spot = self.asked.options.fault_plan.spot_trace is not None
        self.failures.elastic &= keepable(self.asked.strategy, self.asked.plan.least, spot)
        kills = virtual.cluster.kills if virtual.cluster else {}
        plan = FaultPlan((*self.plan.faults, *killing(kills).faults))
        self.faults = RunFaults(plan) if plan else None

    def run(self, kept: Path | None, run: RunRecord | None) -> Result:
        """Train, and after a loss train again, if that was asked for."""
        before = kept
        clock, told = self.asked.begins, -1
        while True:
            judge = referee(self.asked)
            judge.known = told
            attempt = self._attempt(kept, run, clock, judge)
            try:
                result = self.train(attempt, judge)
            except PeerLost as lost:
                kept, run = self.failures.newest((before, run), lost)
                clock = self._after(attempt, lost, kept == before, run)
                before, told = kept, judge.furthest
                continue
            result.failures += self.told + (self.faults.told + self.faults.unmet if self.faults else [])
            self.failures.tell(result)
            return result

    def _attempt(self, kept: Path | None, run: RunRecord | None, clock: float, judge: Referee) -> VirtualAttempt:
        attempt = VirtualAttempt(clock=clock, faults=self.faults, log=self.failures.log)
        if kept is not None and run is not None:
            plan = self.asked.plan  # where workers come and go, they ask the servers where they go on
            read = [role.address for role in plan.roles if not (plan.least and role.trains)]
            now = self.asked.strategy.text
            attempt.place, attempt.before = kept, "" if same_cut(run.strategy, now) else run.strategy
            attempt.states = {} if attempt.before else {who: RoleState.read(kept, who) for who in read}
            try:
                attempt.tallies = msgspec.convert(run.progress["tallies"], list[Tally], str_keys=True)
                for tally in attempt.tallies:
                    tally.check()
                attempt.clock = max(clock, msgspec.convert(run.progress["seconds"], float))
                judge.resume(run.progress["history"])
            except UNREADABLE as error:
                raise CheckpointError(f"the checkpoint does not say how far the run came: {error}") from None
        if self.checkpoints is not None:
            every = interval(self.asked.options.checkpoints)
            assert every is not None, "virtual time has been refused an interval by measure"
            attempt.keeper = RunKeeper(every, self.asked.plan.lockstep, self._writer(self.checkpoints, judge))
        return attempt

    def _writer(
        self, checkpoints: CheckpointDirectory, judge: Referee
    ) -> Callable[[Mapping[Address, RoleState], float, Teller], None]:  # fmt: skip
        def write(states: Mapping[Address, RoleState], now: float, teller: Teller) -> None:
            plan = self.asked.plan
            ended = [
                who.rank for who, state in states.items()
                if who.role == "worker" and (most := plan.steps_of(who.rank)) is not None and state.done >= most
            ]  # fmt: skip
            tallies = msgspec.to_builtins(list(teller.tallies.values()), str_keys=True)
            progress = {"seconds": now, "history": list(judge.history), "tallies": tallies}
            try:
                with checkpoints.writing() as place:
                    for who, state in states.items():
                        if self.faults and now < self.faults.full_until:
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                        state.copied(named_numbers).write(place, who)
                    checkpoints.told(
                        checkpoints.commit(place, msgspec.structs.replace(self.here, ended=ended, progress=progress))
                    )
                for instrument in self.asked.options.virtual.instruments:
                    instrument.kept(now)
            except OSError as error:
                self._say(f"could not write a checkpoint at {now:.4g} s: {error.strerror or error}; training goes on")

        return write

    def _after(self, attempt: VirtualAttempt, lost: PeerLost, same: bool, run: RunRecord | None) -> float:
        """Count what was lost, and say when the next attempt begins; or no more of them."""
        assert attempt.parts is not None, "an attempt that lost a role has begun"
        now = attempt.parts.agenda.now
        waits = STARTING + self.failures.count(lost, new=not same)
        samples = sum(tally.trained for tally in attempt.parts.teller.tallies.values())
        self.failures.note(lost, now, samples, run, stalled=waits)
        self._say(f"{lost}; the run starts again from {'a checkpoint' if run else 'its beginning'}", keep=False)
        for instrument in self.asked.options.virtual.instruments:
            instrument.restarted(now + waits)
        return now + waits

    def _say(self, line: str, keep: bool = True) -> None:
        self.told += [line] if keep else []
        if watcher := self.asked.options.output.watcher:
            watcher.say(line)

"""A run that lost a process, and cannot go on without it, starts again from its newest checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.engines.interrupt import Interrupt
from covey.engines.process.clock import LostAttempt
from covey.engines.process.launcher.supervisor import Supervisor
from covey.errors import CheckpointError, PeerLost
from covey.membership import pause
from covey.names import option
from covey.observe.membership import MembershipLog
from covey.observe.result import Result
from covey.observe.tally import REPEATED
from covey.run.option_parts import CheckpointOptions, restarts_survived
from covey.run.options import Options
from covey.simulate import parse_duration


@dataclass(slots=True)
class Attempt:
    """One attempt of a run: the checkpoint that it goes on from, and the attempt before it."""

    kept: Path | None = None
    run: RunRecord | None = None
    lost: LostAttempt | None = None
    supervisor: Supervisor | None = None  # once its processes have started
    log: MembershipLog = field(default_factory=MembershipLog)  # of all attempts


Kept = tuple[Path | None, RunRecord | None]
"""A checkpoint, and what it says of its run; neither: the run begins at its beginning."""


class FailureCount:
    """What the failures of a run add up to, until too many in a row kept nothing new."""

    def __init__(
        self, given: CheckpointOptions, checkpoints: CheckpointDirectory | None, workers: int, log: MembershipLog
    ) -> None:
        self.most = restarts_survived(given)  # failures in a row
        self.elastic = given.on_failure == "continue"
        self.checkpoints, self.workers, self.log = checkpoints, workers, log
        self.failed = 0  # in a row, without a new checkpoint
        self.repeated = 0  # samples that were lost with an attempt, and are trained on again

    def newest(self, before: Kept, lost: PeerLost) -> Kept:
        """The newest checkpoint; where none can be read, the loss ends the run."""
        if not self.most and self.elastic:
            raise PeerLost(f"{lost}; with {option('checkpoint', 'DIR')} such a run starts again by itself", lost.who)
        if not self.most:
            raise lost
        if self.checkpoints is None or not self.checkpoints.all():
            return before
        try:
            return self.checkpoints.newest()
        except CheckpointError as error:
            raise PeerLost(f"{lost}\nthe run cannot start again: {error}", lost.who) from None

    def count(self, lost: PeerLost, new: bool) -> float:
        """One more, which has left a `new` checkpoint or not; the seconds to wait before the next attempt."""
        self.failed = 1 if new else self.failed + 1
        if self.failed > self.most:
            raise PeerLost(
                f"{lost}\nthe run failed {self.failed} times in a row without a new checkpoint: a shorter "
                f"{option('every')} keeps more of it, and a larger {option('max_failures')} tries more often"
            ) from lost
        return pause(self.failed)

    def note(self, lost: PeerLost, seconds: float, samples: int, run: RunRecord | None, stalled: float = 0.0) -> None:
        """The attempt had trained for this long, on this many samples in all; the next goes on from this record."""
        tallies = run.progress.get("tallies", []) if run else []
        kept = sum(each.get("samples", 0) + int(each.get("notes", {}).get(REPEATED, 0)) for each in tallies)
        self.repeated += max(0, samples - kept)
        self.log.add("restart", lost.who, str(lost), seconds=seconds, workers=self.workers, stalled=stalled)

    def tell(self, result: Result) -> None:
        """Let the result say what was lost, if anything was."""
        if self.log.events:
            result.tell_membership(self.log.events, self.repeated)


class Restarts:
    """Attempts at one run, until one of them ends well or too many in a row kept nothing new."""

    def __init__(
        self, given: Options, checkpoints: CheckpointDirectory | None, interrupt: Interrupt, workers: int,
        log: MembershipLog | None = None,
    ) -> None:  # fmt: skip
        self.given, self.interrupt = given, interrupt
        self.failures = FailureCount(given.checkpoints, checkpoints, workers, log or MembershipLog())

    def run(self, first: Attempt, train: Callable[[Attempt], Result]) -> Result:
        """Train, and train again from the newest checkpoint when a process is lost."""
        attempt = first
        while True:
            try:
                result = train(attempt)
            except PeerLost as lost:
                attempt = self._after(attempt, lost)
                continue
            self._count_pause(attempt)
            self.failures.tell(result)
            return result

    def _after(self, attempt: Attempt, lost: PeerLost) -> Attempt:
        """The next attempt; or no more of them."""
        self._count_pause(attempt)
        moment = time.monotonic()
        kept, run = self.failures.newest((attempt.kept, attempt.run), lost)
        wait = self.failures.count(lost, new=kept != attempt.kept)
        ended, before = attempt.supervisor, attempt.lost.clock if attempt.lost else 0.0
        clock, samples = (max(before, ended.clock.watch.now()), ended.roster.trained) if ended else (before, 0)
        self.failures.note(lost, clock, samples, run)
        told = ended.referee.furthest if ended else attempt.lost.scored if attempt.lost else -1
        self.given.output.say(
            f"{lost}; the run starts again from {kept or 'its beginning'}{f' in {wait:g} s' if wait else ''}"
        )
        self._wait(wait)
        return Attempt(kept, run, LostAttempt(moment=moment, clock=clock, scored=told), log=self.failures.log)

    def _count_pause(self, attempt: Attempt) -> None:
        """How long the run stood still before this attempt trained."""
        if attempt.lost and attempt.supervisor:
            restarts = [event for event in self.failures.log.events if event.event == "restart"]
            restarts[-1].stalled = attempt.supervisor.clock.stood_still

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.interrupt.asked:
                raise KeyboardInterrupt
            time.sleep(0.05)


def interval(given: CheckpointOptions) -> float | None:
    """Seconds between two checkpoints; None: as often as it costs little."""
    return None if given.every == "auto" else parse_duration(given.every)

"""`--on-failure restart`: a run that lost a process starts again from its newest checkpoint."""

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
from covey.observe.membership import Goodput, MembershipLog
from covey.observe.result import Result
from covey.run.option_parts import CheckpointOptions, failures_survived
from covey.run.options import Options
from covey.simulate import parse_duration


@dataclass(slots=True)
class Attempt:
    """One life of a run: the checkpoint that it goes on from, and the attempt before it."""

    kept: Path | None = None
    run: RunRecord | None = None
    lost: LostAttempt | None = None
    supervisor: Supervisor | None = None  # once its processes have started


@dataclass(slots=True)
class Restarts:
    """Attempts at one run, until one of them ends well or too many in a row kept nothing new."""

    given: Options
    checkpoints: CheckpointDirectory | None
    interrupt: Interrupt
    workers: int
    most: int = field(init=False)  # failures in a row that it survives
    failed: int = 0  # in a row, without a new checkpoint
    log: MembershipLog = field(default_factory=MembershipLog)
    repeated: int = 0  # samples that were lost with an attempt, and are trained on again

    def __post_init__(self) -> None:
        most = failures_survived(self.given.checkpoints)
        self.most = most if self.given.checkpoints.on_failure == "restart" else 0

    def run(self, first: Attempt, train: Callable[[Attempt], Result]) -> Result:
        """Train, and train again from the newest checkpoint when a process is lost."""
        attempt = first
        while True:
            try:
                result = train(attempt)
            except PeerLost as lost:
                if not self.most:
                    raise
                attempt = self._after(attempt, lost)
                continue
            self._count_pause(attempt)
            if self.log.events:
                result.membership = self.log.events
                result.goodput = Goodput.of(result.samples, self.repeated)
            return result

    def _after(self, attempt: Attempt, lost: PeerLost) -> Attempt:
        """The next attempt; or no more of them."""
        self._count_pause(attempt)
        moment = time.monotonic()
        following = self._from_newest(attempt, lost)
        self.failed = self.failed + 1 if following.kept == attempt.kept else 1
        if self.failed > self.most:
            raise PeerLost(
                f"{lost}\nthe run failed {self.failed} times in a row without a new checkpoint: a shorter "
                f"{option('every')} keeps more of it, and a larger {option('max_failures')} tries more often"
            ) from lost
        ended, before = attempt.supervisor, attempt.lost.clock if attempt.lost else 0.0
        clock, samples = (max(before, ended.clock.watch.now()), ended.roster.samples) if ended else (before, 0)
        self.repeated += max(0, samples - samples_kept(following.run))
        told = ended.referee.furthest if ended else attempt.lost.scored if attempt.lost else -1
        following.lost = LostAttempt(moment=moment, clock=clock, scored=told)
        self.log.add("restart", lost.who, str(lost), seconds=clock, workers=self.workers)
        wait = pause(self.failed)
        place = following.kept or "its beginning"
        self._say(f"{lost}; the run starts again from {place}{f' in {wait:g} s' if wait else ''}")
        self._wait(wait)
        return following

    def _from_newest(self, attempt: Attempt, lost: PeerLost) -> Attempt:
        if self.checkpoints is None or not self.checkpoints.all():
            return Attempt(attempt.kept, attempt.run)
        return Attempt(*newest_after(self.checkpoints, lost))

    def _count_pause(self, attempt: Attempt) -> None:
        """How long the run stood still before this attempt trained."""
        if self.log.events and attempt.supervisor:
            self.log.events[-1].stalled = attempt.supervisor.clock.stood_still

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.interrupt.asked:
                raise KeyboardInterrupt
            time.sleep(0.05)

    def _say(self, line: str) -> None:
        if self.given.output.watcher:
            self.given.output.watcher.say(line)


def interval(given: CheckpointOptions) -> float | None:
    """Seconds between two checkpoints; None: as often as it costs little."""
    return None if given.every == "auto" else parse_duration(given.every)


def newest_after(checkpoints: CheckpointDirectory, lost: PeerLost) -> tuple[Path, RunRecord]:
    """The newest checkpoint; where none can be read, the loss ends the run."""
    try:
        return checkpoints.newest()
    except CheckpointError as error:
        raise PeerLost(f"{lost}\nthe run cannot start again: {error}", lost.who) from None


def samples_kept(run: RunRecord | None) -> int:
    """How far a checkpoint came."""
    tallies = run.progress.get("tallies", []) if run else []
    return sum(each.get("samples", 0) for each in tallies)

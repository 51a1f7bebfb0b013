"""One launcher's time at the head of its run: what it writes to the log, and when it has to stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from covey import faults
from covey.checkpoint import CheckpointDirectory
from covey.checkpoint.etcd_client import place_of
from covey.checkpoint.etcd_log import EtcdLog
from covey.checkpoint.file_log import FileLog
from covey.checkpoint.launcher_log import LauncherLog, LogEntry, NoLog, What, entry, me
from covey.errors import CheckpointError, CoveyError, LeadLost, PlanError, RoleFailed
from covey.observe.membership import MembershipEvent, MembershipLog
from covey.observe.result import Result
from covey.run.leading.lead_options import FILE
from covey.run.options import Options

LONG = 500  # characters of what an entry says
FROZEN = 3.0  # seconds after which roles end whose launcher does nothing: before its lease is over


class Lead:
    """One launcher's time at the head of its run; inside the block it alone writes."""

    def __init__(
        self, log: LauncherLog, checkpoints: CheckpointDirectory | None, say: Callable[[str], None],
        resumed: bool = False,
    ) -> None:  # fmt: skip
        self.log, self.checkpoints, self._say, self.resumed = log, checkpoints, say, resumed
        self.generation = 0
        self.past: list[LogEntry] | None = None  # of other launchers; None: this one does not lead yet
        self._told = ""  # last
        self._kept: Callable[[Path], None] = lambda kept: None  # hears of each checkpoint

    @classmethod
    def of(cls, given: Options, checkpoints: CheckpointDirectory | None) -> Lead:
        """That of a run with these options."""
        if checkpoints is None:
            return cls(NoLog(), None, given.output.say)
        log = FileLog(checkpoints) if given.lead.keeper == FILE else EtcdLog(*place_of(given.lead.keeper), checkpoints)
        return cls(log, checkpoints, given.output.say, given.checkpoints.resume is not None)

    def take(self) -> None:
        """Have the run, and read what became of it under other launchers."""
        self.log.take()
        try:
            self.past = self.log.entries()
        except CheckpointError:
            self.log.release()
            raise

    def told(self, kept: Callable[[Path], None] | None) -> Self:
        """The same; `kept` hears of each checkpoint."""
        self._kept = kept or self._kept
        return self

    def membership(self, told: Callable[[MembershipEvent], None] | None) -> MembershipLog:
        """Who comes and goes, for the log and for whoever else is told."""

        def change(event: MembershipEvent) -> None:
            self._write("membership", change=event)
            if told:
                told(event)

        return MembershipLog(change)

    def __enter__(self) -> Self:
        if self.past is None:
            self.take()
        assert self.past is not None
        self.generation = 1 + max((one.generation for one in self.past), default=0)
        self._write("lead" if self.resumed else "begin", me())
        if self.checkpoints:
            self.checkpoints.told, self.checkpoints.refused = self._keep, self._refused
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            # what was refused, or interrupted, another launcher may well do; nobody else will mend the user's code
            if isinstance(error, Exception) and not isinstance(error, PlanError | CheckpointError | LeadLost):
                self._write("failed", _words(error))  # a launcher that was frozen finds that roles are gone, and why
            with suppress(LeadLost):
                self.log.settle()
        finally:
            self.log.release()

    def close(self) -> None:
        """Let others have the run, if this launcher still does."""
        self.log.release()

    def check(self) -> None:
        """LeadLost as soon as another launcher may have the run."""
        self.log.check()

    def finish(self, result: Result) -> Result:
        """The run is over: the result counts once the log has it. An interrupted run others may continue."""
        if result.stopped != "interrupted":
            self._write("end", line_of(result))
        self.log.settle()
        return result

    def _write(self, what: What, text: str = "", change: MembershipEvent | None = None) -> None:
        try:
            self.log.write(entry(self.generation, what, text[:LONG], change))
        except OSError as error:
            line = f"the launcher's log cannot be written ({error.strerror or error}); the run goes on"
            if line != self._told:
                self._say(line)
            self._told = line

    def _keep(self, kept: Path) -> None:
        self._write("checkpoint", kept.name)
        self._kept(kept)

    def _refused(self) -> str:
        try:
            self.check()
        except LeadLost as lost:
            return str(lost)
        return ""


def _words(error: Exception) -> str:
    """A failure in one line; of a traceback the last."""
    if isinstance(error, RoleFailed):
        return str(error).strip().splitlines()[-1]
    return " ".join((str(error) if isinstance(error, CoveyError) else faults.words(error)).split())


def line_of(result: Result) -> str:
    """A result in one line."""
    metrics = [
        f"{name} {value:.4g}"
        for name, value in (result.history[-1] if result.history else {}).items()
        if name not in ("seconds", "samples", "bytes") and value is not None
    ]
    found = f"{result.strategy}, {result.samples:,} samples in {result.seconds:.1f} s, ended by {result.stopped}"
    return ", ".join([found, *metrics])

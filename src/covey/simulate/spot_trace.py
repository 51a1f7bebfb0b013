"""A trace of spot machines: which worker's machine arrives and departs when, and with how much notice."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from covey.decoding import named_text
from covey.errors import PlanError, WireError
from covey.names import option
from covey.simulate.faults import Fault, FaultPlan
from covey.simulate.units import AT_ONCE, Seconds, parse_duration

TraceEvent = Literal["arrive", "depart"]
HEADER = ("time", "worker", "event", "notice")
EXAMPLE = "20s,1,depart,2s"


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line: at this time the machine of a worker arrives, or departs after a notice."""

    at: Seconds
    worker: int
    event: TraceEvent
    notice: Seconds = AT_ONCE  # how long before it departs that is known

    def fault(self) -> Fault:
        """What it does to a run in which workers come and go; a trace may be longer than the run."""
        who = (f"worker {self.worker}",)
        if self.event == "arrive":
            return Fault(kind="join", who=who, at=self.at, optional=True)
        if self.notice:
            return Fault(kind="notice", who=who, at=Seconds(self.at - self.notice), lasts=self.notice, optional=True)
        return Fault(kind="leave", who=who, at=self.at, optional=True)


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """All lines of a trace, in the order of time."""

    lines: tuple[TraceLine, ...]

    @property
    def workers(self) -> set[int]:
        """Those whose machines come and go; all others are on machines that stay."""
        return {line.worker for line in self.lines}

    @property
    def absent(self) -> set[int]:
        """Those whose machines arrive after the beginning."""
        firsts = {line.worker: line for line in reversed(self.lines)}
        return {worker for worker, line in firsts.items() if line.event == "arrive" and line.at > 0}

    def seconds_present(self, seconds: float) -> dict[int, float]:
        """For how long each machine is there, in so many seconds: until it departs, also if its worker left before."""
        absent, found = self.absent, dict.fromkeys(self.workers, 0.0)
        since = {worker: 0.0 for worker in found if worker not in absent}  # of those that are there
        for line in self.lines:
            if line.event == "depart" and line.worker in since:
                found[line.worker] += max(0.0, min(line.at, seconds) - since.pop(line.worker))
            elif line.event == "arrive":
                since[line.worker] = line.at
        for worker, at in since.items():
            found[worker] += max(0.0, seconds - at)
        return found

    def departures(self, seconds: float) -> int:
        """How many machines depart, or are told so, in so many seconds."""
        return sum(line.event == "depart" and line.at - line.notice < seconds for line in self.lines)

    def fewest(self, workers: int) -> int:
        """The smallest number of workers that are there at once; who has a notice may go when it comes."""
        changes = [
            (line.at - line.notice, -1) if line.event == "depart" else (line.at, 1)
            for line in self.lines
            if line.event == "depart" or line.at  # who arrives at the beginning is there
        ]
        there = accumulate((by for _, by in sorted(changes)), initial=workers - len(self.absent))
        return max(0, min(there))

    def plan(self, begins_full: bool = False) -> FaultPlan:
        """The same as a plan of faults; a run that `begins_full` lets workers go at once that are to come later."""
        there = {line for line in self.lines if line.event == "arrive" and not line.at}
        first = [TraceLine(AT_ONCE, worker, "depart") for worker in sorted(self.absent)] if begins_full else []
        return FaultPlan(tuple(line.fault() for line in (*first, *self.lines) if line not in there))


def load_trace(path: str | PathLike[str]) -> SpotTrace:
    """Read a trace from a file of comma-separated values."""
    try:
        text = named_text(Path(path))
    except (OSError, WireError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise PlanError(f"{option('spot_trace', path)}: the file cannot be read: {why}") from None
    return read_trace(text, option("spot_trace", path))


def read_trace(text: str, name: str = "the trace") -> SpotTrace:
    """The trace that a text describes; empty lines, and those that begin with #, say nothing."""
    written = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"]
    columns = tuple(cell.strip() for cell in written[0][1].split(",")) if written else ()
    if columns not in (HEADER, HEADER[:3]):
        raise PlanError(
            f"{name}: the first line must be the header '{','.join(HEADER)}'; the lines below it have these columns"
        )
    lines: list[TraceLine] = []
    latest: dict[int, TraceLine] = {}  # of each worker
    for number, line in written[1:]:
        try:
            found = _line(next(csv.reader([line])), len(columns))
            _follow(found, lines[-1:], latest.get(found.worker))
        except (PlanError, csv.Error) as error:
            raise PlanError(f"{name}, line {number}: {error}") from None
        lines.append(found)
        latest[found.worker] = found
    if not lines:
        raise PlanError(f"{name} has no line below its header; write for example '{EXAMPLE}'")
    return SpotTrace(tuple(lines))


def _line(cells: Sequence[str], columns: int) -> TraceLine:
    if not 3 <= len(cells) <= columns:
        raise PlanError(f"{len(cells)} values for {columns} columns; write for example '{EXAMPLE}'")
    at, worker, event, notice = [cell.strip() for cell in (*cells, "")][:4]
    if not (worker.isascii() and worker.isdigit() and len(worker) < 10):
        raise PlanError(f"{worker!r} is not the number of a worker, such as 1")
    kind = next((one for one in get_args(TraceEvent) if one == event), None)
    if kind is None:
        raise PlanError(f"{event!r} is neither arrive nor depart")
    if notice and kind == "arrive":
        raise PlanError(f"notice {notice}: only who departs is told before; leave it empty")
    found = TraceLine(parse_duration(at), int(worker), kind, parse_duration(notice) if notice else AT_ONCE)
    if found.notice > found.at:
        raise PlanError(f"a notice of {notice} before {at} would come before the run begins: write a shorter one")
    return found


def _follow(line: TraceLine, before: Sequence[TraceLine], earlier: TraceLine | None) -> None:
    """Refuse a line that cannot come after the one before it, or after the earlier one of its worker."""
    if before and line.at < before[0].at:
        raise PlanError("it is earlier than the line before: sort the lines by time")
    there = earlier.event == "arrive" if earlier else line.event == "depart"
    if there != (line.event == "depart"):
        raise PlanError(f"worker {line.worker} {'is there already' if there else 'is gone already'}")
    if earlier and line.at - line.notice < earlier.at:
        raise PlanError(f"the notice comes before worker {line.worker} arrives: write a shorter one")

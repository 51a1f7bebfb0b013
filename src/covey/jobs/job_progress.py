"""How far is a job, and how fast? What its records say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from covey.errors import WireError
from covey.jobs.job_command import JobRequest, length, likeness
from covey.jobs.job_log import KnownJob
from covey.observe import journal
from covey.observe.facts import JOURNAL, RecordFacts, read_facts
from covey.observe.journal import JournalEvent, JournalMoment, JournalScore
from covey.policy.sharing.flexps import parse_stages
from covey.policy.sharing.job_view import JobView

SETTLED = 1.0  # seconds after a change of workers, before which speeds are not measured
SHORTEST = 1.0  # seconds in which a speed can be measured


@dataclass(slots=True)
class JobProgress:
    """What is known of a job, of all of its starts."""

    done: float = 0.0
    total: float | None = None
    converges: bool = False
    servers: int = 1
    curve: dict[float, float] = field(default_factory=dict)
    speeds: dict[int, float] = field(default_factory=dict)
    rate: float | None = None  # samples per second, with the workers that it has now
    trains_since: float | None = None  # in its present start

    def look(self, runs: Path, job: KnownJob, packed: bool = False) -> None:
        """Read the newest record; what cannot be read says nothing."""
        self.trains_since = None
        try:
            newest = max(path for path in runs.iterdir() if not path.is_symlink())
            self._know(read_facts(newest))
            events = list(journal.read(newest / JOURNAL))
        except (OSError, ValueError, WireError):
            return
        self._take(events, job, packed)

    def _know(self, facts: RecordFacts) -> None:
        asked = facts.run
        steps, batch = asked.settings.get("steps"), asked.settings.get("batch_size")
        size = float(batch) if isinstance(batch, int | float) and 0 < batch < 1e12 else 1.0
        if isinstance(steps, list) and steps and all(isinstance(one, int) for one in steps):
            self.total = float(sum(steps)) * size
        self.converges = "until" in asked.settings or "patience" in asked.settings
        self.servers = max(1, asked.servers)

    def _take(self, events: Sequence[JournalEvent], job: KnownJob, packed: bool) -> None:
        for event in events:
            if isinstance(event, JournalScore):
                samples, loss = event.row.get("samples"), event.row.get("loss")
                if samples and loss is not None and isfinite(loss):
                    self.curve[float(samples)] = float(loss)
        moments = [event for event in events if isinstance(event, JournalMoment) and event.samples]
        if not moments:
            return
        self.done = float(moments[-1].samples)
        self.trains_since = next((one.at for one in moments if one.at > job.since and one.phase == "training"), None)
        steady = [one for one in moments if one.phase == "training" and one.at > job.changed + SETTLED]
        first = steady[0] if steady else moments[-1]
        seconds = moments[-1].at - first.at
        if seconds >= SHORTEST and job.workers and moments[-1].samples > first.samples:
            self.rate = (moments[-1].samples - first.samples) / seconds
            if not packed:
                self.speeds[job.workers] = self.rate

    def view(self, job: KnownJob, since: float, alike: JobsAlike | None = None) -> JobView:
        """The job, as a policy sees it; what was not measured yet is as it is of jobs that are alike."""
        alike = alike or JobsAlike()
        asked = job.request
        speeds = alike.speeds | self.speeds
        return JobView(
            name=job.name, arrived=asked.submitted, least=asked.least, most=asked.most, workers=job.workers,
            since=since, done=self.done, total=self.total or alike.total(asked), converges=self.converges,
            curve=tuple(sorted(self.curve.items())), speeds=tuple(sorted(speeds.items())), servers=self.servers,
            keepable=asked.kept, stages=parse_stages(asked.stages) if asked.stages else (),
        )  # fmt: skip


@dataclass(slots=True)
class JobsAlike:
    """What was measured of jobs that train alike."""

    speeds: dict[int, float] = field(default_factory=dict)
    per_length: dict[str, float] = field(default_factory=dict)  # samples of an epoch or a step, of the first job

    def add(self, request: JobRequest, known: JobProgress) -> None:
        self.speeds |= known.speeds
        if known.total:
            unit, many = length(request)
            self.per_length.setdefault(unit, known.total / many)

    def total(self, asked: JobRequest) -> float | None:
        """Samples of a job that was never started: of one that is alike, for as many epochs or steps."""
        unit, many = length(asked)
        per = self.per_length.get(unit)
        return None if per is None else per * many


def groups_alike(measured: Iterable[tuple[JobRequest, JobProgress]]) -> dict[tuple[str, ...], JobsAlike]:
    """Jobs that train alike, by what they have in common."""
    found: dict[tuple[str, ...], JobsAlike] = {}
    for request, progress in measured:
        found.setdefault(likeness(request), JobsAlike()).add(request, progress)
    return found

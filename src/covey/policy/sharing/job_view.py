"""What does a policy know? Of each job its limits, its progress and its speed; of the cluster its slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.policy.sharing.curve_fitting import Points, largest_fall, samples_to_converge, slaq_curve, speed_model

OFTEN = 8  # decisions in a slice, at most

Pair = frozenset[str]  # the names of two jobs that share slots


@dataclass(frozen=True, slots=True)
class JobStage:
    """A part of a job that wants a number of workers of its own (FlexPS)."""

    until: float  # the share of the job's samples at which it ends
    workers: int


@dataclass(slots=True)
class JobView:
    """A job that has arrived and not ended. Times are seconds, work is counted in samples; no policy changes it."""

    name: str
    arrived: float
    least: int = 1
    most: int = 1
    workers: int = 0  # now; 0: it waits, or is suspended
    since: float = 0.0  # when it was started or suspended last, or arrived
    done: float = 0.0
    total: float | None = None  # samples after which it ends at the latest
    converges: bool = False  # it may end before: when its loss hardly falls any more
    curve: Points = ()  # samples and loss
    speeds: tuple[tuple[int, float], ...] = ()  # workers, and samples per second: measured, or predicted
    servers: int = 1
    keepable: bool = True  # it can be suspended, and resumed
    stages: tuple[JobStage, ...] = ()

    def speed(self, workers: int) -> float:
        """Samples per second with so many workers."""
        return speed_model(self.speeds)(workers) if workers else 0.0

    @property
    def left(self) -> float | None:
        """Samples until it ends, as far as that is known: until its loss hardly falls any more, or to its limit."""
        return self._left(samples_to_converge(self.curve, self.done) if self.converges else None)

    def _left(self, fitted: float | None) -> float | None:
        known = None if self.total is None else max(0.0, self.total - self.done)
        return known if fitted is None else fitted if known is None else min(known, fitted)

    @property
    def loss_curve(self) -> Callable[[float], float] | None:
        """The loss after so many samples, as SLAQ fits it; None where no curve can be fitted."""
        return slaq_curve(self.curve)

    @property
    def largest_fall(self) -> float:
        """Of the loss, between two of its scores."""
        return largest_fall(self.curve)

    @property
    def held(self) -> bool:
        """Whether it must go on running."""
        return bool(self.workers) and not self.keepable

    def clamped(self, workers: int) -> int:
        """The nearest number of workers that it can have."""
        return max(self.least, min(self.most, workers))


@dataclass(frozen=True, slots=True)
class JobsView:
    """All jobs at one moment; one slot is room for one worker."""

    now: float
    slots: int
    jobs: tuple[JobView, ...]
    slice: float = 60.0  # seconds that a job runs before others may have its slots
    packings: Mapping[Pair, float] = field(default_factory=dict)
    """What two jobs on the same slots did together, as measured: the sum of their speeds, each as a share of its speed
    alone. Below 1 they had better take turns."""

    @property
    def next_decision(self) -> float:
        """When a policy is asked next, if nothing happens before: when the slice of a job that runs is over."""
        over = [job.since + self.slice for job in self.jobs if job.workers and job.since + self.slice > self.now]
        return max(min(over, default=self.now + self.slice), self.now + self.slice / OFTEN)

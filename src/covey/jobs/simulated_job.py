"""A job of a rehearsal: the truth about it, and what a policy sees of that."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

from covey.jobs.job_sets import JobCurve, SetJob
from covey.policy.sharing.curve_fitting import (
    Points,
    largest_fall,
    optimus_curve,
    slaq_curve,
    speed_model,
    until_converged,
)
from covey.policy.sharing.flexps import parse_stages
from covey.policy.sharing.job_view import JobView, Pair

LIMIT = 2.0  # a job's limit of samples, in what it will need until it has converged
SEEN = 24  # points of a curve that a policy is shown


class ReplayedCurve:
    """A curve, and what is fitted to its first scores: once for all jobs that are like it."""

    def __init__(self, truth: JobCurve) -> None:
        self.samples, self.losses, self.compute = truth.samples, truth.losses, truth.compute
        self.table = truth.table
        self._model, self._speeds = speed_model(self.table), dict[int, float]()
        self._seen: dict[int, SeenCurve] = {}

    def speed(self, workers: int) -> float:
        """Samples per second with so many workers."""
        if workers not in self._speeds:
            self._speeds[workers] = self._model(workers)
        return self._speeds[workers]

    def worst(self, least: int, most: int) -> tuple[float, float]:
        """The most seconds for a sample, and the most of all workers together, with any number from least to most.

        Between measured numbers more workers are faster and cost more, so the first and last of those count.
        """
        measured = [workers for workers, _ in self.table if least <= workers <= most]
        first, last = least, most
        for workers in measured:
            first += workers == first
        for workers in reversed(measured):
            last -= workers == last
        among = [*measured, *(workers for workers in (first, last) if least <= workers <= most)]
        seconds = [1 / self.speed(workers) for workers in among]
        return max(seconds), max(map(operator.mul, seconds, among))

    def seen(self, scores: int) -> SeenCurve:
        """What can be known after so many scores."""
        if scores not in self._seen:
            chosen = range(scores - 1, -1, -max(1, math.ceil(scores / SEEN)))
            self._seen[scores] = SeenCurve(tuple((self.samples[i], self.losses[i]) for i in reversed(chosen)))
        return self._seen[scores]


class SeenCurve:
    """The first scores of a curve; its fits are made when they are asked for."""

    def __init__(self, points: Points) -> None:
        self.points, self.fall = points, largest_fall(points)

    @cached_property
    def optimus(self) -> tuple[float, float, float] | None:
        return optimus_curve(self.points)

    @cached_property
    def slaq(self) -> Callable[[float], float] | None:
        return slaq_curve(self.points)


class SimulatedJob(JobView):
    """What a policy sees of a job, which goes on with it: nothing is copied for a decision, and fits are kept."""

    __slots__ = (
        "_from", "_had", "_loss", "_next", "_seen", "_speeds", "asked", "ends", "first", "guessed", "needed",
        "pairs", "partner", "rate", "serial", "starts", "tried", "truth",
    )  # fmt: skip

    def __init__(self, asked: SetJob, truth: ReplayedCurve, guessed: dict[int, float], now: float) -> None:
        self.needed = truth.samples[-1] * asked.size  # samples
        super().__init__(
            asked.name, asked.arrives, asked.least, asked.most, since=now, converges=not asked.known,
            total=self.needed if asked.known else LIMIT * self.needed,
            stages=parse_stages(asked.stages) if asked.stages else (),
        )  # fmt: skip
        self.asked, self.truth, self.guessed = asked, truth, guessed
        self.partner, self.starts, self.serial = "", 0, 0
        self.first: float | None = None  # when it was started for the first time
        self.rate, self.ends = 0.0, math.inf  # samples per second; when it has all of them
        self.tried: set[int] = set()  # numbers of workers
        self.pairs: list[Pair] = []  # in which it was measured
        self._had, self._from = 0.0, now  # samples when it changed last, and since when it has trained
        self._next = truth.samples[0] * asked.size  # samples at which it is scored next
        self._loss: Callable[[float], float] | None = None
        self._measure()
        self._see()

    def advance(self, now: float) -> None:
        """Train until this time."""
        if now > self._from:
            self.done = self._had + self.rate * (now - self._from)
            if self.done >= self._next:
                self._see()

    def change(self, workers: int, partner: str, share: float, now: float, start: float) -> None:
        """Have so many workers from now on, and this share of their speed; starting takes a while."""
        begins = bool(workers) and not self.workers
        if begins:
            self.starts += 1
            self.first = now if self.first is None else self.first
        if begins or not workers:
            self.since = now + start if begins else now
        self._had, self._from = self.done, max(now, self.since)
        self.workers, self.partner = workers, partner
        self.rate = self.truth.speed(workers) * share if workers else 0.0
        self.ends = self._from + (self.needed - self.done) / self.rate if self.rate else math.inf
        self.serial += 1
        if workers and workers not in self.tried:
            self.tried.add(workers)
            self._measure()

    def speed(self, workers: int) -> float:
        """Samples per second with so many workers, as it was measured or predicted."""
        if workers not in self._speeds:
            self._speeds[workers] = speed_model(self.speeds)(workers) if workers else 0.0
        return self._speeds[workers]

    @property
    def left(self) -> float | None:
        """Samples until it ends, as far as that is known."""
        if not self.converges or (fit := self._seen.optimus) is None:
            return self._left(None)
        size = self.asked.size
        until = until_converged(fit, self.done / size)
        return self._left(None if until is None else until * size)

    @property
    def loss_curve(self) -> Callable[[float], float] | None:
        """The loss after so many samples, as SLAQ fits it."""
        if self._loss is None and (curve := self._seen.slaq) is not None:
            size = self.asked.size
            self._loss = lambda samples: curve(samples / size)
        return self._loss

    @property
    def largest_fall(self) -> float:
        """Of the loss, between two of its scores."""
        return self._seen.fall

    def _measure(self) -> None:
        """What was tried is known; the rest is predicted."""
        known = self.guessed | {workers: self.truth.speed(workers) for workers in self.tried}
        self.speeds = tuple(sorted(known.items()))
        self._speeds: dict[int, float] = dict(known)

    def _see(self) -> None:
        """Show the scores that it has passed."""
        truth, size = self.truth, self.asked.size
        passed = bisect_right(truth.samples, self.done / size)
        self._seen = truth.seen(passed)
        self._loss = None
        self.curve = tuple((samples * size, loss) for samples, loss in self._seen.points)
        self._next = truth.samples[passed] * size if passed < len(truth.samples) else math.inf

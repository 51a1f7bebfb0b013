"""Short runs in virtual time: how long a step takes, and how soon a target is reached."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

from covey.advise.candidates import ALONE, SYNCHRONOUS, Candidate
from covey.advise.pace import BatchPace
from covey.advise.predict import StepTime, period
from covey.advise.situation import Situation
from covey.advise.world import fastest
from covey.errors import CoveyError, PlanError, RoleFailed
from covey.observe.result import Result
from covey.run import fit
from covey.task import Task

T = TypeVar("T")

FEW_STEPS, MOST_STEPS = 8, 64  # of a timed run
EFFECTS = 1_500_000  # that a timed run of one strategy may have, about a minute
PASSES = 3  # over the data, to find a target where nobody gave one
FEWEST, MOST = 6, 12  # strategies that are trained
SLOWER = 2.0  # than one worker alone: nobody wants to know how much more
BEHIND = 1.3  # times the best so far: the same
AGAIN = 2  # further runs of the best of them
SCORES = 8  # in a pass over the data: how exactly the moment is known in which a target is reached
SPEND = 20.0  # seconds of this machine's own time that one run to the target may take
SAMPLES = 3.0  # times those of one worker alone that a run may take in any case: many workers need more of them


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """When runs came to the target, infinitely late where not in the time that a short run has; none: nobody ran."""

    times: tuple[float, ...] = ()
    samples: float | None = None  # of the first run
    tried: float = 0.0  # seconds of the first run, where it ended before the target

    @property
    def seconds(self) -> float | None:
        """The median; None where that is no time."""
        middle = median(self.times) if self.times else math.inf
        return middle if math.isfinite(middle) else None


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a strategy is trained."""

    steps: int  # of a worker
    seconds: float  # until the fastest has done them: what slow workers do alone afterwards is no longer the strategy
    fair: bool  # whoever is not at the target by then is late; if not, this machine only had no time for more


class SimulatedTrials:
    """Runs of one task on one cluster. `pace` is this machine's time for a batch, which says how long runs may be."""

    def __init__(self, task: Task | str, now: Situation, pace: float, seed: int = 0) -> None:
        self.task, self.now, self.pace, self.seed = task, now, max(pace, 1e-5), seed

    def timed(self, candidate: Candidate) -> StepTime | None:
        """A few steps without the model; None where that takes too long here, or cannot be."""
        steps = max(FEW_STEPS, min(MOST_STEPS, round(2 * period(candidate.strategy))))
        if 10 * steps * self.now.workers > EFFECTS:
            return None
        pace = BatchPace()
        try:
            result = self._run(candidate.spec, self.now, timing_only=True, steps=steps, instruments=[pace])
        except CoveyError:
            return None
        mine = [share for name, share in result.roles.items() if name.startswith("worker")]
        seconds = pace.step()
        mean = self.now.compute * sum(self.now.slownesses) / self.now.workers
        # what travels while a worker computes holds nobody up
        exchange = min(sum(share.exchange for share in mine) / len(mine) * seconds, max(0.0, seconds - mean))
        return StepTime(seconds=seconds, exchange=exchange, staleness=result.staleness.mean or 0.0)

    def alone(self, until: str | None) -> tuple[TrialTimes, str]:
        """The fastest worker by itself, to the target; where there is none, to its loss after some passes."""
        world = self._single()
        if until is None:
            passes = min(PASSES, self._passes())
            result = self._by_itself(lambda spec: self._run(spec, world, epochs=passes, seed=self.seed))
            losses = [loss for row in result.history if (loss := row.get("loss")) is not None]
            if not losses:
                raise PlanError("the task told no loss from which a target could be found: give one with --until")
            # a little above, as another order of the same samples ends a little elsewhere
            until = f"loss<={losses[-1] * 1.05:.4g}"
            return TrialTimes((result.seconds,), result.samples), until
        return self._plain(until), until

    def runs(self, alone: TrialTimes) -> int:
        """How many runs to the target there is time for."""
        batches = (alone.samples or self.now.samples * PASSES) / self.now.batch
        return max(FEWEST, min(MOST, int(SPEND / (2 * batches * self.pace))))

    def to_target(self, candidate: Candidate, until: str, limit: Limit, other: int = 0) -> TrialTimes:
        """A run with the real model; a strategy that cannot train it, or breaks off, does not come to the target."""
        try:
            reached = self._reached(candidate.spec, self.now, until, other, steps=limit.steps)
        except RoleFailed:
            raise
        except CoveyError:
            return TrialTimes((math.inf,))
        late = (reached.seconds or reached.tried) > limit.seconds
        return TrialTimes((math.inf,), tried=limit.seconds) if late else reached

    def again(self, candidate: Candidate, until: str, limit: Limit, first: TrialTimes) -> TrialTimes:
        """The same with other seeds: one run may be luck."""
        more = (self.to_target(candidate, until, limit, k + 1) for k in range(AGAIN))
        return replace(first, times=(*first.times, *(reached.times[0] for reached in more)))

    def limit(self, alone: TrialTimes, best: float | None, step: float) -> Limit:
        """In how many steps this strategy must come to the target to be of interest, as far as there is time.

        `best` is when another one did; `step` is that of the mean worker, and the fastest does more of them.
        """
        now = self.now
        samples = max(self._passes() * now.samples, SAMPLES * (alone.samples or 0.0))
        most = math.ceil(samples / now.batch / now.workers)
        times = [*([SLOWER * alone.seconds] if alone.seconds else []), *([BEHIND * best] if best else [])]
        quick = min(now.slownesses) * sum(1 / slow for slow in now.slownesses) / now.workers
        wanted = math.ceil(min(times) / (step * quick)) if times else most + 1
        steps = max(1, min(most, wanted))
        return Limit(steps, steps * step * quick, fair=wanted <= most)

    def alone_again(self, until: str, first: TrialTimes) -> TrialTimes:
        """The same of one worker alone."""
        more = (self._plain(until, k + 1) for k in range(AGAIN))
        return replace(first, times=(*first.times, *(reached.times[0] for reached in more)))

    def _plain(self, until: str, other: int = 0) -> TrialTimes:
        """One worker to the target."""
        world, passes = self._single(), self._passes()
        return self._by_itself(lambda spec: self._reached(spec, world, until, other, epochs=passes))

    def _by_itself(self, run: Callable[[str], T]) -> T:
        """A run of one worker, with the SPEC that takes this task."""
        try:
            return run(ALONE)
        except PlanError:  # such as a model with nn.SyncBatchNorm; what is wrong with the task is so here, too
            return run(SYNCHRONOUS)

    def _single(self) -> Situation:
        return replace(self.now, workers=1, cluster=fastest(self.now.cluster, self.now.workers)[0])

    def _passes(self) -> int:
        """Passes over the data for which there is time."""
        batches = self.now.samples / self.now.batch
        return max(1, min(100, int(SPEND / (batches * self.pace))))

    def _reached(self, spec: str, world: Situation, until: str, other: int = 0, **limit: int) -> TrialTimes:
        result = self._run(spec, world, until=until, seed=self.seed + other, scores=SCORES, **limit)
        if result.reached is None:
            return TrialTimes((math.inf,), tried=result.seconds)
        if not result.reached.samples:
            raise PlanError(f"--until {until}: the initial weights meet it already; choose one that takes training")
        return TrialTimes((result.reached.seconds,), result.reached.samples)

    def _run(self, spec: str, world: Situation, **given: Any) -> Result:
        result = fit(self.task, spec, world.workers, engine="simulated", cluster=world.world(spec), runs=False, **given)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        return result

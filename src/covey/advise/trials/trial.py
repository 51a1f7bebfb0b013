"""Short runs in virtual time: how long a step takes, and how many samples a strategy needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from covey.advise.candidates import ALONE, SYNCHRONOUS, Candidate
from covey.advise.pace import BatchPace
from covey.advise.predict import StepTime, period, round_to_periods
from covey.advise.situation import Situation
from covey.advise.trials.length import in_run_of
from covey.advise.trials.level import HeldLoss, Level, samples_to
from covey.advise.world import fastest
from covey.errors import CoveyError, PlanError, RoleFailed
from covey.model import build
from covey.observe.result import Result
from covey.run import fit
from covey.run.request import PATIENCE
from covey.scoring import eval_mode
from covey.task import Task, load_task

T = TypeVar("T")

SPEND = 45.0  # seconds of this machine's CPU time for all trials: with what comes before, a minute
FEW_STEPS, MOST_STEPS = 8, 65  # of a timed run; of a longer period there is one
EFFECTS = 1_500_000  # that a timed run of one strategy may have: about 10 seconds
PASSES = 3  # over the data, to find a target where nobody gave one
ALONE_SHARE = 0.2  # of the time that is to spend, for one worker alone to the target
EARLY = 0.4  # seconds of computing where the target takes longer than that, to a loss on the way
MANY = 5  # strategies for which there should be time to come to that loss
EARLIEST, LATEST = 12, 64  # batches of one worker alone to it: at least, and where there is time for more
POINTS = 8  # scores on the way
SLOWER = 2.0  # than one worker alone: nobody wants to know how much more
BEHIND = 1.3  # times the best so far: the same
WAITS = 1.05  # times: a step that is not longer than this many of its preparers waits for them
SCORES = 8  # in a pass over the data: how exactly the moment is known in which a target is reached
NOT_LEARNING = (
    "check the task's model, loss and learning rate: one worker alone does not learn, so several would not either"
)
SAMPLES = 3.0  # times those of one worker alone that a run may take in any case: many workers need more of them


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """A run to the level: samples of all workers until it was there; or how long it was tried."""

    samples: float = math.inf
    tried: float = 0.0  # seconds, where it ended before
    late: bool = False  # others are there long before; if not, this machine only had no time for more


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a strategy is trained."""

    steps: int  # of a worker
    seconds: float  # until the fastest has done them: what slow workers do alone afterwards is no longer the strategy
    fair: bool  # whoever is not at the target by then is late; if not, this machine only had no time for more


class SimulatedTrials:
    """Runs of one task on one cluster. `pace` is this machine's time for a batch, which says how long runs may be.

    `epochs` is the length of the run that the advice is for, over which schedules are spread: that of a run to a target
    unless given.
    """

    def __init__(
        self, task: Task | str, now: Situation, pace: float, seed: int = 0, spend: float = SPEND,
        epochs: int | None = None, until: float | None = None,
    ) -> None:  # fmt: skip
        self.task = load_task(task) if isinstance(task, str) else task
        self.epochs = epochs or PATIENCE
        self.until = math.inf if until is None else until  # of the monotonic clock: no trial begins after it
        self.now, self.pace, self.seed, self.spend = now, max(pace, 1e-5), seed, spend
        self._began = time.process_time()

    @property
    def late(self) -> bool:
        """Whether no further trial may begin."""
        return time.monotonic() >= self.until

    @property
    def left(self) -> float:
        """Seconds of CPU time."""
        return self.spend - (time.process_time() - self._began)

    def timed(self, candidate: Candidate) -> StepTime | None:
        """A few steps without the model; None where that takes too long here, or cannot be."""
        wanted = max(FEW_STEPS, min(MOST_STEPS, 1 + round(2 * period(candidate.strategy))))
        steps = round_to_periods(candidate.strategy, wanted, 1)
        if 10 * steps * self.now.workers > EFFECTS:
            return None
        pace = BatchPace()
        try:
            given: dict[str, Any] = {"timing_only": True, "steps": steps, "instruments": [pace]}
            result = self._run(self.task, candidate.spec, self.now, **given)
        except CoveyError:
            return None
        seconds = pace.step() or result.seconds / steps
        exchange = seconds * _waiting(result)
        if self.now.reading:  # of which a part may be waiting for whose samples came later: that is no exchange
            near = replace(self.now, cluster=replace(self.now.cluster, backend=None), far=None)
            bare = self._run(self.task, candidate.spec, near, **{**given, "instruments": []})
            exchange = bare.seconds / steps * _waiting(bare)
        if seconds < WAITS * self.now.prepared_every:  # workers wait for their batches: exchange is hidden by that
            exchange = 0.0
        return StepTime(seconds=seconds, exchange=exchange, staleness=result.staleness.mean or 0.0)

    def level(self, until: str | None) -> tuple[Level, str | None]:
        """What strategies are trained to, with one worker alone; and the target, where that was found here."""
        passes = self._passes()
        if until is None and passes:
            result = self._alone(self.task, epochs=min(PASSES, passes, self.epochs), seed=self.seed)
            losses = [loss for row in result.history if (loss := row.get("loss")) is not None]
            if not losses:
                raise PlanError("the task told no loss from which a target could be found: give one with --until")
            if not math.isfinite(losses[-1]):
                raise PlanError(f"{NOT_LEARNING}: its loss is {losses[-1]} after {result.samples} samples")
            # a little above, as another order of the same samples ends a little elsewhere
            until = f"loss<={losses[-1] + 0.05 * abs(losses[-1]):.4g}"
        if until is not None and passes:
            result = self._alone(self.task, until=until, epochs=min(passes, self.epochs), seed=self.seed, scores=SCORES)
            if result.reached is not None:
                if not result.reached.samples:
                    met = f"--until {until}: the initial weights meet it already; choose one that takes training"
                    raise PlanError(met)
                at, samples = result.reached, samples_to(result)
                seconds = at.seconds * samples / at.samples
                return Level(task=self.task, until=until, scores=SCORES, samples=samples, seconds=seconds), until
        return self._early(), until

    def _early(self) -> Level:
        """The loss on a few batches that one worker alone comes to in a short time."""
        batch, deal = self.now.batch, build.shards(self.task, 1, self.seed)
        for_many = round(self.left / (1 + MANY * self.now.workers) / self.pace)  # n workers need n times the samples
        steps = max(EARLIEST, min(for_many, LATEST), round(EARLY / self.pace))
        task = replace(self.task, evaluate=HeldLoss(self.task, deal))
        scores = max(1, round(self.now.samples * POINTS / (steps * batch)))
        result = self._alone(task, steps=steps, seed=self.seed, scores=scores)
        rows = [(row["samples"], row["seconds"], row["loss"]) for row in result.history]
        reached = min((loss for _, _, loss in rows if loss is not None), default=math.nan)
        aim = f"{reached + 0.02 * abs(reached):.4g}"
        samples, seconds = next(
            ((count or 0, at or 0.0) for count, at, loss in rows if loss is not None and loss <= float(aim)), (0, 0.0)
        )
        if not samples or not math.isfinite(reached):
            raise PlanError(f"{NOT_LEARNING} in its first steps")
        return Level(
            task=task, until=f"loss<={aim}", scores=scores, samples=samples, seconds=seconds, exact=False
        )  # fmt: skip

    def again(self, level: Level, turn: int) -> float:
        """Samples of one worker alone to the level, with another seed; infinitely many where it does not come there."""
        steps = math.ceil(SAMPLES * level.samples / self.now.batch)
        wanted: dict[str, Any] = {"until": level.until, "steps": steps, "scores": level.scores}
        return samples_to(self._alone(level.task, seed=self.seed + turn, **wanted)) or math.inf

    def train(self, candidate: Candidate, level: Level, limit: Limit, turn: int = 0) -> TrialOutcome:
        """A run with the real model; a strategy that cannot train it, or breaks off, does not come to the level."""
        wanted: dict[str, Any] = {"until": level.until, "steps": limit.steps, "scores": self._scores(level)}
        try:
            result = self._run(level.task, candidate.spec, self.now, seed=self.seed + turn, **wanted)
        except RoleFailed:
            raise
        except CoveyError:
            return TrialOutcome(late=True)
        at = result.reached
        if at and not at.samples:
            return TrialOutcome()  # the initial weights of this seed are there already: that says nothing
        if not level.exact:  # it says little of the target: nobody is late; who is not there needs at least as many
            return TrialOutcome(samples_to(result)) if at else TrialOutcome(result.samples, tried=result.seconds)
        if (at.seconds if at else result.seconds) > limit.seconds or (at is None and limit.fair):
            return TrialOutcome(tried=min(limit.seconds, result.seconds), late=True)
        return TrialOutcome(samples=samples_to(result)) if at else TrialOutcome(tried=result.seconds)

    def _scores(self, level: Level) -> int:
        """In a pass over the data: fewer where n workers need n times the samples of one, to a loss on the way."""
        return level.scores if level.exact else max(1, 2 * level.scores // self.now.workers)

    def limit(self, level: Level, best: float | None, step: float) -> Limit:
        """In how many steps this strategy must come to the level to be of interest, as far as there is time.

        `best` is when another one did; `step` is that of the mean worker, and the fastest does more of them.
        """
        now = self.now
        # At first all workers learn the same: n of them need n times the samples of one to a loss on the way.
        many = max(1.0, math.sqrt(now.workers) / 2) if level.exact else now.workers / 2
        most = math.ceil(SAMPLES * many * level.samples / now.batch / now.workers)
        wanted_by = min(SLOWER * level.seconds, BEHIND * best if best else math.inf)
        quick = min(now.slownesses) * sum(1 / slow for slow in now.slownesses) / now.workers
        wanted = math.ceil(wanted_by / (step * quick))
        last = self._last_step(now.workers)
        steps = max(1, min(most, wanted, last))
        return Limit(steps, steps * step * quick, fair=min(wanted, last) <= most)

    def _last_step(self, workers: int) -> int:
        """Of each worker, in a run of the length that the advice is for."""
        return max(1, int(self.epochs * self.now.samples / self.now.batch / workers))

    def _passes(self) -> int:
        """Passes over the data, with their scores, for which one worker alone has time."""
        share, computing = ALONE_SHARE * self.spend, self.now.samples / self.now.batch * self.pace
        if self.task.evaluate is None or computing > share:
            return int(share / computing)
        model, before = build.model(self.task, self.seed), time.thread_time()
        with suppress(Exception), eval_mode(model):  # what is wrong with it, a run tells better
            self.task.evaluate(model)
        return int(share / (computing + SCORES * (time.thread_time() - before)))

    def _alone(self, task: Task, **given: Any) -> Result:
        """A run of the fastest worker by itself."""
        world = replace(self.now, workers=1, cluster=fastest(self.now.cluster, self.now.workers)[0])
        return self._by_itself(lambda spec: self._run(task, spec, world, **given))

    def _by_itself(self, run: Callable[[str], T]) -> T:
        """A run of one worker, with the SPEC that takes this task."""
        try:
            return run(ALONE)
        except PlanError:  # such as a model with nn.SyncBatchNorm; what is wrong with the task is so here, too
            return run(SYNCHRONOUS)

    def _run(self, task: Task, spec: str, world: Situation, **given: Any) -> Result:
        if "steps" in given and not given.get("timing_only"):
            given["steps"] = min(given["steps"], self._last_step(world.workers))
        passes = given.get("epochs") or given["steps"] * world.workers * self.now.batch / self.now.samples
        result = fit(
            in_run_of(self.epochs, task, passes), spec, world.workers, engine="simulated", cluster=world.world(spec),
            runs=False, **given,
        )  # fmt: skip
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        return result


def _waiting(result: Result) -> float:
    """The share of the time in which workers do not compute."""
    mine = [share for name, share in result.roles.items() if name.startswith("worker")]
    return sum(1 - share.compute for share in mine) / len(mine)

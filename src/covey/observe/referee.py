"""When is the model scored, and is the run over? Pure logic that every engine asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any, NamedTuple

import msgspec

from covey.errors import PlanError, UnknownMetric
from covey.names import meant, option
from covey.observe.crossing import Crossing, crossing, value_of
from covey.observe.progress import MEASURED, Row
from covey.observe.scoring_steps import ScoringSteps
from covey.observe.tally import MOST
from covey.target import Better, Target


class TargetReached(msgspec.Struct, frozen=True):
    """When the target was met: by the first score that does so, or between that and the score before it."""

    metric: str
    target: float
    seconds: float
    samples: int


class BestScore(msgspec.Struct, frozen=True):
    """The best score of a metric, and when it was."""

    metric: str
    value: float
    seconds: float
    samples: int


class Preference(NamedTuple):
    """Which score is the best, and how many scores without a better one end the run."""

    metric: str
    way: Better
    patience: int | None = None

    def better(self, value: float, best: BestScore | None) -> bool:
        if best is None or isnan(value):
            return not isnan(value)
        return value > best.value if self.way == "higher" else value < best.value


class Referee:
    """Asks for scores, and ends the run at the target, when `confirm` scores in a row have met it.

    Scores are due after certain steps where workers take theirs together, else after every `every` samples of the whole
    run. The end of the run, after `total` samples if it has them all, is scored in any case: it is not asked for here.
    With `confirm` above 1 the target was reached between two scores.
    """

    told: Callable[[Row, dict[str, float]], None] = staticmethod(lambda row, measured: None)
    """Hears of each line of history, and of what covey has measured beside it."""
    bettered: Callable[[BestScore], None] = staticmethod(lambda best: None)
    """Hears of each score that is better than all before it, while that model is at hand."""
    interval: float | None = None  # seconds between two scores, where these count and not samples
    prefers: Preference | None = None
    best: BestScore | None = None
    follows = ""  # the metric that a scheduler of the task follows
    pause: int | None = None  # samples at which the run is kept, and ends for now
    known = -1  # samples up to which an earlier attempt at this run has told its scores

    def __init__(
        self, every: int, target: Target | None = None, total: int | None = None, confirm: int = 1,
        steps: ScoringSteps | None = None,
    ) -> None:  # fmt: skip
        if every < 1:
            raise PlanError(f"the model cannot be scored every {every} samples: at least 1 is needed")
        self.every = every
        self.target, self.total, self.confirm, self.steps = target, total, confirm, steps
        self.history: list[Row] = []
        self.reached: TargetReached | None = None
        self._next = every
        self._step = 0  # after which the model was last scored

    def metrics(self) -> dict[str, float]:
        """What the last score said."""
        ours = ("seconds", "samples", "bytes", "loss", "training_loss")
        row = self.history[-1] if self.history else {}
        return {name: float(value) for name, value in row.items() if name not in ours and value is not None}

    def resume(self, kept: Any) -> None:
        """Go on with the history of a run that was kept."""
        history = msgspec.convert(kept, list[Row])
        for row in history:
            _check(row)
        self.history = history
        done = int(history[-1]["samples"] or 0) if history else 0
        self._next = (done // self.every + 1) * self.every
        self._step = self.steps.at(done) if self.steps else 0

    @property
    def followed(self) -> float | None:
        """What a scheduler hears of the last score; None where none follows it."""
        if not self.follows or not self.history:
            return None
        self._check_metric(self.follows, f"Task: schedule_by={self.follows!r}")
        return value_of(self.history[-1], self.follows)

    @property
    def furthest(self) -> int:
        """The samples up to which scores have been told, by this attempt or by an earlier one."""
        return max(self.known, int(self.history[-1]["samples"] or 0) if self.history else -1)

    def due(self, samples: int, seconds: float = 0.0) -> bool:
        """Whether the run has seen enough samples, or trained long enough, since the last score; never by steps."""
        if self.interval is not None:
            last = float(self.history[-1]["seconds"] or 0) if self.history else 0.0
            enough = seconds >= last + self.interval
        else:
            enough = self.steps is None and samples >= self._next
        return enough and (self.total is None or samples < self.total)

    @property
    def next_step(self) -> int | None:
        """The step before which all workers are to be when the model is scored next; None where steps do not count."""
        return self.steps.after(self._step) if self.steps else None

    def passed(self, step: int) -> None:
        """The model of this step is scored."""
        self._step = step

    def judge(self, seconds: float, samples: int, bytes: int, metrics: Mapping[str, float], loss: float) -> bool:
        """Write a line of history; True when the target is reached. Beside a metric `loss` ours is `training_loss`.

        At the end of a run the model may have changed since a score after as many samples: that line is replaced.
        """
        measured = {name: value for name, value in metrics.items() if name.startswith(MEASURED)}
        metrics = {name: value for name, value in metrics.items() if name not in measured}
        if self.history and self.history[-1]["samples"] == samples:
            row = self.history.pop()
            before = row.get("training_loss", row["loss"])
            loss = loss if before is None or not isnan(loss) else before
        scores = {**metrics, "training_loss" if "loss" in metrics else "loss": loss}
        self.history.append({"seconds": seconds, "samples": samples, "bytes": bytes, **scores})
        if samples > self.known:
            self.told(self.history[-1], {name.removeprefix(MEASURED): value for name, value in measured.items()})
        self._next = (samples // self.every + 1) * self.every
        self._prefer()
        if self.target is None:
            return False
        self._check_metric(self.target.metric, f"the target {self.target}")
        if not self._confirmed(self.target):
            return False
        if self.reached is None:
            self.reached = TargetReached(self.target.metric, self.target.value, *self._crossed(self.target))
        return True

    def _confirmed(self, target: Target) -> bool:
        latest = self.history[-self.confirm :]
        return len(latest) == self.confirm and all(target.reached(value_of(row, target.metric)) for row in latest)

    def _crossed(self, target: Target) -> Crossing:
        first = len(self.history) - self.confirm
        before = self.history[first - 1] if first and self.confirm > 1 else None
        return crossing(before, self.history[first], target)

    def _prefer(self) -> None:
        """Compare the last score with the best one."""
        if self.prefers is None:
            return
        metric, row = self.prefers.metric, self.history[-1]
        self._check_metric(metric, option("best", metric))
        if self.prefers.better(value := value_of(row, metric), self.best):
            self.best = BestScore(metric, value, float(row["seconds"] or 0), int(row["samples"] or 0))
            self.bettered(self.best)

    @property
    def exhausted(self) -> bool:
        """Whether the metric has not become better for as many scores as the run has patience."""
        if self.prefers is None or self.prefers.patience is None or self.best is None:
            return False
        since = [row for row in self.history if int(row["samples"] or 0) > self.best.samples]
        return len(since) >= self.prefers.patience

    @property
    def paused(self) -> bool:
        """Whether the model was scored at the point where the run is to pause."""
        return self.pause is not None and bool(self.history) and int(self.history[-1]["samples"] or 0) >= self.pause

    def _check_metric(self, metric: str, asked: str) -> None:
        scores = self.history[-1].keys() - {"seconds", "samples", "bytes"}
        if metric not in scores:
            what = meant(metric, sorted(scores))
            raise UnknownMetric(f"{asked} names no metric that evaluate or training gives{what}")


def _check(row: Row) -> None:
    """Refuse, with a ValueError, what no score can have written; metrics may be infinite, or no numbers."""
    counted = [row.get(name) for name in ("seconds", "samples", "bytes")]
    large = [value for value in row.values() if isinstance(value, int) and abs(value) >= MOST]
    if large or "loss" not in row or not all(value is not None and 0 <= value < MOST for value in counted):
        raise ValueError("a line of its history is missing")

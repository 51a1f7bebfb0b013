"""When is the model scored, and is the run over? Pure logic that every engine asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import msgspec

from covey.errors import PlanError
from covey.names import meant
from covey.observe.progress import MEASURED, Row
from covey.observe.tally import MOST
from covey.target import Target


class TargetReached(msgspec.Struct, frozen=True):
    """When the target was met for the first time."""

    metric: str
    target: float
    seconds: float
    samples: int


class Referee:
    """Asks for a score after every `every` samples of the whole run, and ends the run at the target.

    The end of the run, after `total` samples if it has them all, is scored in any case: it is not asked for here.
    """

    told: Callable[[Row, dict[str, float]], None] = staticmethod(lambda row, measured: None)
    """Hears of each line of history, and of what covey has measured beside it."""

    def __init__(self, every: int, target: Target | None = None, total: int | None = None) -> None:
        if every < 1:
            raise PlanError(f"the model cannot be scored every {every} samples: at least 1 is needed")
        self.every = every
        self.target, self.total = target, total
        self.history: list[Row] = []
        self.reached: TargetReached | None = None
        self._next = every

    def metrics(self) -> dict[str, float]:
        """What the last score said."""
        ours = ("seconds", "samples", "bytes", "loss")
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

    def due(self, samples: int) -> bool:
        """Whether the run has seen enough samples since the last score."""
        return samples >= self._next and (self.total is None or samples < self.total)

    def judge(self, seconds: float, samples: int, bytes: int, metrics: Mapping[str, float], loss: float) -> bool:
        """Write a line of history; True when the target is reached. A metric `loss` of the user's goes before ours.

        At the end of a run the model may have changed since a score after as many samples: that line is replaced.
        """
        measured = {name: value for name, value in metrics.items() if name.startswith(MEASURED)}
        metrics = {name: value for name, value in metrics.items() if name not in measured}
        if self.history and self.history[-1]["samples"] == samples:
            before = self.history.pop()["loss"]
            loss = loss if before is None or not isnan(loss) else before
        scores = {**metrics, "loss": metrics.get("loss", loss)}
        self.history.append({"seconds": seconds, "samples": samples, "bytes": bytes, **scores})
        self.told(self.history[-1], {name.removeprefix(MEASURED): value for name, value in measured.items()})
        self._next = (samples // self.every + 1) * self.every
        if self.target is None or not self.target.reached(self._aimed_at(self.target, scores)):
            return False
        if self.reached is None:
            self.reached = TargetReached(self.target.metric, self.target.value, seconds, samples)
        return True

    def _aimed_at(self, target: Target, scores: Mapping[str, float]) -> float:
        if target.metric not in scores:
            what = meant(target.metric, sorted(scores))
            raise PlanError(f"the target {target} names no metric that evaluate or training gives{what}")
        return scores[target.metric]


def _check(row: Row) -> None:
    """Refuse, with a ValueError, what no score can have written; metrics may be infinite, or no numbers."""
    counted = [row.get(name) for name in ("seconds", "samples", "bytes")]
    large = [value for value in row.values() if isinstance(value, int) and abs(value) >= MOST]
    if large or "loss" not in row or not all(value is not None and 0 <= value < MOST for value in counted):
        raise ValueError("a line of its history is missing")

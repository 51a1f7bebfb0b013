"""To what are strategies trained? To the target; or, where that takes this machine too long, to a loss on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.model import build
from covey.observe.result import Result
from covey.scoring import eval_mode
from covey.task import Task

HELD = 2  # batches on which the loss is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a trial trains to, how often it is scored on the way, and when one worker alone is there."""

    task: Task
    until: str
    scores: int  # in a pass over the data
    samples: float  # of one worker alone
    seconds: float  # of one worker alone, in virtual time
    exact: bool = True  # it is the target itself

    @property
    def words(self) -> str:
        """What was compared, where that is not the target."""
        return "" if self.exact else f"{self.until} on some of the data, which one worker alone reaches early"


def samples_to(result: Result) -> float:
    """Samples until the target was met, between two scores in proportion; infinitely many where it was not."""
    at = result.reached
    if at is None:
        return math.inf
    scored = [(row["samples"] or 0, value) for row in result.history if (value := row.get(at.metric)) is not None]
    met = next(place for place, (count, _) in enumerate(scored) if count == at.samples)
    before, value = scored[met - 1] if met else (0, math.nan)
    way = (at.target - value) / (scored[met][1] - value) if scored[met][1] != value else 1.0
    return before + (at.samples - before) * (min(1.0, max(0.0, way)) if math.isfinite(way) else 1.0)


class HeldLoss:
    """The mean loss of a model on a few fixed batches: cheap, and the same for all strategies."""

    def __init__(self, task: Task, deal: Shards) -> None:
        self.task = task
        feed = Feed(build.data_of(task), deal, 0, replace(task.loading, loaders=0), device=build.device(task, 0))
        self.batches = [feed.take(deal.indices(0, step)) for step in range(HELD)]

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        with eval_mode(model), torch.no_grad():
            losses = [float(self.task.forward(model, batch)) for batch in self.batches]
        return {"loss": sum(losses) / len(losses)}

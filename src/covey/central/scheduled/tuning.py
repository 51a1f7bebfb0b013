"""ByteScheduler's partition and credit, found by measuring: Bayesian optimization over a small grid.

As Peng et al. 2019, with a Gaussian process over the logarithms of both and of the seconds of a step, and expected
improvement; the grid is theirs to choose from, in steps of a factor of 2 or 4. Worker 0 measures, and tells the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, log2
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from covey.message import Message
from covey.program import Node
from covey.strategy import workers

TOGETHER = (1, 4, 16)  # of the smallest slices
CREDITS = (1, 2, 4, 8, 16)  # partitions that may be on their way
TRIALS = 8  # settings that are tried, of a larger grid
TRIAL = 4  # steps of each; the first still has transfers of the one before
ALIKE = 1.02  # times that differ by less

SPREAD = 0.5  # by which settings may differ, before anything is known: of the logarithm of seconds
REACH = 2.0  # doublings over which they are alike
NOISE = 0.02  # of a trial


class Setting(NamedTuple):
    """How many of the smallest slices travel together, and how many bytes may be on their way."""

    together: int
    credit: int


class Tuned(Message):
    """Worker 0 has another setting."""

    wire_name = "tuning.tuned"

    together: int
    credit: int

    counted = False


class Tuning:
    """A worker's setting, which for all of them is worker 0's."""

    def __init__(self, node: Node, grid: Sequence[Setting], smallest: int) -> None:
        self.node, self.smallest = node, smallest
        self.search = TuningSearch(node, grid)
        self.now = node.remember("setting", list(grid[0])).value
        self.told = self.noted = False

    async def setting(self, step: int) -> Setting:
        """For the step that begins now."""
        now = await self.node.now()
        if len(self.search.grid) > 1:
            await (self.lead(step, now) if self.node.rank == 0 else self.follow())
        return Setting(*self.now)

    async def lead(self, step: int, now: float) -> None:
        found = self.search.next(now)
        if not self.told or list(found) != self.now:
            self.told, self.now[:] = True, found
            for rank in self.node.present(step)[1:]:
                await self.node.send(workers(self.node.workers)[rank], Tuned(*found), priority=1)
        if self.search.over and not self.noted:
            self.noted = True
            await self.node.note("credit", found.credit)
            await self.node.note("partition", found.together * self.smallest)

    async def follow(self) -> None:
        while word := self.node.receive_nowait(Tuned):
            self.now[:] = word.together, word.credit


class TuningSearch:
    """What is tried in which step, and how long that took."""

    def __init__(self, node: Node, grid: Sequence[Setting]) -> None:
        self.grid = grid
        self.steps: list[list[float]] = node.remember("trials", []).value  # the number of a setting, seconds
        self.trying = self.began = -1.0

    @property
    def over(self) -> bool:
        return len(self.steps) >= TRIAL * min(TRIALS, len(self.grid))

    def next(self, now: float) -> Setting:
        """The setting of the step that begins now, when the one before has ended."""
        if self.began >= 0 and not self.over:
            self.steps.append([self.trying, now - self.began])
        self.began = now
        if self.over:
            return self.found()
        if len(self.steps) % TRIAL == 0:
            self.trying = propose(self.grid, self.seconds())
        else:
            self.trying = self.steps[-1][0]
        return self.grid[int(self.trying)]

    def seconds(self) -> dict[int, float]:
        """How long a step takes with each setting that was tried."""
        trials = [self.steps[first : first + TRIAL] for first in range(0, len(self.steps), TRIAL)]
        return {int(trial[0][0]): median(taken for _, taken in trial[1:]) for trial in trials}

    def found(self) -> Setting:
        """Of all that are about as fast as any, the least credit: what has not left can still be overtaken."""
        seconds = self.seconds()
        alike = [self.grid[number] for number, taken in seconds.items() if taken <= ALIKE * min(seconds.values())]
        return min(alike, key=lambda setting: (setting.credit, -setting.together))


def propose(grid: Sequence[Setting], seconds: Mapping[int, float]) -> int:
    """The setting that was not tried yet of which most is expected: first one in the middle."""
    if not seconds:
        return len(grid) // 2
    rest = [number for number in range(len(grid)) if number not in seconds]
    gains = expected(_places(grid, list(seconds)), [log(max(s, 1e-9)) for s in seconds.values()], _places(grid, rest))
    return rest[int(gains.argmax())]


def expected(tried: Tensor, values: Sequence[float], others: Tensor) -> Tensor:
    """By how much each of the others is expected to lie below the least value, under a Gaussian process."""
    known = torch.tensor(values, dtype=torch.float64)
    inverse = torch.linalg.inv(_kernel(tried, tried) + NOISE**2 * torch.eye(len(known), dtype=torch.float64))
    across = _kernel(others, tried)
    mean = known.mean() + across @ inverse @ (known - known.mean())
    deviation = (SPREAD**2 - (across @ inverse * across).sum(1)).clamp_min(1e-12).sqrt()
    below = known.min() - mean
    normal = torch.distributions.Normal(0.0, 1.0)
    gain: Tensor = below * normal.cdf(below / deviation) + deviation * normal.log_prob(below / deviation).exp()
    return gain


def _kernel(ones: Tensor, others: Tensor) -> Tensor:
    return SPREAD**2 * torch.exp(-torch.cdist(ones, others).square() / (2 * REACH**2))


def _places(grid: Sequence[Setting], numbers: Sequence[int]) -> Tensor:
    found = [[log2(grid[number].together), log2(max(1, grid[number].credit))] for number in numbers]
    return torch.tensor(found, dtype=torch.float64)


def settings(
    together: Sequence[int], credits: Sequence[int], smallest: int, credit: int | None
) -> list[Setting]:  # fmt: skip
    """Every partition with every credit, which is counted in partitions unless it is given."""
    return [
        Setting(count, smallest * count * partitions if credit is None else credit)
        for count in together
        for partitions in credits
    ]

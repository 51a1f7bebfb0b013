"""Which corrections of a cluster explain how long real steps take? Least squares on logarithms, with a prior.

Several numbers are looked for with a few steps, so each is held near what was measured alone (ridge regression): a
correction is as large as what it explains is worth. What a strategy would have been foreseen to take, had its own step
not been known, follows from the same equations (leave one out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from covey.simulate import Cluster

Change = Callable[[Cluster, float], Cluster]
Measure = Callable[[str, Cluster], float | None]

NOISE = 0.07  # of real steps: the standard deviation of their logarithm
STEP, MOST = 0.5, 3.0  # of a correction, in units of its prior: to see what it does, and at most
ROUNDS, SHORTENED = 2, 3  # of linear problems; how often their answer is halved until it is better
WORTH = 0.05  # of the sum of squares, for which another round is made


@dataclass(frozen=True, slots=True)
class ClusterCorrection:
    """A number whose own measurement is not exact: `change` by 0 keeps it, by 1 moves it by its prior deviation."""

    change: Change
    least: float = -MOST  # 0: it can only add
    starts: tuple[float, ...] = (0.0,)  # from which the best is looked for, where what it changes saturates


@dataclass(slots=True)
class ClusterFit:
    """The corrections of a cluster, and what they explain."""

    cluster: Cluster
    corrections: Sequence[ClusterCorrection]
    real: Mapping[str, float]
    measure: Measure

    def corrected(self, sizes: Tensor) -> Cluster:
        cluster = self.cluster
        for correction, size in zip(self.corrections, sizes.tolist(), strict=True):
            cluster = correction.change(cluster, size)
        return cluster

    def residuals(self, sizes: Tensor) -> Tensor:
        """Logarithms of real steps over those that are foreseen, in units of their noise."""
        cluster = self.corrected(sizes)
        found = [(step, self.measure(spec, cluster)) for spec, step in self.real.items()]
        return torch.tensor([math.log(step / there) / NOISE if there else 0.0 for step, there in found]).double()

    def slopes(self, sizes: Tensor, residuals: Tensor) -> Tensor:
        """By how much each correction makes each residual smaller."""
        columns = []
        for number in range(len(sizes)):
            step = STEP if sizes[number] + STEP <= MOST else -STEP
            moved = sizes.clone()
            moved[number] += step
            columns.append((residuals - self.residuals(moved)) / step)
        return torch.stack(columns, dim=1)

    def solved(self) -> tuple[Cluster, dict[str, float]]:
        """The corrected cluster, and by how much each strategy would be off if it had not been measured."""
        sizes, residuals = self._begin()
        for _ in range(ROUNDS):
            slopes = self.slopes(sizes, residuals)
            better = self._better(sizes, residuals, slopes)
            if better is None:
                break
            before, (sizes, residuals) = _cost(sizes, residuals), better
            if _cost(sizes, residuals) > (1 - WORTH) * before:
                break
        apart = [NOISE * one for one in self._left_out(sizes, residuals, slopes)]
        return self.corrected(sizes), dict(zip(self.real, apart, strict=True))

    def _begin(self) -> tuple[Tensor, Tensor]:
        """The starts that explain most."""
        starts = [torch.tensor(one).double() for one in product(*(one.starts for one in self.corrections))]
        found = [(sizes, self.residuals(sizes)) for sizes in starts]
        return min(found, key=lambda one: _cost(*one))

    def _better(self, sizes: Tensor, residuals: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor] | None:
        """Sizes with a smaller sum of squares, and their residuals; None where none is found."""
        towards = self._bounded(slopes, residuals + slopes @ sizes)
        for _ in range(SHORTENED):
            found = self.residuals(towards)
            if _cost(towards, found) < _cost(sizes, residuals):
                return towards, found
            towards = (sizes + towards) / 2
        return None

    def _left_out(self, sizes: Tensor, residuals: Tensor, slopes: Tensor) -> Iterator[float]:
        """The residual of each strategy if the others alone had been fitted: from here they go where they fit best."""
        for number, spec in enumerate(self.real):
            rest = torch.arange(len(residuals)) != number
            others = replace(self, real={name: step for name, step in self.real.items() if name != spec})
            better = others._better(sizes, residuals[rest], slopes[rest])
            alone = replace(self, real={spec: self.real[spec]})
            yield float(alone.residuals(better[0])) if better else float(residuals[number])

    def _bounded(self, slopes: Tensor, wanted: Tensor) -> Tensor:
        """The best sizes of the linear problem: those below their least are there, and the others are found anew."""
        least = torch.tensor([correction.least for correction in self.corrections]).double()
        free = torch.ones(len(least), dtype=torch.bool)
        sizes = least.clone()
        for _ in self.corrections:
            rest = wanted - slopes[:, ~free] @ least[~free]
            sizes[free] = _ridge(slopes[:, free], rest)
            below = free & (sizes < least)
            if not below.any():
                break
            sizes[below] = least[below]
            free &= ~below
        return sizes.clamp(max=MOST)


def _ridge(slopes: Tensor, wanted: Tensor) -> Tensor:
    square = slopes.T @ slopes + torch.eye(slopes.shape[1], dtype=slopes.dtype)
    return torch.cholesky_solve((slopes.T @ wanted)[:, None], torch.linalg.cholesky(square))[:, 0]


def _cost(sizes: Tensor, residuals: Tensor) -> float:
    return float(residuals @ residuals + sizes @ sizes)

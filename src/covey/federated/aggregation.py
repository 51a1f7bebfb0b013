"""How do clients' updates become one? Each is a value that takes updates and gives their aggregate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.federated.rounds import RoundTerms, rounded_up
from covey.vector import Vector, mean

AggregationName = Literal["mean", "median", "trimmed_mean", "krum"]


class Aggregation(Protocol):
    """Takes the updates of one round; what it holds of them is gone when the round is."""

    def add(self, update: Vector, weight: float) -> None:
        """Another client's update, and the number of its samples."""

    def result(self) -> Vector:
        """The aggregate of all that were added."""


MakeAggregation = Callable[[int], Aggregation]
"""Makes one for the round of a number."""


class WeightedMean:
    """The mean of updates, each counting as many samples as its client has (McMahan et al. 2017).

    It holds one sum, whatever the number of clients.
    """

    def __init__(self) -> None:
        self._sum: Vector | None = None
        self._weight = 0.0

    def add(self, update: Vector, weight: float) -> None:
        if self._sum is None:
            self._sum = update * weight
        elif not update.hollow:  # of a run that is only timed
            self._sum.add_(update, alpha=weight)
        self._weight += weight

    def result(self) -> Vector:
        assert self._sum is not None, "a round without updates is not aggregated"
        return self._sum.mul_(1 / self._weight)


class RobustAggregation:
    """Holds all updates of a round and combines them without regard to their weights, which a client could invent."""

    def __init__(self, combine: Callable[[Sequence[Vector]], Vector]) -> None:
        self._combine = combine
        self._updates: list[Vector] = []

    def add(self, update: Vector, weight: float) -> None:
        self._updates.append(update)

    def result(self) -> Vector:
        return self._combine(self._updates)


def median(updates: Sequence[Vector]) -> Vector:
    """The median of each number; with an even count, the mean of the two in the middle (Yin et al. 2018)."""
    middle = (len(updates) - 1) // 2

    def of(stack_ND: Tensor) -> Tensor:
        ordered = stack_ND.sort(dim=0).values
        return ordered[middle : len(updates) - middle].mean(dim=0)

    return _each_number(updates, of)


def trimmed_mean(updates: Sequence[Vector], trim: float) -> Vector:
    """The mean of each number without at least the `trim` share at either end of its order (Yin et al. 2018).

    Of few updates one is more than that share, and is left out all the same: else the mean would withstand nothing.
    """
    cut = min(rounded_up(trim * len(updates)), (len(updates) - 1) // 2)
    return _each_number(updates, lambda stack_ND: stack_ND.sort(dim=0).values[cut : len(updates) - cut].mean(dim=0))


def krum(updates: Sequence[Vector], faulty: int, chosen: int = 1) -> Vector:
    """The mean of the `chosen` updates that are nearest to their n - faulty - 2 neighbours (Blanchard et al. 2017)."""
    neighbours = len(updates) - faulty - 2
    if neighbours < 1:
        raise PlanError(
            f"krum(faulty={faulty}) compares each update with n - {faulty} - 2 others, and a round has only "
            f"{len(updates)} reports: use a smaller faulty, or larger rounds"
        )
    flat_ND = torch.stack([torch.cat([part.reshape(-1).double() for part in update.parts]) for update in updates])
    distances_NN = torch.cdist(flat_ND, flat_ND).square()
    nearest_NK = distances_NN.sort(dim=1).values[:, 1 : neighbours + 1]  # the nearest of all is the update itself
    best = nearest_NK.sum(dim=1).argsort(stable=True)[:chosen].tolist()
    return mean([updates[number] for number in best], [1.0] * len(best))


def _each_number(updates: Sequence[Vector], of: Callable[[Tensor], Tensor]) -> Vector:
    pairs = zip(*(update.parts for update in updates), strict=True)
    return Vector(of(torch.stack(parts)) for parts in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationChoice:
    """Which aggregation a strategy has asked for.

    Args:
        name: Of the aggregation.
        trim: Of `trimmed_mean`: the share of updates that is left out at either end.
        faulty: Of `krum`: the number of clients in a round that may send anything.
        chosen: Of `krum`: the number of updates that are averaged.
    """

    name: AggregationName = "mean"
    trim: float = 0.1
    faulty: int = 1
    chosen: int = 1

    def check(self, terms: RoundTerms) -> None:
        """Refuse what the smallest round could not be aggregated with."""
        if self.name == "trimmed_mean" and not 0 <= self.trim < 0.5:
            raise PlanError(f"trim={self.trim:g}: less than half can be left out at either end: 0 to 0.49")
        least = 2 * self.faulty + 3  # Blanchard et al. 2017, proposition 4.2
        if self.name == "krum" and (self.faulty < 0 or self.chosen < 1 or terms.enough < least):
            raise PlanError(
                f"krum with faulty={self.faulty} and chosen={self.chosen} needs at least {least} reports in "
                f"every round, and {terms.enough} are enough here: use larger rounds or a smaller faulty"
            )
        if self.name == "krum" and self.chosen > terms.enough:
            raise PlanError(f"chosen={self.chosen}: a round may have only {terms.enough} reports")

    def make(self, number: int = 0) -> Aggregation:
        """One for the round of this number."""
        match self.name:
            case "mean":
                return WeightedMean()
            case "median":
                return RobustAggregation(median)
            case "trimmed_mean":
                return RobustAggregation(lambda updates: trimmed_mean(updates, self.trim))
            case "krum":
                return RobustAggregation(lambda updates: krum(updates, self.faulty, self.chosen))

"""A graph is data: how much each rank hears each other rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from covey.errors import PlanError

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Graph:
    """Row r says how much rank r hears every rank it listens to, itself included."""

    weights: Mapping[int, Mapping[int, float]]

    @property
    def ranks(self) -> list[int]:
        """Who takes part, in order."""
        return sorted(self.weights)

    @property
    def size(self) -> int:
        """How many take part."""
        return len(self.weights)

    def neighbours(self, rank: int) -> list[int]:
        """The other ranks that this one hears, in order."""
        return sorted(peer for peer in self.weights[rank] if peer != rank)

    def degree(self, rank: int) -> int:
        """How many other ranks this one hears."""
        return len(self.weights[rank]) - (rank in self.weights[rank])

    def weight(self, rank: int, peer: int) -> float:
        """How much `rank` hears `peer`; 0 for one it does not listen to."""
        return self.weights[rank].get(peer, 0.0)

    def without(self, ranks: Collection[int]) -> Graph:
        """The graph of those who remain; what was heard from the others goes to oneself."""
        gone = set(ranks)
        return Graph({r: _kept(r, row, gone) for r, row in self.weights.items() if r not in gone})

    def check(self) -> None:
        """Refuse a graph that would not bring the ranks to their common mean."""
        matrix = self.matrix()
        if (matrix < -TOLERANCE).any():
            raise PlanError("a graph's weights cannot be negative; use 0 for ranks that do not hear each other")
        for way, sums in (("hears", matrix.sum(axis=1)), ("is heard", matrix.sum(axis=0))):
            wrong = numpy.flatnonzero(abs(sums - 1) > TOLERANCE)
            if wrong.size:
                rank, total = self.ranks[wrong[0]], sums[wrong[0]]
                raise PlanError(f"rank {rank} {way} {total:.6g} in total; every row and column must sum to 1")
        islands = self.islands()
        if len(islands) > 1:
            raise PlanError(
                f"ranks {islands[0]} cannot reach ranks {islands[1]}; every rank must be linked to all others"
            )

    def islands(self) -> list[list[int]]:
        """The groups of ranks that are linked with each other, directly or not."""
        linked: dict[int, set[int]] = {rank: set() for rank in self.weights}
        for rank, row in self.weights.items():
            for peer, weight in row.items():
                if weight:
                    linked[rank].add(peer)
                    linked[peer].add(rank)
        islands, unseen = [], set(linked)
        while unseen:
            island = _reachable(linked, min(unseen))
            islands.append(sorted(island))
            unseen -= island
        return islands

    def matrix(self) -> NDArray[numpy.float64]:
        """The weights as a matrix, in the order of `ranks`."""
        place = {rank: index for index, rank in enumerate(self.ranks)}
        matrix = numpy.zeros((self.size, self.size))
        for rank, row in self.weights.items():
            for peer, weight in row.items():
                matrix[place[rank], place[peer]] = weight
        return matrix

    def gap(self) -> float:
        """How fast mixing reaches the mean: each round shrinks the distance by at least the factor 1 - gap."""
        if self.size == 1:
            return 1.0
        sizes = numpy.sort(abs(numpy.linalg.eigvals(self.matrix())))
        return float(1 - sizes[-2])


def _kept(rank: int, row: Mapping[int, float], gone: set[int]) -> dict[int, float]:
    lost = sum(weight for peer, weight in row.items() if peer in gone)
    kept = {peer: weight for peer, weight in row.items() if peer not in gone}
    return {**kept, rank: kept.get(rank, 0.0) + lost}


def _reachable(linked: Mapping[int, set[int]], start: int) -> set[int]:
    reached, edge = {start}, [start]
    while edge:
        for peer in linked[edge.pop()] - reached:
            reached.add(peer)
            edge.append(peer)
    return reached

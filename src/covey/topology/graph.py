"""A graph as data: the mixing weights between ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from covey.errors import PlanError

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Graph:
    """Row r says how much rank r hears every rank it listens to, itself included."""

    weights: Mapping[int, Mapping[int, float]]
    of_size: Callable[[int], Graph] | None = field(default=None, kw_only=True, compare=False, repr=False)

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

    def hearers(self, rank: int) -> list[int]:
        """The other ranks that hear this one, in order."""
        return sorted(peer for peer, row in self.weights.items() if peer != rank and rank in row)

    def weight(self, rank: int, peer: int) -> float:
        """How much `rank` hears `peer`; 0 for one it does not listen to."""
        return self.weights[rank].get(peer, 0.0)

    def at(self, step: int) -> Graph:
        """The graph of this step; most are the same at every step."""
        return self

    def without(self, ranks: Collection[int]) -> Graph:
        """The graph of those who remain; what was heard from the others goes to oneself."""
        gone = set(ranks)
        return Graph({r: _kept(r, row, gone) for r, row in self.weights.items() if r not in gone})

    def among(self, ranks: Sequence[int]) -> Graph:
        """A graph of the same kind for these ranks, which take its places in order.

        Where there is none for so few, everyone hears everyone equally.
        """
        if len(ranks) == self.size:
            return self
        try:
            assert self.of_size is not None, "only graphs with a name can be made anew"
            return self.of_size(len(ranks)).seated(ranks)
        except PlanError:
            return Graph({rank: dict.fromkeys(ranks, 1 / len(ranks)) for rank in ranks})

    def seated(self, ranks: Sequence[int]) -> Graph:
        """The same graph with these ranks in its places, in order."""
        return Graph({ranks[r]: {ranks[p]: weight for p, weight in row.items()} for r, row in self.weights.items()})

    def check(self) -> None:
        """Refuse a graph that would not bring the ranks to their common mean."""
        self._check_sums(hears="every row and column must sum to 1", heard="every row and column must sum to 1")
        self.check_mutual()

    def check_mutual(self) -> None:
        """Refuse a graph on which some rank is heard by one it does not hear, or has no way to another."""
        for rank, row in self.weights.items():
            for peer in row:
                if abs(self.weight(peer, rank) - self.weight(rank, peer)) > TOLERANCE:
                    raise PlanError(
                        f"rank {rank} and rank {peer} do not hear each other equally; only strategies that push along "
                        "directed graphs can use it, such as sgp"
                    )
        islands = self.islands()
        if len(islands) > 1:
            raise PlanError(
                f"ranks {islands[0]} cannot reach ranks {islands[1]}; every rank must be linked to all others"
            )

    def check_push(self) -> None:
        """Refuse a graph along which push-sum would not bring the ranks to their common mean."""
        for graph in self.phases:
            graph._check_sums(heard="what a rank gives away and keeps must sum to 1: every column")
        self.check_linked()

    def check_linked(self) -> None:
        """Refuse a graph on which some rank never hears of another, even through others."""
        heard = {rank: set(row) - {rank} for rank, row in self.weights.items()}
        hearers = {rank: set(self.hearers(rank)) for rank in self.weights}
        for way, linked in (("reach", hearers), ("hear of", heard)):
            missing = set(self.weights) - _reachable(linked, self.ranks[0])
            if missing:
                raise PlanError(f"rank {self.ranks[0]} can never {way} rank {min(missing)}, not even through others")

    @property
    def phases(self) -> Sequence[Graph]:
        """The graphs that take turns, step by step."""
        return [self]

    def sides(self) -> tuple[list[int], list[int]]:
        """The ranks in two halves, such that only ranks of different halves hear each other."""
        side: dict[int, int] = {}
        for start in self.ranks:
            edge = [] if start in side else [start]
            side.setdefault(start, 0)
            while edge:
                rank = edge.pop()
                for peer in {*self.neighbours(rank), *self.hearers(rank)}:
                    if peer not in side:
                        side[peer] = 1 - side[rank]
                        edge.append(peer)
                    elif side[peer] == side[rank]:
                        raise PlanError(
                            f"ranks {min(rank, peer)} and {max(rank, peer)} lie on a cycle of odd length, so the graph "
                            "has no two sides; over bipartite, chain, star or tree works, and so does a ring with an "
                            "even number of workers"
                        )
        return [r for r in self.ranks if side[r] == 0], [r for r in self.ranks if side[r] == 1]

    def _check_sums(self, *, heard: str, hears: str | None = None) -> None:
        place = {rank: index for index, rank in enumerate(self.ranks)}
        rows = [(place[rank], row) for rank, row in self.weights.items()]
        edges = [(rank, place[peer], weight) for rank, row in rows for peer, weight in row.items()]
        listeners, speakers, weights = numpy.array(edges, dtype=float).reshape(-1, 3).T
        if (weights < -TOLERANCE).any():
            raise PlanError("a graph's weights cannot be negative; use 0 for ranks that do not hear each other")
        for way, why, ends in (("hears", hears, listeners), ("is heard", heard, speakers)):
            sums = numpy.bincount(ends.astype(int), weights, self.size)  # a matrix of many ranks takes much memory
            wrong = numpy.flatnonzero(abs(sums - 1) > TOLERANCE)
            if why and wrong.size:
                rank, total = self.ranks[wrong[0]], sums[wrong[0]]
                raise PlanError(f"rank {rank} {way} {total:.6g} in total; {why}")

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


@dataclass(frozen=True, slots=True)
class Varying(Graph):
    """Several graphs that take turns; its own weights are their mean."""

    turns: tuple[Graph, ...]

    @staticmethod
    def of(turns: Sequence[Graph]) -> Varying:
        weights: dict[int, dict[int, float]] = {rank: {} for rank in turns[0].ranks}
        for graph in turns:
            for rank, row in graph.weights.items():
                for peer, weight in row.items():
                    weights[rank][peer] = weights[rank].get(peer, 0.0) + weight / len(turns)
        return Varying(weights, tuple(turns))

    def at(self, step: int) -> Graph:
        return self.turns[step % len(self.turns)]

    def seated(self, ranks: Sequence[int]) -> Graph:
        return Varying.of([graph.seated(ranks) for graph in self.turns])

    @property
    def phases(self) -> Sequence[Graph]:
        return self.turns


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

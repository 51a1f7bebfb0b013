"""dp: the best choice by eliminating nodes and edges until few are left (OptCNN, Jia et al. 2018).

A node between two others is replaced by an edge: for each choice of the two it knows its own best one. Parallel edges
are added up. What cannot be eliminated is tried in full; then the eliminated nodes choose, the last one first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

from covey.errors import PlanError
from covey.parallelism.search.cost_table import CostTable

Matrix = list[list[float]]
MOST_TRIED = 2_000_000
"""Choices of what cannot be eliminated: a minute's work."""


@dataclass(frozen=True, slots=True)
class Eliminated:
    """A node that chooses when its neighbours have chosen: `best[i][j]`; a leaf has one neighbour and one column."""

    node: int
    left: int
    right: int | None
    best: list[list[int]]


def eliminate(table: CostTable, check: Callable[[], None] = lambda: None) -> tuple[float, list[int]]:
    """The least total, and the choice of each node; equal to `exhaustive`. `check` is called often, and may raise."""
    run = _Elimination(table)
    while run.once():
        check()
    return run.finish(check)


class _Elimination:
    """What is left of a table, and what was eliminated."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.nodes = {number: list(costs) for number, costs in enumerate(table.nodes)}
        self.edges: dict[tuple[int, int], Matrix] = {}
        for (a, b), costs in table.edges.items():
            self._add(a, b, [list(row) for row in costs])
        self.done: list[Eliminated] = []

    def _add(self, a: int, b: int, costs: Matrix) -> None:
        """An edge; one that is there already is added to (edge elimination)."""
        if a > b:
            a, b, costs = b, a, [list(column) for column in zip(*costs, strict=True)]
        old = self.edges.get((a, b))
        self.edges[a, b] = costs if old is None else [
            [x + y for x, y in zip(mine, theirs, strict=True)] for mine, theirs in zip(old, costs, strict=True)
        ]  # fmt: skip

    def _matrix(self, a: int, b: int) -> Matrix:
        """The edge's costs, by the choice of `a` first."""
        if (a, b) in self.edges:
            return self.edges[a, b]
        return [list(column) for column in zip(*self.edges[b, a], strict=True)]

    def _neighbours(self, node: int) -> list[int]:
        return [b if a == node else a for a, b in self.edges if node in (a, b)]

    def once(self) -> bool:
        """Eliminate one node that has at most two neighbours; False when there is none."""
        for node in self.nodes:
            beside = self._neighbours(node)
            if len(beside) <= 2 and len(self.nodes) > 1:
                self._eliminate(node, beside)
                return True
        return False

    def _eliminate(self, node: int, beside: Sequence[int]) -> None:
        own = self.nodes.pop(node)
        if not beside:
            self.done.append(Eliminated(node, node, None, [[own.index(min(own))]]))
            return
        left = self._matrix(beside[0], node)
        if len(beside) == 1:
            best = [[_least(own, row)] for row in left]
            for place, row in enumerate(left):
                self.nodes[beside[0]][place] += own[best[place][0]] + row[best[place][0]]
            self.done.append(Eliminated(node, beside[0], None, best))
        else:
            right = self._matrix(beside[1], node)
            best = [[_least(own, row, other) for other in right] for row in left]
            costs = [
                [own[k] + left[i][k] + right[j][k] for j, k in enumerate(picked)] for i, picked in enumerate(best)
            ]
            self._add(beside[0], beside[1], costs)
            self.done.append(Eliminated(node, beside[0], beside[1], best))
        for edge in [edge for edge in self.edges if node in edge]:
            del self.edges[edge]

    def finish(self, check: Callable[[], None]) -> tuple[float, list[int]]:
        """Try what is left, and let the eliminated choose."""
        left = sorted(self.nodes)
        tried = prod(len(self.nodes[node]) for node in left)
        if tried > MOST_TRIED:
            raise PlanError(
                f"dp would try {tried:,} choices of {len(left)} operators that have more than two neighbours each: use "
                "--method mcmc"
            )
        least, picked = inf, dict[int, int]()
        for choice in product(*(range(len(self.nodes[node])) for node in left)):
            check()
            now = dict(zip(left, choice, strict=True))
            total = sum(self.nodes[node][now[node]] for node in left)
            total += sum(costs[now[a]][now[b]] for (a, b), costs in self.edges.items())
            if total < least:
                least, picked = total, now
        for gone in reversed(self.done):
            row = 0 if gone.left == gone.node else picked[gone.left]
            column = 0 if gone.right is None else picked[gone.right]
            picked[gone.node] = gone.best[row][column]
        whole = [picked[node] for node in range(len(self.table.nodes))]
        return self.table.total(whole), whole


def _least(own: Sequence[float], *beside: Sequence[float]) -> int:
    totals = [sum(costs) for costs in zip(own, *beside, strict=True)]
    return totals.index(min(totals))

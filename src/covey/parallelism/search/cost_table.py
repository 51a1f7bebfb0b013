"""The costs of all choices as tables: of each operator alone, and of each pair of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from covey.parallelism.search.costs import OperatorCosts
from covey.parallelism.search.operators import OperatorConfig


@dataclass(frozen=True)
class CostTable:
    """t_O of OptCNN: the sum over nodes and edges, given the number of the choice that each node makes."""

    nodes: Sequence[Sequence[float]]
    edges: Mapping[tuple[int, int], Sequence[Sequence[float]]]

    def total(self, choice: Sequence[int]) -> float:
        alone = sum(costs[picked] for costs, picked in zip(self.nodes, choice, strict=True))
        return alone + sum(costs[choice[a]][choice[b]] for (a, b), costs in self.edges.items())


def exhaustive(table: CostTable) -> tuple[float, list[int]]:
    """The least of all choices, by trying each: what other methods are held to."""
    best: tuple[float, list[int]] = inf, []
    for choice in product(*(range(len(costs)) for costs in table.nodes)):
        if (total := table.total(choice)) < best[0]:
            best = total, list(choice)
    return best


def cost_table(
    costs: OperatorCosts, choices: Sequence[Sequence[OperatorConfig]], check: Callable[[], None] = lambda: None
) -> CostTable:
    """A node for each group of alike operators, and an edge between groups that have neighbours in each other.

    `check` is called now and then, and may raise.
    """
    graph, owner = costs.graph, {}
    for number, group in enumerate(graph.groups):
        owner.update(dict.fromkeys(group, number))
    nodes = [
        [sum(costs.node(one, config) for one in group) for config in choices[number]]
        for number, group in enumerate(graph.groups)
    ]
    edges: dict[tuple[int, int], list[list[float]]] = {}
    for a, b in graph.edges:
        one, other = owner[a], owner[b]
        if one == other:
            for place, config in enumerate(choices[one]):
                nodes[one][place] += costs.edge(a, b, config, config)
            continue
        low, high = sorted((one, other))
        table = edges.setdefault((low, high), [[0.0] * len(choices[high]) for _ in choices[low]])
        for i, made in enumerate(choices[one]):
            check()
            for j, wanted in enumerate(choices[other]):
                row, column = (i, j) if one == low else (j, i)
                table[row][column] += costs.edge(a, b, made, wanted)
    return CostTable(nodes, edges)

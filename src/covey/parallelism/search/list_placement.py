"""Where to begin: each operator whole on one device, by its critical path (list scheduling, Mayer et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from covey.parallelism.search.costs import OperatorCosts
from covey.parallelism.search.operators import OperatorConfig


def critical_paths(costs: OperatorCosts) -> list[float]:
    """For each operator, the longest way from its beginning to the end, with messages in between."""
    graph, alone = costs.graph, OperatorConfig()
    found = [0.0] * len(graph)
    for number in reversed(range(len(graph))):
        sent = costs.devices.moved(graph.operators[number].output)
        rest = max((sent + found[after] for after in graph.after[number]), default=0.0)
        found[number] = sum(graph.operators[number].seconds(alone)) + rest
    return found


def placement(costs: OperatorCosts) -> list[int]:
    """The device of each operator: the one with the longest path goes first, to where it ends earliest."""
    graph, devices, paths = costs.graph, costs.devices, critical_paths(costs)
    place, ends, free = [0] * len(graph), [0.0] * len(graph), [0.0] * devices.count
    for number in sorted(range(len(graph)), key=lambda one: (-paths[one], one)):
        seconds, finished = sum(graph.operators[number].seconds(OperatorConfig())), []
        for device in range(devices.count):
            there = [
                ends[a] + (devices.moved(graph.operators[a].output) if place[a] != device else 0.0)
                for a in graph.before[number]
            ]
            finished.append(max([free[device], *there]) + seconds * devices.factor(device))
        place[number] = finished.index(min(finished))
        ends[number] = free[place[number]] = min(finished)
    return place


def placed(costs: OperatorCosts, choices: Sequence[Sequence[OperatorConfig]]) -> list[OperatorConfig] | None:
    """That placement as a choice; None where operators cannot be put on one device each."""
    found = [OperatorConfig()] * len(costs.graph)
    devices = placement(costs)
    for group, some in zip(costs.graph.groups, choices, strict=True):
        config = OperatorConfig(first=devices[group[0]])  # alike operators stay together
        if config not in some:
            return None
        for number in group:
            found[number] = config
    return found

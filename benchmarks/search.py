"""How good are searches for layouts? python -m benchmarks.search [real]

Predicted steps against those of the virtual engine, the methods against each other, and changes against whole
simulations; with `real` also predicted against measured steps of two workers on this machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from random import Random
from typing import Any

import covey
from covey.advise.trials.layouts import LayoutTerms, captured, search_layouts
from covey.parallelism.search import METHODS, Budget, Devices, OperatorCosts, Simulation
from covey.parallelism.search.operators import every_config
from covey.simulate import from_flags
from covey.task import load_task

TASKS = ("examples/digits.py", "examples/characters.py", "examples/unbalanced.py")
BANDWIDTHS = ("100mbit", "10gbit")


def predicted() -> dict[str, Any]:
    """Predicted over simulated steps, of the best five layouts of each task, on 2 and 4 machines."""
    errors = {}
    for name in TASKS:
        task = load_task(name)
        for bandwidth in BANDWIDTHS:
            for machines in (2, 4):
                world = from_flags(bandwidth=bandwidth, compute="50ms")
                answer = search_layouts(task, LayoutTerms(machines=machines, cluster=world, counted=True))
                for one in answer.layouts:
                    if one.judged:
                        errors[f"{name} {machines} {bandwidth} {one.plan}"] = one.step / one.judged - 1
    sizes = sorted(abs(error) for error in errors.values())
    largest = max(errors, key=lambda key: abs(errors[key]))
    return {
        "plans": len(sizes), "median error": statistics.median(sizes), "within 2 %": sum(s <= 0.02 for s in sizes),
        "largest": [largest, errors[largest]],
    }  # fmt: skip


def methods(machines: int = 4, proposals: int = 400) -> dict[str, Any]:
    """What each method finds where every operator is laid out by itself, over data parallelism."""
    graph, _ = captured(load_task("examples/characters.py"), LayoutTerms(machines=machines, counted=True))
    graph = graph.scaled(machines)
    costs = OperatorCosts(graph, Devices(count=machines, bandwidth=1.25e9, latency=1e-4))
    whole = Simulation(costs, graph.data_parallel(machines)).cost
    found = {}
    for name, method in METHODS.items():
        choices = [graph.configs(group, every_config(machines, anywhere=name != "dp")) for group in graph.groups]
        begun = time.perf_counter()
        result = method(costs, choices, Budget(proposals=proposals, seed=1))
        found[name] = {
            "of data parallel": result.cost / whole, "tried": result.tried, "seconds": time.perf_counter() - begun,
        }  # fmt: skip
    return found


def changes(machines: int = 4, count: int = 100) -> dict[str, float]:
    """Seconds of a change of one group, and of a whole simulation."""
    graph, _ = captured(load_task("examples/characters.py"), LayoutTerms(machines=machines, counted=True))
    graph, rng = graph.scaled(machines), Random(1)
    costs = OperatorCosts(graph, Devices(count=machines, bandwidth=1.25e9))
    choices = [graph.configs(group, every_config(machines, anywhere=True)) for group in graph.groups]
    now = Simulation(costs, graph.data_parallel(machines))
    begun = time.process_time()
    for _ in range(count):
        group = rng.randrange(len(choices))
        now.change(graph.groups[group], rng.choice(choices[group]))
    between = time.process_time()
    for _ in range(count):
        Simulation(costs, now.choice)
    return {"change": (between - begun) / count, "whole": (time.process_time() - between) / count}


def real(rounds: int = 3, steps: int = 30) -> dict[str, Any]:
    """Predicted and measured seconds of a step of two workers on this machine, the median of alternating rounds."""
    from covey.calibrate import calibrate

    name = "examples/characters.py"
    world = calibrate(name, "local")
    answer = search_layouts(load_task(name), LayoutTerms(machines=2, cluster=world, seconds=120))
    able = [one for one in answer.layouts if one.runs and one.workers == 2]
    measured: dict[str, list[float]] = {one.plan: [] for one in able}
    for _ in range(rounds):
        for one in able:
            result = covey.fit(name, one.strategy, 2, steps=steps, runs=False)
            measured[one.plan].append(result.seconds / steps)
    return {
        one.plan: {"predicted": one.step, "virtual": one.judged, "measured": statistics.median(measured[one.plan])}
        for one in able
    }


def measure() -> dict[str, Any]:
    return {"predicted over simulated": predicted(), "methods": methods(), "changes": changes()}


if __name__ == "__main__":
    print(json.dumps(real() if "real" in sys.argv[1:] else measure(), indent=1))

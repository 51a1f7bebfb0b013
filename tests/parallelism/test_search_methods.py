"""Searches over parallelizations, held to trying everything: dp is exact, mcmc near it, hill monotone."""

from __future__ import annotations

import math
from itertools import pairwise, product
from random import Random

import pytest

from covey.errors import PlanError
from covey.parallelism.search import (
    METHODS,
    Budget,
    CostTable,
    Devices,
    OperatorCosts,
    Simulation,
    eliminate,
    exhaustive,
)
from covey.parallelism.search import elimination as elimination_module
from covey.parallelism.search.cost_table import cost_table
from covey.parallelism.search.list_placement import critical_paths, placement
from covey.parallelism.search.methods import mcmc
from covey.parallelism.search.operators import Operator, OperatorConfig, OperatorGraph, every_config, factors


def random_graph(rng: Random, operators: int, skips: float = 0.4) -> OperatorGraph:
    """A chain with some edges that skip operators; what they cost is drawn."""
    made = tuple(
        Operator(
            name=f"op{k}", ways=("whole", *rng.choice([("column", "row"), ("through",), ()])), most=64,
            times={("whole", 1): (rng.uniform(1, 5), rng.uniform(2, 9))}, weights=rng.choice([0, 10, 300]),
            kept=rng.randrange(1, 50), output=rng.randrange(1, 200),
        )
        for k in range(operators)
    )  # fmt: skip
    edges = {(k, k + 1) for k in range(operators - 1)}
    pairs = [(a, b) for a in range(operators) for b in range(a + 2, operators)]
    return OperatorGraph(operators=made, edges=tuple(sorted(edges | {e for e in pairs if rng.random() < skips})))


def priced(rng: Random, operators: int, devices: int = 2, skips: float = 0.4) -> OperatorCosts:
    world = Devices(count=devices, bandwidth=rng.choice([20.0, 100.0]), latency=rng.choice([0, 0.1]))
    return OperatorCosts(random_graph(rng, operators, skips), world)


def choices_of(costs: OperatorCosts, anywhere: bool = True) -> list[list[OperatorConfig]]:
    allowed = every_config(costs.devices.count, anywhere)
    return [costs.graph.configs(group, allowed) for group in costs.graph.groups]


def random_table(rng: Random, nodes: int, edges: list[tuple[int, int]]) -> CostTable:
    sizes = [rng.randrange(1, 5) for _ in range(nodes)]
    return CostTable(
        [[rng.uniform(0, 9) for _ in range(size)] for size in sizes],
        {(a, b): [[rng.uniform(0, 9) for _ in range(sizes[b])] for _ in range(sizes[a])] for a, b in edges},
    )  # fmt: skip


# -- dp ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_dp_equals_exhaustive_search_on_chains(seed: int) -> None:
    rng = Random(seed)
    length = 1 + seed % 4
    table = random_table(rng, length, [(k, k + 1) for k in range(length - 1)])
    total, choice = eliminate(table)
    assert total == pytest.approx(exhaustive(table)[0], abs=1e-12) and table.total(choice) == total


@pytest.mark.parametrize("seed", range(100))
def test_dp_equals_exhaustive_search_on_graphs(seed: int) -> None:
    """Branches that join again, nodes without neighbours, and cores that cannot be eliminated."""
    rng = Random(seed)
    nodes = rng.randrange(2, 7)
    pairs = [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    table = random_table(rng, nodes, [pair for pair in pairs if rng.random() < rng.choice([0.3, 0.6, 1.0])])
    total, choice = eliminate(table)
    assert total == pytest.approx(exhaustive(table)[0], abs=1e-12) and table.total(choice) == total


def test_dp_refuses_a_core_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination_module, "MOST_TRIED", 10)
    whole = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    table = CostTable([[1.0, 2.0]] * 5, {edge: [[0.0, 1.0], [1.0, 0.0]] for edge in whole})
    with pytest.raises(PlanError, match="use --method mcmc"):
        eliminate(table)


def test_the_table_of_a_graph_is_the_sum_of_its_costs() -> None:
    """With alike operators, whose choice is one: also of edges that lead back to their group."""
    rng = Random(3)
    costs = priced(rng, 5)
    graph = OperatorGraph(
        operators=tuple(
            Operator(**{**{f: getattr(o, f) for f in o.__slots__}, "alike": "block" if k in (1, 3) else ""})
            for k, o in enumerate(costs.graph.operators)
        ),
        edges=costs.graph.edges,
    )  # fmt: skip
    costs = OperatorCosts(graph, costs.devices)
    choices = choices_of(costs, anywhere=False)
    table = cost_table(costs, choices)
    for picked in product(*(range(len(some)) for some in choices)):
        whole = [OperatorConfig()] * 5
        for group, some, place in zip(graph.groups, choices, picked, strict=True):
            for number in group:
                whole[number] = some[place]
        by_hand = sum(costs.node(k, config) for k, config in enumerate(whole))
        by_hand += sum(costs.edge(a, b, whole[a], whole[b]) for a, b in graph.edges)
        assert table.total(picked) == pytest.approx(by_hand)


# -- the scheduler ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_change_gives_exactly_what_a_whole_simulation_gives(seed: int) -> None:
    rng = Random(seed)
    costs = priced(rng, rng.randrange(2, 8), devices=rng.choice([2, 3, 4]))
    choices = choices_of(costs)
    now = Simulation(costs, [some[0] for some in choices])
    for _ in range(40):
        group, before, kept = rng.randrange(len(choices)), now.cost, list(now.choice)
        cost = now.change(costs.graph.groups[group], rng.choice(choices[group]))
        again = Simulation(costs, now.choice)
        assert cost == again.cost and now.ends == again.ends and now.order == again.order and now.ready == again.ready
        if rng.random() < 0.5:
            now.undo()
            assert now.cost == before and now.choice == kept
            assert now.ends == Simulation(costs, kept).ends


def test_each_device_and_link_does_one_task_at_a_time_after_what_it_needs() -> None:
    rng = Random(5)
    costs = priced(rng, 6, devices=4)
    now = Simulation(costs, [rng.choice(some) for some in choices_of(costs)])
    busy: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for key, task in now.tasks.items():
        begin = now.ends[key] - task.seconds
        assert all(now.ends[need] <= begin + 1e-9 for need in task.needs)
        busy.setdefault(task.resource, []).append((begin, now.ends[key]))
    for times in busy.values():
        ordered = sorted(times)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(ordered))


def test_data_parallelism_takes_its_share_and_one_sum() -> None:
    """Two operators of 6 and 12 s on 4 devices, 300 bytes of weights at 100 bytes a second, 0.1 s of latency."""
    operators = tuple(
        Operator(name=str(k), times={("whole", 1): (t, 2 * t)}, weights=w, output=40)
        for k, (t, w) in enumerate([(2.0, 100), (4.0, 200)])
    )
    costs = OperatorCosts(
        OperatorGraph(operators=operators, edges=((0, 1),)), Devices(count=4, bandwidth=100, latency=0.1)
    )
    choice = costs.graph.data_parallel(4)
    assert Simulation(costs, choice).step == pytest.approx(18 / 4 + 2 * 3 / 4 * 300 / 100 + 6 * 0.1)
    assert costs.traffic(choice) == 2 * 3 * 300
    one = [OperatorConfig(first=0), OperatorConfig(first=1)]
    assert Simulation(costs, one).step == pytest.approx(18 + 2 * (0.1 + 0.4)), "and the message back"


def test_column_then_row_needs_one_sum_each_way() -> None:
    """Between them nothing travels; row after column of other shapes would be gathered."""
    operators = tuple(
        Operator(name=n, ways=w, most=8, times={("whole", 1): (2.0, 4.0)}, weights=80, output=s)  # type: ignore[arg-type]
        for n, w, s in [("in", ("whole",), 40), ("up", ("column",), 160), ("act", ("through",), 160),
                        ("down", ("row",), 40)]
    )  # fmt: skip
    graph = OperatorGraph(operators=operators, edges=((0, 1), (1, 2), (2, 3)))
    costs = OperatorCosts(graph, Devices(count=2, bandwidth=10))
    choice = [OperatorConfig(1, 2, way) for way in ("whole", "column", "through", "row")]
    assert [costs.moved(a, b, choice[a], choice[b]) for a, b in graph.edges] == [(), (), ()]
    assert costs.traffic(choice) == 2 * 40 + 2 * 40, "the sum of the outputs, and that of the inputs' gradients"
    assert Simulation(costs, choice).step == pytest.approx(6 + 3 * 3 + 2 * 40 / 10)
    gathered = [*choice[:3], OperatorConfig(1, 2, "whole")]
    assert sum(size for _, _, size in costs.moved(2, 3, gathered[2], gathered[3])) == 160
    assert costs.memory(choice)[0] == pytest.approx(80 * 2 + 3 * 40 * 2)


# -- mcmc, hill, policy -----------------------------------------------------------------------------------------------


def least(costs: OperatorCosts, choices: list[list[OperatorConfig]]) -> float:
    """By simulating every choice."""
    return min(Simulation(costs, list(choice)).cost for choice in product(*choices))


def near(seeds: range, most: int) -> list[float]:
    """How far mcmc is from the best, on small graphs; it must never be worse than data parallelism."""
    found = []
    for seed in seeds:
        rng = Random(seed)
        costs = priced(rng, 2 + seed % (most - 1))
        choices = [some[:4] + [c for c in some[4:] if c == OperatorConfig(2)] for some in choices_of(costs)]
        cost = mcmc(costs, choices, Budget(proposals=2000, seed=seed)).cost
        assert cost <= Simulation(costs, costs.graph.data_parallel(2)).cost
        found.append(cost / least(costs, choices))
    return found


def test_mcmc_comes_near_the_best() -> None:
    assert sorted(near(range(6), 4))[-1] <= 1.05


@pytest.mark.full
def test_mcmc_comes_near_the_best_on_95_of_100_graphs() -> None:
    ratios = near(range(100), 6)
    assert min(ratios) >= 1 - 1e-12 and sum(ratio <= 1.05 for ratio in ratios) >= 95


def test_mcmc_accepts_against_the_current_state() -> None:
    """Three devices that take 1, 1.1 and 1.15: from the second to the third it goes in exp(-1) of all cases.

    One that compares with the best would do so in exp(-3) of them, seven times more rarely.
    """
    graph = OperatorGraph(operators=(Operator(name="one", times={("whole", 1): (0.4, 0.6)}),), edges=())
    costs = OperatorCosts(graph, Devices(count=3, slow=(1.0, 1.1, 1.15)))
    choices, heard = [[OperatorConfig(first=device) for device in range(3)]], list[float]()
    mcmc(costs, choices, Budget(proposals=12_000, seed=1, heard=heard.append))
    steps = [(round(now, 9), round(later, 9)) for now, later in pairwise(heard)]
    assert 45 < steps.count((1.1, 1.15)) < 140
    costs = priced(Random(1), 5)
    steady: list[float] = []
    mcmc(costs, choices_of(costs), Budget(proposals=200, seed=1, heard=steady.append), greedy=True)
    second = max(range(1, len(steady)), key=lambda k: steady[k] - steady[k - 1])  # where the second start begins
    for walk in (steady[:second], steady[second:]):
        assert all(later <= now for now, later in pairwise(walk)), "greedy never goes up"


@pytest.mark.parametrize("seed", range(4))
def test_hill_climbing_is_monotone_and_ends_where_no_single_change_helps(seed: int) -> None:
    costs = priced(Random(seed), 4, devices=3)
    choices, heard = choices_of(costs), list[float]()
    found = METHODS["hill"](costs, choices, Budget(proposals=5000, heard=heard.append))
    assert heard == sorted(heard, reverse=True) and len(set(heard)) == len(heard) and found.cost == heard[-1]
    now = Simulation(costs, found.choice)
    for group, some in zip(costs.graph.groups, choices, strict=True):
        for config in some:
            assert now.change(group, config) >= found.cost - 1e-12
            now.undo()


def test_list_scheduling_is_near_the_best_placement_of_small_graphs() -> None:
    """Brute force over all placements of up to 6 operators on 2 devices; critical paths are the longest ways."""
    for seed in range(8):
        rng = Random(seed)
        costs = priced(rng, 3 + seed % 4, skips=0.2)
        count = len(costs.graph)
        listed = Simulation(costs, [OperatorConfig(first=place) for place in placement(costs)]).step
        best = min(
            Simulation(costs, [OperatorConfig(first=place) for place in places]).step
            for places in product(range(2), repeat=count)
        )
        assert best <= listed + 1e-9 and listed <= 1.5 * best
        paths = critical_paths(costs)
        for a, b in costs.graph.edges:
            assert paths[a] > paths[b]


def test_an_output_that_moves_costs_its_way_forward_and_its_gradients_way_back() -> None:
    costs = priced(Random(4), 2, skips=0.0)
    here, there = OperatorConfig(), OperatorConfig(first=1)
    assert costs.edge(0, 1, here, here) == 0
    assert costs.edge(0, 1, here, there) == 2 * costs.devices.moved(costs.graph.operators[0].output) > 0


def test_policy_learns_to_choose_better_than_by_chance() -> None:
    costs = priced(Random(2), 5, devices=4)
    choices, heard = choices_of(costs), list[float]()
    found = METHODS["policy"](costs, choices, Budget(proposals=300, heard=heard.append))
    early, late = sum(heard[:60]) / 60, sum(heard[-60:]) / 60
    assert late < 0.9 * early and found.cost == min(heard) and found.tried == 300
    first = METHODS["policy"](costs, choices, Budget(proposals=300))
    assert first == found, "the same seed draws the same"


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_fits_in_memory_or_is_the_least_too_large(method: str) -> None:
    """Weights of 900 bytes, three times with gradient and state: whole they need 2700, divided among two 1350."""
    operators = (
        Operator(name="in", times={("whole", 1): (0.1, 0.2)}, output=4000),
        Operator(name="w", ways=("whole", "column"), most=2, times={("whole", 1): (1.0, 2.0)}, weights=900, output=1),
    )
    graph = OperatorGraph(operators=operators, edges=((0, 1),), state=1.0)
    free, tight = (OperatorCosts(graph, Devices(count=2, bandwidth=1e4, memory=limit)) for limit in (math.inf, 1500.0))
    choices = choices_of(free)
    assert max(free.memory(METHODS[method](free, choices, Budget(proposals=200)).choice)) == 2700
    assert max(tight.memory(METHODS[method](tight, choices, Budget(proposals=200)).choice)) == 1350


def test_a_search_ends_with_its_seconds() -> None:
    times = iter(range(10_000))
    costs = priced(Random(2), 4)
    for method in ("mcmc", "hill", "policy"):
        found = METHODS[method](
            costs, choices_of(costs), Budget(proposals=10_000, seconds=20, clock=lambda: float(next(times)))
        )  # fmt: skip
        assert found.tried <= 25 and found.choice


def test_configurations_cover_all_ways_to_use_the_devices() -> None:
    assert list(factors(4)) == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]
    here, anywhere = every_config(4), every_config(4, anywhere=True)
    assert len(here) == 3 + 3 * 3 and set(here) <= set(anywhere) and OperatorConfig(1, 2, "row", 2) in anywhere
    assert all((config.first + config.parts - 1) < 4 for config in anywhere)

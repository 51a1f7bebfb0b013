"""Layouts along several axes: held against trying every mesh, every cut and every division of operators."""

from __future__ import annotations

import math
from itertools import combinations, product
from random import Random

import pytest

from covey.advise.trials.layouts import LayoutTerms, search_layouts
from covey.parallelism.plan.profile import LayerCost, Profile
from covey.parallelism.plan.terms import Cut
from covey.parallelism.search import Budget, Devices, LayoutSearch, OperatorGraph
from covey.parallelism.search.operators import Operator
from covey.parallelism.search.product_layouts import MeshSizes, ProductLayouts
from covey.simulate import from_flags
from tests.parallelism.test_search_layouts import task


def small(seed: int) -> ProductLayouts:
    """A chain of layers, each one operator, on four machines whose links may be fast or slow."""
    rng, operators, layers = Random(seed), list[Operator](), list[LayerCost]()
    for number in range(rng.randint(3, 4)):
        ahead, weights, output = rng.uniform(1, 20), rng.randint(1, 400), rng.randint(1, 60)
        ways = ("whole", "column", "row") if rng.random() < 0.8 else ("whole", "through")
        operators.append(
            Operator(
                name=str(number), ways=ways, times={("whole", 1): (ahead, 2 * ahead)}, weights=weights, kept=output,
                output=output, most=8,
            )
        )  # fmt: skip
        layers.append(
            LayerCost(
                forward=ahead / 4, backward=ahead / 2, weights=weights, kept=output, sends=output, returns=output
            )
        )  # fmt: skip
    edges = tuple((number, number + 1) for number in range(len(operators) - 1))
    graph = OperatorGraph(operators=tuple(operators), edges=edges, samples=8, state=2.0)
    devices = Devices(count=4, bandwidth=10 ** rng.uniform(0.5, 3), latency=rng.choice((0.0, 0.5)))
    return ProductLayouts(graph, devices, Profile(tuple(layers), state=2.0), 4)


def pace(mesh: MeshSizes, step: float) -> float:
    """Seconds for each batch."""
    return step / (mesh.replica * mesh.shard)


def exhaustive(layouts: ProductLayouts) -> float:
    """The least, over everything that a mesh can be."""
    best, layers = math.inf, len(layouts.graph)
    for mesh in layouts.sizes():
        ends = combinations(range(layers - 1), mesh.stage - 1)
        cuts = [Cut(after, (1,) * mesh.stage) for after in ends] if mesh.stage > 1 else [None]
        for choice in product(*layouts.choices(mesh.tensor)):
            pairs = zip(layouts.graph.operators, choice, strict=True)
            if mesh.tensor > 1 and not any(one.split(config) for one, config in pairs):
                continue
            share = layouts.share(mesh.tensor, choice)
            best = min(best, *(pace(mesh, layouts.cost(mesh, share, cut).step) for cut in cuts), math.inf)
    return best


def test_what_is_found_is_near_the_best_of_all() -> None:
    over = []
    for seed in range(20):
        layouts = small(seed)
        found = min(pace(mesh, cost.step) for mesh, _, _, cost in layouts.found("dp", Budget()))
        over.append(found / exhaustive(layouts))
    assert min(over) >= 1 - 1e-12, "nothing is better than the best"
    assert sorted(over)[18] <= 1.05, "within 5 % in 19 of 20"


def test_every_mesh_of_all_machines_is_looked_at() -> None:
    layouts = ProductLayouts(small(0).graph, Devices(count=8), small(0).profile, 4)
    sizes = layouts.sizes()
    assert len(sizes) == len(set(sizes))
    assert {(one.replica, one.stage, one.shard, one.tensor) for one in sizes} == {
        (1, 2, 2, 2), (2, 2, 2, 1), (2, 2, 1, 2), (2, 1, 2, 2), (1, 4, 2, 1), (1, 2, 4, 1), (1, 4, 1, 2), (1, 2, 1, 4),
        (1, 1, 4, 2), (1, 1, 2, 4),
    }  # fmt: skip
    assert {one.zero for one in sizes if one.stage > 1 and one.shard > 1} == {1}
    assert {one.zero for one in sizes if one.stage == 1} == {1, 2, 3}


def test_one_axis_costs_what_its_own_formula_says() -> None:
    layouts = small(3)
    whole = layouts.searched(1, 1, "dp", Budget())
    assert whole is not None
    alone = LayoutSearch(layouts.graph, layouts.devices, layouts.profile, 4)
    shards = {one.plan: one for one in alone.sharded()}
    for zero in (1, 2, 3):
        for replica, shard, plan in ((1, 4, "4 shards"), (2, 2, "2 x 2 shards")):
            cost = layouts.cost(MeshSizes(replica=replica, shard=shard, zero=zero), whole, None)
            same = shards[f"{plan}, zero={zero}"]
            assert (cost.step, cost.memory, cost.traffic) == pytest.approx((same.step, same.memory, same.traffic))
    (stages,) = (one for one in alone.pipelines() if one.plan == "2 x 2 stages")
    mesh = MeshSizes(replica=2, stage=2)
    cost = layouts.cost(mesh, whole, layouts.cut(mesh, whole))
    assert (cost.step, cost.memory, cost.traffic) == pytest.approx((stages.step, stages.memory, stages.traffic))


@pytest.mark.full
def test_products_that_are_found_run() -> None:
    """Where no single axis fits in memory, two do; virtual time agrees with the costs."""
    world = from_flags(bandwidth="1gbit", compute="50ms", latency="0.1ms")
    free = search_layouts(task(width=64, batch_size=32), LayoutTerms(machines=4, cluster=world, counted=True))
    products = [one for one in free.layouts if one.plan.count(" x ") and "stages x" in one.plan]
    assert products and all(one.runs for one in products), [one.why_not for one in products]

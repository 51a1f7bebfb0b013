"""What patterns of sums, graphs, meshes, plans of cuts and shards come to, in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler, WeightedRandomSampler

from covey import topology
from covey.data.feed import Feed
from covey.data.partitions import Partitions
from covey.data.sampled import SampledShards
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.hierarchy import hierarchical
from covey.parallelism import CutTerms, LayerCost, Profile, Schedule, best_cut, equal_cut, predict, timetable
from covey.parallelism.plan.mesh import Mesh
from covey.spec import parse_call
from covey.vector import Vector
from tests.behaviour import kept_values
from tests.behaviour.kept_values import number
from tests.behaviour.measured_runs import lines, projected, said
from tests.behaviour.settings_tried import variants, written
from tests.behaviour.situations import UNEVEN, images, perceptron
from tests.exchange.summing import reduce_by
from tests.worlds import sgd

# -- sums -------------------------------------------------------------------------------------------------------------

SUMS = {**PATTERNS, "hierarchical, local=3": partial(hierarchical, local=3)}


def sums(title: str) -> Iterator[str]:
    """Of vectors with more numbers than ranks, and fewer; whoever is slow; each rank's result."""
    pattern = SUMS[title.removeprefix("sum by ")]
    for ranks in (1, 2, 3, 4, 5, 7):
        for size, root in ((5, 1), (250, ranks - 1)):
            chance = torch.Generator().manual_seed(size)
            vectors = [Vector([torch.randn(size, dtype=torch.float64, generator=chance)]) for _ in range(ranks)]
            log, took = reduce_by(pattern, vectors, [1 + 0.7 * (rank % 3) for rank in range(ranks)], root % ranks)
            sent = sum(event.size for event in log.sends)
            moved = ",".join(str(log.bytes_from(event)) for event in sorted({event.sender for event in log.sends}))
            yield (
                f"{size} numbers on {ranks} ranks: seconds={number(took)} messages={len(log.sends)} bytes={sent} "
                f"by={moved} total={projected(vectors[-1].parts)}"
            )


def test_sums() -> None:
    titles = [f"sum by {name}" for name in SUMS]
    kept_values.compare("patterns", titles, sums, titles)


# -- graphs -----------------------------------------------------------------------------------------------------------

GRAPHS: Mapping[str, list[dict[str, Any]]] = {
    "tree": [{"fanout": 1}, {"fanout": 3}], "random_regular": [{"degree": 2}, {"degree": 3, "seed": 4}]
}  # fmt: skip


def graphs() -> list[str]:
    return [
        written(name, settings)
        for name in topology.GRAPHS
        if name != "matrix"
        for settings in ({}, *GRAPHS.get(name, ()))
    ]


def of_graph(title: str) -> Iterator[str]:
    """Whom each rank hears, and how much."""
    call = parse_call(title)
    for size in (1, 2, 3, 4, 5, 6, 8):
        try:
            graph = topology.build(call.name, call.settings, size)
        except PlanError as error:
            yield f"{size} ranks: refused {said(error)}"
            continue
        yield f"{size} ranks: gap={number(float(graph.gap()))}"
        for step in range(3 if "one_peer" in title else 1):
            for rank in range(size):
                at = graph.at(step)
                row = " ".join(f"{peer}={number(at.weight(rank, peer))}" for peer in (rank, *at.neighbours(rank)))
                yield f"{size} ranks, step {step}, {rank} hears: {row}"


def test_graphs() -> None:
    kept_values.compare("graphs", graphs(), of_graph, graphs())


# -- data -------------------------------------------------------------------------------------------------------------


def shards() -> Mapping[str, Shards]:
    weighted = WeightedRandomSampler([1.0 + k % 4 for k in range(23)], 19, generator=torch.Generator().manual_seed(4))
    sampled = partial(SampledShards.of, workers=3, batch_size=4, seed=2)
    return {
        "23 samples": Shards(23, 3, 4), "23 samples, seed 5": Shards(23, 3, 4, 5), "one worker": Shards(7, 1, 3),
        "as many as workers": Shards(4, 4, 3), "rows of their own": Partitions.of((9, 4, 9), 4, 1),
        "in order": sampled(23, SequentialSampler(range(23)), False),
        "in order, whole batches": sampled(26, range(26), True),
        "whole batches": sampled(26, None, True), "weighted": sampled(23, weighted, False),
        "weighted, whole batches": sampled(23, weighted, True),
        "listed": sampled(23, [3, 1, 4, 1, 5, 9, 2, 6, 5], False),
    }  # fmt: skip


def of_shards(title: str) -> Iterator[str]:
    deal = shards()[title]
    for rank in range(deal.workers):
        yield f"worker {rank}: size={deal.size(rank)} steps={deal.steps(rank)}"
        for epoch in range(3):
            steps = range(epoch * deal.steps(rank), (epoch + 1) * deal.steps(rank))
            batches = [deal.indices(rank, step).tolist() for step in steps]
            assert [len(batch) for batch in batches] == [deal.batch(rank, step) for step in steps]
            yield f"worker {rank}, epoch {epoch}: " + " ".join(",".join(map(str, batch)) for batch in batches)
        data = (torch.arange(40),)
        if deal.length is None or deal.length <= 40:
            data = (torch.arange(deal.length or 40),)
            for start, most in ((0, 0), (deal.steps(rank) + 1, 0), (1, 3)):
                feed = Feed(data, deal, rank, most=most).start(start)
                came = [next(feed)[0].tolist() for _ in range(4)]
                yield f"worker {rank}, fed from {start}, {most}: " + " ".join(
                    ",".join(map(str, batch)) for batch in came
                )


def test_shards() -> None:
    titles = list(shards())
    kept_values.compare("shards", titles, of_shards, titles)


# -- cut models -------------------------------------------------------------------------------------------------------


def deep() -> nn.Module:
    layers = [
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 20),
        nn.Dropout(0.3),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 3)).double()


MESH = {"stage": 2, "cut": "equal"}
TRIED: Mapping[str, tuple[Any, ...]] = {
    "replica": (1, 2), "stage": (1, 3, 4), "microbatches": (1, 2, 3), "chunks": (1, 2),
    "cut": ("best", "4:7", "0", 4, "3"),
    "memory": ("1KB", "1MB"), "load": ("60:40", "10:90", 50), "split": ("best",),
    "plan": ("plan.json",),
}  # fmt: skip
ELSEWHERE = {"shard", "zero", "expert", "tensor", "split", "plan"}  # tests/parallelism holds their values
CUT = (
    "stage=2, cut=equal, timetable=gpipe, microbatches=3",
    "stage=2, cut=equal, timetable=pipedream, vertical=true",
    "stage=4, cut=equal, timetable=pipedream",
    "stage=4, cut=equal, timetable=pipedream, vertical=true",
    "stage=4, cut=equal, timetable=2bw, microbatches=5",
    "stage=2, cut=equal, timetable=interleaved, chunks=2",
    "stage=2, cut=equal, timetable=interleaved, microbatches=2",
    "stage=2, cut=equal, timetable=gpipe, recompute=true",
    "stage=2, cut=equal, timetable=pipedream, recompute=true",
    "replica=2, stage=2, cut=equal, timetable=2bw",
    "stage=4, timetable=plain",
    "stage=2, cut=equal, timetable=2bw, microbatches=3, recompute=true",
)
STRATEGIES = (
    "bsp",
    "ssp(bound=1)",
    "asynchronous",
    "local_sgd(period=2)",
    "easgd(period=2)",
    "gosgd(probability=0.6)",
    "dpsgd",
    "allreduce + topk(density=0.2)",
    "bsp + int8 + pull",
    "diloco(period=2)",
    "downpour(push=2, fetch=2)",
    "sliced",
)


def meshes() -> dict[str, bool]:
    """SPECs, and whether they are tried in every run of the tests."""
    tried = [one for one, _ in variants(Mesh, TRIED, MESH) if not ELSEWHERE & one.keys()]
    found = {f"allreduce with {written('mesh', one)}": "timetable" in one for one in tried}
    found |= {f"allreduce with mesh({inside})": "stage=2" in inside for inside in CUT}
    for name in STRATEGIES:
        for order in ("1f1b", "pipedream", "2bw"):
            often = order == "2bw" and name in ("bsp", "asynchronous")
            found[f"{name} with mesh(stage=2, cut=equal, timetable={order})"] = often
    return found


@pytest.mark.parametrize("often", [True, pytest.param(False, marks=pytest.mark.full)], ids=["often", "rest"])
def test_meshes(tmp_path: Path, often: bool) -> None:
    task = perceptron(
        images(33), model=deep, batch_size=6, optimizer=sgd(0.1, momentum=0.9), rate=lambda progress: 1 - progress / 2
    )

    def now(title: str) -> Iterator[str]:
        return lines(task, title, 4, tmp_path, {"cluster": UNEVEN, "epochs": 2})

    titles = meshes()
    kept_values.compare("mesh", list(titles), now, [title for title in titles if titles[title] == often])


# -- plans of cuts ----------------------------------------------------------------------------------------------------

COSTS = (
    (3, 5, 40, 2, 30, 16),
    (1, 2, 0, 0, 10, 8),
    (4, 9, 800, 0, 60, 24),
    (2, 2, 20, 6, 20, 4),
    (5, 8, 400, 0, 90, 12),
)
PROFILE = Profile(
    tuple(
        LayerCost(
            name=f"layer{number}", forward=f / 10, backward=b / 10, weights=w, fixed=x, kept=k, sends=s, returns=s // 2,
            cuttable=number != 1,
        )
        for number, (f, b, w, x, k, s) in enumerate(COSTS)
    ),
    inputs=18, state=2.0,
)  # fmt: skip
SCHEDULES = {
    "plain": Schedule(name="plain"), "gpipe": Schedule(name="gpipe", microbatches=5), "1f1b": Schedule(microbatches=5),
    "1f1b, recompute": Schedule(microbatches=5, recompute=True), "pipedream": Schedule(name="pipedream"),
    "pipedream, vertical": Schedule(name="pipedream", vertical=True), "2bw": Schedule(name="2bw", microbatches=6),
    "interleaved": Schedule(name="interleaved", microbatches=4, chunks=2),
    "pipedream, recompute": Schedule(name="pipedream", recompute=True),
}  # fmt: skip


def plans(title: str) -> Iterator[str]:
    schedule = SCHEDULES[title]
    for stages, machines, bandwidth, memory in (
        (1, None, 100.0, None), (2, None, 1e9, None), (2, None, 20.0, None), (3, None, 100.0, 3000),
        (2, 3, 100.0, None), (None, 4, 100.0, None), (2, None, 100.0, 2000),
    ):  # fmt: skip
        limits = {} if memory is None else {"memory": float(memory)}
        terms = CutTerms(stages=stages, machines=machines, schedule=schedule, bandwidth=bandwidth, **limits)
        name = f"{stages} stages, {machines} machines, {bandwidth:g} B/s, memory {memory}"
        try:
            cut = best_cut(PROFILE, terms)
            found = predict(PROFILE, cut, terms, latency=0.05)
        except PlanError as error:
            yield f"{name}: refused {said(error)}"
            continue
        yield (
            f"{name}: after={'/'.join(map(str, cut.after))} machines={'/'.join(map(str, cut.machines))} "
            f"slowest={number(float(cut.slowest))} step={number(found.step)} bubble={number(found.bubble)} "
            f"traffic={found.traffic}"
        )
        for place, one in enumerate(found.stages):
            yield (
                f"{name}, stage {place}: forward={number(one.forward)} backward={number(one.backward)} "
                f"weights={one.weights} memory={number(float(one.memory))} in_flight={one.in_flight} "
                f"versions={one.versions} sends={one.sends} returns={one.returns}"
            )
    for stages in (1, 2, 4):
        try:
            for row in timetable(schedule, (1,) * stages).rows:
                moves = " ".join(f"{move}v{move.version}" for move in row.moves)
                yield f"{stages} stages, row {row.stage}: {moves}"
        except PlanError as error:
            yield f"{stages} stages: refused {said(error)}"


def test_plans() -> None:
    titles = list(SCHEDULES)
    kept_values.compare("plans", titles, plans, titles)
    assert equal_cut(PROFILE, 3).after == (0, 2), "a cut may not come after layer 1"

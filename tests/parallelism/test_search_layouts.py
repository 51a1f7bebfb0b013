"""From a model to layouts: what is captured of it, what each layout costs, and which a run can do."""

from __future__ import annotations

import math
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey.advise.trials import layouts as trial_layouts
from covey.advise.trials.layouts import LayoutTerms, captured, search_layouts
from covey.errors import PlanError, RoleFailed
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.search import (
    Budget,
    Devices,
    LayoutSearch,
    ModelLayout,
    OperatorGraph,
    elimination,
    operators_of,
)
from covey.parallelism.search.layouts import STUDY, refusal, splits_of
from covey.parallelism.search.operator_times import OperatorTimes
from covey.parallelism.search.operators import Operator, OperatorConfig
from covey.parallelism.tensor.tensor_roles import split_plan
from covey.run.options import options
from covey.run.request import request
from covey.simulate import from_flags
from covey.task import Task
from tests.worlds import adam, cloud


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


def deep(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), *(Block(width) for _ in range(3)), nn.Linear(width, 3))


def task(width: int = 16, batch_size: int = 8) -> Task:
    x, y = cloud(64, dtype=torch.float32)
    return Task(model=lambda: deep(width), data=(x, y), optimizer=adam(), loss=F.cross_entropy, batch_size=batch_size)


def graph_of(repeat: int = 0) -> OperatorGraph:
    return operators_of(deep(), (torch.randn(8, 6),), repeat=repeat, members=(2,), state=2.0)


def test_the_operators_of_a_model() -> None:
    graph = graph_of()
    named = {operator.name: operator for operator in graph.operators}
    assert [name for name in named if "." not in name or name.startswith("1.")] == [
        "0", "1.norm", "1.up", "1.relu", "1.down", "1.add", "4",
    ]  # fmt: skip
    assert named["1.up"].ways == ("whole", "column", "row") and named["1.up"].most == 16
    assert named["1.relu"].ways == named["1.add"].ways == ("whole", "through") and named["1.norm"].ways == ("whole",)
    assert named["1.up"].weights == 4 * (16 * 32 + 32) and named["1.up"].output == 8 * 32 * 4
    assert sum(one.weights for one in graph.operators) == sum(4 * p.numel() for p in deep().parameters())
    place = {operator.name: number for number, operator in enumerate(graph.operators)}
    inside = {(a, b) for a, b in graph.edges if b == place["1.add"]}
    assert inside == {(place["0"], place["1.add"]), (place["1.down"], place["1.add"])}, "the way around the block"


def test_alike_blocks_share_one_choice_and_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    find = OperatorTimes._counted
    monkeypatch.setattr(OperatorTimes, "_counted", lambda self, *given: asked.append("") or find(self, *given))
    graph = graph_of()
    groups = [{graph.operators[number].name for number in group} for group in graph.groups]
    assert {"1.up", "2.up", "3.up"} in groups and {"1.add", "2.add_1", "3.add_2"} in groups and {"0"} in groups
    assert len(groups) == 7 and len(graph) == 17
    assert len(asked) <= 7 + 2 * 4, "each shape once: whole, and by columns and rows"


def test_two_equal_layers_of_one_sequential_choose_for_themselves() -> None:
    """The first may be divided by columns and the second by rows."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    assert len(operators_of(model, (torch.randn(4, 8),), repeat=0).groups) == 3


def test_counting_is_repeatable_and_measuring_finds_halves_faster() -> None:
    assert graph_of() == graph_of()
    x = torch.randn(256, 512)
    (wide,) = operators_of(nn.Sequential(nn.Linear(512, 1024)), (x,), repeat=3, members=(2,)).operators
    whole, half = sum(wide.times["whole", 1]), sum(wide.times["column", 2])
    assert 0 < half < 0.9 * whole


def test_a_block_is_split_by_columns_then_rows_where_the_network_is_fast() -> None:
    terms = LayoutTerms(machines=2, counted=True)
    graph, _ = captured(task(width=64, batch_size=64), terms)
    (found,) = LayoutSearch(graph, Devices(count=2, bandwidth=1e12)).tensor("dp", Budget())
    assert dict(found.splits)["*.up"] == "column" and dict(found.splits)["*.down"] == "row"
    assert list(LayoutSearch(graph, Devices(count=2, bandwidth=1e3)).tensor("dp", Budget())) == [], "nothing is divided"


def test_data_parallelism_comes_first_and_the_rest_by_speed() -> None:
    answer = search_layouts(task(), LayoutTerms(machines=4, counted=True, method="all", seconds=8))
    assert answer.layouts[0].plan == "data parallel" and answer.layouts[0].strategy == "allreduce"
    able = [one for one in answer.layouts[1:] if one.runs]
    tried, rest = [one.pace for one in able if one.judged], [one.pace for one in able if not one.judged]
    assert [one.pace for one in able] == [*sorted(tried), *sorted(rest)] and len(able) >= 6
    assert answer.best is not None and answer.layouts[0].judged
    assert answer.best.pace == min(one.pace for one in answer.layouts if one.judged)
    assert {one.plan for one in answer.layouts} >= {"4 shards, zero=3", "2 x 2 stages", "one machine alone"}
    assert all(one.runs or one.why_not for one in answer.layouts)


def test_shards_need_the_memory_of_the_table() -> None:
    """Bytes per parameter with Adam, of 4 members: 8 + 16/4, 4 + 16/4, 16/4 and twice the largest layer."""
    graph = replace(graph_of(), operators=tuple(replace(one, kept=0, fixed=0) for one in graph_of().operators))
    weights, largest = sum(one.weights for one in graph.operators), max(one.weights for one in graph.operators)
    found = {one.plan: one for one in LayoutSearch(graph, Devices(count=4)).sharded()}
    assert found["4 shards, zero=1"].memory == pytest.approx(weights / 4 * (8 + 4))
    assert found["4 shards, zero=2"].memory == pytest.approx(weights / 4 * (4 + 4))
    assert found["4 shards, zero=3"].memory == pytest.approx(weights / 4 * 4 + 2 * largest)
    assert found["4 shards, zero=3"].traffic == 3 * 3 * weights
    assert LayoutSearch(graph, Devices(count=4)).data_parallel().memory == pytest.approx(weights / 4 * 16)


@pytest.mark.parametrize("bandwidth", ["10mbit", "1gbit"])
def test_predictions_are_what_virtual_time_says(bandwidth: str) -> None:
    """Of data parallelism, and of stages, within 2 %."""
    world = from_flags(bandwidth=bandwidth, compute="5ms", latency="0.2ms")
    answer = search_layouts(task(), LayoutTerms(machines=2, cluster=world, counted=True))
    judged = {one.plan: one.judged / one.step for one in answer.layouts if one.judged}
    assert judged["data parallel"] == pytest.approx(1, abs=0.02) and judged["2 stages"] == pytest.approx(1, abs=0.02)


def test_what_does_not_fit_is_left_out_or_refused_with_what_would_fit() -> None:
    small = task(width=64)
    free = search_layouts(small, LayoutTerms(machines=2, counted=True))
    whole = free.layouts[0].memory
    tight = search_layouts(small, LayoutTerms(machines=2, counted=True, memory=whole - 1))
    assert tight.layouts[0].memory > tight.devices.memory and tight.best is not tight.layouts[0]
    assert tight.best is not None and all(one.memory < whole for one in tight.layouts[1:])
    with pytest.raises(PlanError, match=r"no layout of 2 machines fits in .*needs .* too much; . machines would do"):
        search_layouts(small, LayoutTerms(machines=2, counted=True, memory=whole / 3.5))
    with pytest.raises(PlanError, match="smaller batch_size"):
        search_layouts(small, LayoutTerms(machines=2, counted=True, memory=100.0))


def test_the_mesh_says_what_runs() -> None:
    assert refusal({"replica": 2, "stage": 2}, 4) == ""
    assert refusal({"replica": 1, "diagonal": 2}, 2) == f"{STUDY}: no run has the axis diagonal yet"
    assert refusal({"replica": 1, "stage": 2, "shard": 2}, 4) == ""
    assert refusal({"replica": 1, "stage": 2, "expert": 2}, 4) == ""
    assert "use zero=1" in refusal({"replica": 1, "stage": 2, "shard": 2, "zero": 3}, 4)


def test_a_layout_that_a_run_would_refuse_is_marked() -> None:
    """Adafactor looks at whole parameters, of which a shard has rows."""
    whole = replace(task(), optimizer=lambda pairs: torch.optim.Adafactor(p for _, p in pairs))
    answer = search_layouts(whole, LayoutTerms(machines=2, counted=True))
    refused = {one.plan: one.why_not for one in answer.layouts if not one.runs}
    assert "element-wise" in refused["2 shards, zero=3"] and answer.layouts[0].runs


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (LayoutTerms(machines=1), "one machine has one layout"), (LayoutTerms(machines=2, seconds=0), "more than 0"),
        (LayoutTerms(machines=2, method="luck"), "there are dp, mcmc, hill, policy, and all"),
    ],
)  # fmt: skip
def test_terms_that_cannot_be_met(terms: LayoutTerms, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        search_layouts(task(), terms)


class Loose(nn.Module):
    """Uses weights and a buffer outside of modules, a module twice, tied weights, and leaves some weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.twice, self.out = nn.Embedding(6, 8), nn.Linear(8, 8), nn.Linear(8, 6, bias=False)
        self.loose, self.left = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(50))
        self.register_buffer("mask", torch.ones(8))
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        made = self.twice(self.twice(self.words(x)))
        return self.out(F.linear(made * self.mask, self.loose))


class Asking(nn.Module):
    """torch.fx cannot follow it, torch.export can; its graph has no modules."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x)) if x.shape[-1] > 3 else self.up(x)


@pytest.mark.parametrize(("model", "x"), [(Loose(), torch.arange(6)), (Asking(), torch.randn(4, 6))])
def test_weights_outside_of_modules_count_once(model: nn.Module, x: Tensor) -> None:
    graph = operators_of(model, (x,), repeat=0, members=(2,))
    assert sum(one.weights for one in graph.operators) == sum(4 * p.numel() for p in model.parameters())
    assert sum(one.fixed for one in graph.operators) == sum(4 * b.numel() for b in model.buffers())
    unused = sum(one.weights for one in graph.operators if one.name == "not in the forward")
    assert unused == (4 * 50 if isinstance(model, Loose) else 0)
    if isinstance(model, Loose):
        assert all(one.ways == ("whole",) for one in graph.operators if one.weights), "a run divides none of them"


def test_the_command_of_split_layers_runs_the_plan_that_is_shown() -> None:
    """Blocks by a pattern, other layers by name; the run's own plan has the same layers, divided the same way."""
    one = task(width=64, batch_size=64)
    (found,) = LayoutSearch(captured(one, LayoutTerms(machines=2, counted=True))[0], Devices(count=2)).tensor(
        "dp", Budget()
    )
    assert ' split="0:' in found.strategy and "*.up:column *.down:row" in found.strategy
    asked = request(one, found.strategy, 2, options({"engine": "simulated", "steps": 1}))
    mesh = Mesh(tensor=2, split=found.strategy.partition('"')[2].partition('"')[0])
    ran = split_plan(mesh, asked.task, deep(64), asked.deal).kinds
    said = {name: kind for name in ran for word, kind in found.splits if fnmatchcase(name, word)}
    assert said == ran and len(ran) >= 7


def test_names_are_written_out_where_a_pattern_would_mean_others() -> None:
    ways = ("whole", "column", "row")
    layers = tuple(Operator(name=name, ways=ways, most=8) for name in ("a.0.up", "a.1.up", "b.0.up", "b.1.up"))
    graph = OperatorGraph(operators=layers, edges=(), layers=tuple(one.name for one in layers))
    column, row = (OperatorConfig(1, 2, way) for way in ("column", "row"))
    assert dict(splits_of(graph, [column, row, column, column])) == {
        "a.0.up": "column", "a.1.up": "row", "b.*.up": "column",
    }  # fmt: skip
    words = Operator(name="words", ways=("whole", "column"), most=8)
    assert words.split(column) == "width", "as split= calls it"


def test_a_layout_that_fits_is_found_behind_a_faster_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    search = LayoutSearch(graph_of(), Devices(count=2, memory=50_000.0))
    large, small = (
        ModelLayout(plan="2 splits", strategy="x", method="", step=step, samples=1, memory=memory, traffic=0)
        for step, memory in ((1.0, 60_000.0), (2.0, 40_000.0))
    )
    monkeypatch.setattr(search, "tensor", lambda method, budget: iter([large, small]))
    assert [one.memory for one in search.all("dp", Budget()) if one.plan == "2 splits"] == [40_000.0]


def test_a_method_that_gives_up_is_noted_and_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "MOST_TRIED", 0)
    search = LayoutSearch(graph_of(), Devices(count=2))
    assert {"data parallel", "2 shards, zero=3"} <= {one.plan for one in search.all("dp", Budget())}
    assert len(search.notes) >= 1 and "use --method mcmc" in search.notes[0]


def test_a_layout_that_fails_in_virtual_time_is_refused_and_deaths_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = from_flags(compute="5ms", kill=["1@1ms"])
    answer = search_layouts(task(), LayoutTerms(machines=2, cluster=world, counted=True))
    assert answer.best is not None and answer.best.judged and all(one.runs for one in answer.layouts if one.strategy)

    def fails(*given: object, **more: object) -> None:
        raise RoleFailed("it broke")

    monkeypatch.setattr(covey, "fit", fails)
    monkeypatch.setattr(trial_layouts, "JUDGED", 99)
    with pytest.raises(PlanError, match="no layout of 2 machines can run this task: it broke"):
        search_layouts(task(), LayoutTerms(machines=2, counted=True, seconds=1e9))


def test_the_least_memory_is_that_of_a_layout_that_runs() -> None:
    """Adafactor refuses shards: they are not what would fit."""
    whole = replace(task(width=64), optimizer=lambda pairs: torch.optim.Adafactor(p for _, p in pairs))
    free = search_layouts(whole, LayoutTerms(machines=2, counted=True))
    limit = 0.8 * min(one.memory for one in free.layouts if one.runs)
    assert min(one.memory for one in LayoutSearch(free.graph, Devices(count=16)).sharded()) < limit
    with pytest.raises(PlanError, match=r"the smallest that was found, 2 s(plit|tage)s, needs") as refused:
        search_layouts(whole, LayoutTerms(machines=2, counted=True, memory=limit))
    assert "machines would do" not in str(refused.value)
    compiled = replace(task(), compile="eager")
    with pytest.raises(PlanError, match=r"the smallest that was found, (one machine alone|data parallel), needs"):
        search_layouts(compiled, LayoutTerms(machines=2, counted=True, memory=1000.0))


def test_the_smallest_layout_is_the_smallest_of_all() -> None:
    """With its memory as the limit it is found; with a byte less nothing is, and it is named."""
    small = task(width=64)
    with pytest.raises(PlanError, match="the smallest that was found") as refused:
        search_layouts(small, LayoutTerms(machines=4, counted=True, memory=1000.0))
    graph, profile = captured(small, LayoutTerms(machines=4, counted=True))
    search = LayoutSearch(graph, Devices(count=4), profile)
    least = min(search.smallest().all("dp", Budget()), key=lambda one: one.memory)
    assert f"the smallest that was found, {least.plan}, needs" in str(refused.value)
    free = search.all("dp", Budget())
    assert least.memory <= min(one.memory for one in free) and least.plan not in ("4 stages", "data parallel")
    tight = replace(search.devices, memory=least.memory)
    fitting = LayoutSearch(graph, tight, profile).all("dp", Budget())[1:]
    assert [one.plan for one in fitting] == [least.plan]
    less = replace(search.devices, memory=least.memory - 1)
    assert LayoutSearch(graph, less, profile).all("dp", Budget())[1:] == []


class Sparse(nn.Module):
    """A layer of four experts between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.experts = covey.nn.Experts(lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)), 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.experts(x))


def test_experts_are_divided_among_members_and_others_have_no_such_layout() -> None:
    """Bytes with Adam of 2 members: 16/2 of all weights, and 8 more of those that are not experts'."""
    sparse = replace(task(), model=Sparse)
    answer = search_layouts(sparse, LayoutTerms(machines=4, counted=True, seconds=20))
    found = {one.plan: one for one in answer.layouts if "expert" in one.plan}
    assert set(found) == {"2 x 2 expert members", "4 expert members"} and all(one.runs for one in found.values())
    assert found["4 expert members"].strategy == "allreduce with mesh(expert=4)"
    experts = 4 * 4 * (16 * 64 + 64 + 64 * 16 + 16)
    dense = 4 * sum(p.numel() for p in Sparse().parameters()) - experts
    rest = sum(one.kept + one.fixed for one in answer.graph.operators)
    assert found["2 x 2 expert members"].memory == pytest.approx(
        (2 + answer.graph.state) * (experts + dense) / 2 + 2 * dense + rest
    )
    tokens = 8 * 16 * 4
    assert found["4 expert members"].traffic == 2 * 3 * dense + 4 * 3 * tokens
    ran = covey.fit(sparse, found["4 expert members"].strategy, 4, engine="simulated", steps=1)
    assert ran.traffic.bytes == pytest.approx(found["4 expert members"].traffic, rel=0.35)
    assert not list(LayoutSearch(graph_of(), Devices(count=4)).experts())
    assert not [one for one in LayoutSearch(answer.graph, Devices(count=8)).experts() if "8 expert" in one.plan]


def test_slow_machines_slow_layouts_down() -> None:
    graph = graph_of()
    even, uneven = (LayoutSearch(graph, Devices(count=2, slow=slow)) for slow in ((), (1.0, 3.0)))
    ratio = uneven.data_parallel().step / even.data_parallel().step
    assert math.isclose(ratio, 3) and math.isclose(uneven.alone().step, even.alone().step)


def test_the_plan_of_a_search_runs_on_processes() -> None:
    best = search_layouts(covey.task.load_task("examples/digits.py"), LayoutTerms(machines=2, counted=True)).best
    assert best is not None
    assert covey.fit("examples/digits.py", best.strategy, best.workers, steps=1).stopped == "budget"


def test_an_operator_keeps_what_its_backward_reads_and_nothing_twice() -> None:
    """Of 5 samples in float32: the first layer keeps its inputs, Tanh its output, which the last layer reads, too."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    graph = operators_of(model, (torch.ones(5, 4),), repeat=0)
    assert [one.kept for one in graph.operators] == [5 * 4 * 4, 5 * 8 * 4, 0]
    assert [one.output for one in graph.operators] == [5 * 8 * 4, 5 * 8 * 4, 5 * 3 * 4]
    assert [one.weights for one in graph.operators] == [4 * (4 * 8 + 8), 0, 4 * (8 * 3 + 3)]
    assert graph.edges == ((0, 1), (1, 2))

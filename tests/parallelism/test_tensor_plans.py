"""Which layers are divided, by what, with how many exchanges, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import catalog
from covey.data.shards import Shards
from covey.errors import CoveyError
from covey.message import Address
from covey.model import build
from covey.model.replica_spec import ReplicaSpec
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.tensor.group import MemberGroup, _Copied, _Summed
from covey.parallelism.tensor.split_plan import SplitPlan, TrialGroup
from covey.parallelism.tensor.tensor_replica import TensorReplica
from covey.parallelism.tensor.tensor_roles import split_plan, tensor_replica
from tests.parallelism.split_models import Feed
from tests.parallelism.test_sharded import apart, run
from tests.parallelism.test_tensor import task


def planned(given: covey.Task, members: int = 2, split: str = "best") -> SplitPlan:
    mesh = Mesh(replica=1, stage=1, tensor=members, split=split)
    return split_plan(mesh, given, build.model(given, 0), Shards(70, 1, 6, seed=0))


# -- what is divided --------------------------------------------------------------------------------------------------


def member(given: covey.Task, members: int, me: int) -> TensorReplica:
    """One member of a group, outside of any run."""
    spec = ReplicaSpec(
        task=given, module=build.model(given, 0), deal=Shards(70, 1, 6, seed=0), who=Address("worker", me), trains=True,
        budget=None,
    )  # fmt: skip
    return tensor_replica(Mesh(replica=1, stage=1, tensor=members), me, spec)


@pytest.mark.parametrize("model", ["odd", "gpt", "tied"])
def test_every_number_has_one_owner(model: str) -> None:
    given, seen = task(model), Counter[int]()
    for me in range(3):
        for ends in member(given, 3, me).snapshot().piece:
            for first, stop in zip(ends[::2], ends[1::2], strict=True):
                seen.update(range(first, stop))
    numbers = sum(p.numel() for p in build.model(given, 0).parameters())
    assert set(seen) == set(range(numbers)) and set(seen.values()) == {1}


def test_a_member_keeps_only_its_slices() -> None:
    given = task("llama")
    replica = member(given, 2, 1)
    shared = replica.parts.slices.shared
    held = sum(local.numel() for name, local in replica.layout.parameters.items() if name not in shared)
    plan, whole = planned(given), dict(build.model(given, 0).named_parameters())
    assert held == sum(whole[name].numel() for name in plan.layouts) // 2 + 8  # 11 words: 5 and 6
    states = sum(p.numel() for group in replica.optimizer.param_groups for p in group["params"])
    assert states == replica.flat.numel == replica.grad.numel


def test_the_best_plan_divides_pairs_of_layers_heads_and_the_loss() -> None:
    plan = planned(task("gpt"))
    assert plan.kinds == {
        **{f"blocks.{n}.{name}": kind for n in (0, 1) for name, kind in
           {"mix": "column", "back": "row", "wide": "column", "narrow": "row"}.items()}, "head": "column",
    }  # fmt: skip
    assert plan.layouts["blocks.0.mix.weight"].blocks == ((2, 4),) * 3, "heads of queries, of keys, of values"
    llama = planned(task("llama"))
    assert llama.layouts["layers.0.mixer.query.weight"].blocks == ((2, 8),), "two heads of queries with each of keys"
    assert llama.layouts["layers.0.feed.up.weight"].blocks == ((24, 1),) * 2, "gates beside what they let through"
    assert planned(task("tied")).kinds["words"] == "vocabulary"


def test_what_stays_whole_is_named_with_the_reason() -> None:
    notes = "\n".join(planned(task("gpt"), 3).notes)
    assert "blocks.0.mix stays whole: its 2 heads or blocks are fewer than 3 members" in notes
    odd = planned(task("odd"), split="first:column again:column")
    assert "cumsum needs whole values" in "\n".join(odd.notes)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


cube = Cube.apply  # as most people have it


class Cubic(nn.Module):
    """Layers before and after a function with a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, 12)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.last(cube(self.first(x.flatten(1)) * 0.3))))


def test_what_a_function_of_the_users_is_given_stays_whole() -> None:
    given = task(Cubic)
    plan = planned(given)
    assert "first stays whole: a torch.autograd.Function needs its whole output" in plan.notes
    assert plan.kinds == {"last": "column", "out": "row"}
    assert apart(run(given, "allreduce with mesh(tensor=2)", 2), run(given, "allreduce", 1)) < 1e-10
    with pytest.raises(CoveyError, match=r"a torch\.autograd\.Function is given a value"):
        planned(given, split="first:column")


def test_weights_that_are_computed_stay_whole() -> None:
    def normed() -> nn.Module:
        torch.manual_seed(0)
        first = nn.utils.spectral_norm(nn.Linear(64, 8))
        return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 5))

    plan = planned(task(normed))
    assert any(note.startswith("1 stays whole: its weight is no parameter") for note in plan.notes)
    assert plan.kinds == {"3": "column", "5": "row"}
    with pytest.raises(CoveyError, match="1 cannot be divided: its weight is no parameter"):
        planned(task(normed), split="1:column")


@pytest.mark.parametrize("split", ["[ab]*.up:column", "a?.up:column", "*.up:column b:row"])
def test_what_a_mesh_says_of_itself_is_read_back(split: str) -> None:
    said = catalog.resolve(catalog.chosen(f'allreduce with mesh(tensor=2, split="{split}")', 2), 2).text
    assert catalog.resolve(catalog.chosen(said, 2), 2).text == said and f'split="{split}"' in said


SPLITS = {
    "gpt": "blocks.*.mix:column blocks.*.back:row blocks.1.wide:column head:row words:width",
    "translator": "words:vocabulary *.up:column *.down:row",
    "odd": "first:row again:column last:row",
    "cnn": "0:output 4:input 9:row",
}


@pytest.mark.parametrize("model", SPLITS)
def test_layers_are_divided_as_annotated_whatever_that_costs(model: str) -> None:
    given = task(model)
    found = run(given, f'allreduce with mesh(tensor=2, split="{SPLITS[model]}")', 2)
    assert apart(found, run(given, "allreduce", 1)) < 1e-10
    assert f'split="{SPLITS[model]}"' in found.strategy


def test_nothing_divided_is_whole_on_every_member() -> None:
    given = task("mlp")
    found = run(given, "allreduce with mesh(tensor=2, split=none)", 2)
    assert apart(found, run(given, "allreduce", 1)) < 1e-12


# -- exchanges --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many there were, on all members, and in which direction."""
    found = Counter[str]()

    def counting(cls: Any, method: str, what: str) -> None:
        before = getattr(cls, method)

        def counted(ctx: Any, *given: Any) -> Any:
            found[what] += not isinstance(given[0], TrialGroup)
            return before(ctx, *given)

        monkeypatch.setattr(cls, method, staticmethod(counted))

    counting(_Summed, "forward", "forward")
    counting(_Copied, "backward", "backward")
    exchange = MemberGroup.everybodys

    def everybodys(self: MemberGroup, mine: Tensor) -> Any:
        found["exchanges"] += 1
        return exchange(self, mine)

    monkeypatch.setattr(MemberGroup, "everybodys", everybodys)
    return found


class Blocks(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.feeds = nn.Sequential(*(Feed(8, 12, 0.2) for _ in range(depth)))
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.feeds(self.first(x.flatten(1))))


def test_a_block_of_two_layers_makes_one_sum_each_way(sums: Counter[str]) -> None:
    given, split = task(lambda: Blocks(3)), "feeds.*.up:column feeds.*.down:row"
    run(given, f'allreduce with mesh(tensor=2, split="{split}")', 2, steps=1)
    assert sums == {"forward": 2 * 3, "backward": 2 * 3, "exchanges": 2 * 6}


def test_queries_keys_and_values_make_one_sum_together(sums: Counter[str]) -> None:
    given, split = task("plain attention"), "*.query:column *.key:column *.value:column *.out:row"
    run(given, f'allreduce with mesh(tensor=2, split="{split}")', 2, steps=1)
    assert sums == {"forward": 2 * 2, "backward": 2 * 2, "exchanges": 2 * 4}


def test_scores_of_divided_classes_do_not_travel(sums: Counter[str]) -> None:
    """Of each sample its maximum, a sum and one score go to the other member; backward sums the last input's error."""
    given = task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 40)))
    found = run(given, "allreduce with mesh(tensor=2)", 2, steps=1)
    assert sums == {"exchanges": 2 * 2}
    assert found.traffic.bytes == 2 * 3 * 6 * 8


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("allreduce with mesh(tensor=3)", r"mesh\(tensor=3\) needs a multiple of 3 workers, not 4"),
        ("allreduce with mesh(replica=2, tensor=3)", r"mesh\(replica=2, tensor=3\) needs 6 workers, not 4"),
        ("allreduce with mesh(tensor=0)", r"mesh\(tensor=0\): at least 1"),
        ("allreduce with mesh(tensor=4, microbatches=2)", "no timetable"),
        ("allreduce with mesh(tensor=2, expert=2)", "Transformer has no such layer"),
        ("allreduce(bucket=1KB) with mesh(tensor=4)", "while backward runs"),
        ("one_weird_trick with mesh(tensor=4)", "divides the layers of its model itself"),
        ("allreduce with mesh(tensor=4, split=blocks.0.wid:column)", r"no layer 'blocks.0.wid'; did you mean 'blocks"),
        ("allreduce with mesh(tensor=4, split=head:vocabulary)", "head is Linear, which is divided by column or row"),
        ("allreduce with mesh(tensor=4, split=column)", "write LAYER:KIND"),
        ("allreduce with mesh(tensor=4, split=blocks.0.mix:column)", r"mix has 2 heads .* use tensor=2 or fewer"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_would_work(spec: str, said: str) -> None:
    with pytest.raises(CoveyError, match=said):
        run(task(), spec, 4)


def test_models_and_optimizers_that_cannot_be_divided_are_refused() -> None:
    class Whole(torch.optim.SGD):
        elementwise = False

    with pytest.raises(CoveyError, match="element-wise optimizer"):
        run(task(optimizer=lambda p: Whole(p, lr=0.1)), "allreduce with mesh(tensor=2)", 2)
    tiny = task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))
    with pytest.raises(CoveyError, match=r"finds nothing to divide in Sequential: 1: 5 units cannot be divided"):
        run(tiny, "allreduce with mesh(tensor=6)", 6)
    with pytest.raises(CoveyError, match=r"1 has 5 of what column divides, too few for 6 members: use tensor=5"):
        run(tiny, "allreduce with mesh(tensor=6, split=1:column)", 6)

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x.flatten(1))
            hidden[:, 2] = 0
            return self.last(hidden)

    with pytest.raises(CoveyError, match="__setitem__ changes a value in place that mesh"):
        run(task(Written), "allreduce with mesh(tensor=2)", 2)

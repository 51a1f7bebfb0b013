"""Parameters, gradients and optimizer state divided by rows: the same values, less memory, the papers' traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.data.group_batches import GroupBatches
from covey.data.shards import Shards
from covey.errors import CoveyError, PlanError
from covey.message import Address
from covey.model import build
from covey.model.replica_spec import ReplicaSpec
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.shard_replica import ShardReplica
from covey.parallelism.sharded.shard_roles import shard_replica
from covey.parallelism.sharded.working_weights import WorkingWeights
from tests.parallelism.divided_runs import apart, run
from tests.parallelism.models import Transformer, cnn
from tests.worlds import vector

CHANCE = torch.Generator().manual_seed(4)
WORDS = torch.randint(0, 11, (70, 5), generator=CHANCE), torch.randint(0, 11, (70, 5), generator=CHANCE)
IMAGES = torch.randn(70, 1, 8, 8, dtype=torch.float64, generator=CHANCE), torch.randint(0, 3, (70,), generator=CHANCE)


def ragged() -> nn.Module:
    """Rows that three members cannot have equally many of, a single number, and a layer that is used twice."""

    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.last = nn.Linear(64, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 3)
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(x.flatten(1)))
            return self.last(self.again(torch.tanh(self.again(hidden)))) * self.scale

    return Ragged().double()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
    "ragged": (ragged, IMAGES),
    "cnn": (lambda: cnn().double(), IMAGES),
    "gpt": (lambda: Transformer().double(), WORDS),
    "tied": (lambda: Transformer(tied=True).double(), WORDS),
}


def task(which: str = "ragged", **more: Any) -> covey.Task:
    make, data = MODELS[which]
    usual: dict[str, Any] = {
        "model": make, "data": data, "batch_size": 6, "optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "loss": lambda out, target: nn.functional.cross_entropy(out.flatten(0, -2), target.flatten()),
    }  # fmt: skip
    return covey.Task(**{**usual, **more})


def stored(parameter: nn.Parameter) -> int:
    """How many numbers there are in memory."""
    return parameter.untyped_storage().nbytes() // parameter.element_size()


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_divided_models_learn_what_whole_ones_learn(model: str, zero: int) -> None:
    alone, both = task(model), task(model, accumulate=2, batch_size=3)
    assert apart(run(alone, f"allreduce with mesh(shard=3, zero={zero})", 3), run(alone, "allreduce", 3)) < 1e-10
    mesh = f"allreduce with mesh(replica=2, shard=2, zero={zero})"
    assert apart(run(both, mesh, 4), run(both, "allreduce", 4)) < 1e-10


class Outside(nn.Module):
    """Uses parameters of a layer without its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.last = nn.Embedding(9, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.last(x.flatten(1) + self.places.weight[2]), self.places.weight[:3])


def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that looks at all parameters, after forward."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss + 0.1 * torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def test_parameters_are_there_wherever_they_are_used() -> None:
    given = task(model=lambda: Outside().double(), loss=None, step=decayed)
    for zero in (2, 3):
        assert apart(run(given, f"allreduce with mesh(shard=2, zero={zero})", 2), run(given, "allreduce", 2)) < 1e-10


@pytest.mark.full
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_twenty_steps_with_four_members(model: str, zero: int) -> None:
    given = task(model)
    whole = run(given, "allreduce", 4, steps=20)
    assert apart(run(given, f"allreduce with mesh(shard=4, zero={zero})", 4, steps=20), whole) < 1e-10
    assert apart(run(given, f"bsp with mesh(replica=2, shard=2, zero={zero})", 4, steps=20), whole) < 1e-10


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_single_group_has_the_bits_of_sliced(zero: int) -> None:
    given = task("tied", optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
    divided, sliced = run(given, f"allreduce with mesh(shard=3, zero={zero})", 3), run(given, "sliced", 3)
    assert all(torch.equal(divided.weights[name], sliced.weights[name]) for name in sliced.weights)


@pytest.mark.parametrize("spec", ["bsp", "easgd(period=2)", "local_sgd(period=3)", "bsp + topk(density=0.3)"])
def test_strategies_run_along_the_replicas_whatever_is_divided(spec: str) -> None:
    given = task()
    found = [run(given, f"{spec} with mesh(replica=2, shard=2, zero={zero})", 4) for zero in (1, 3)]
    assert apart(*found) < 1e-12
    assert found[0].samples == 2 * 70  # two passes


def test_clipping_holds_for_the_gradient_of_the_whole_model() -> None:
    given = task(clip_norm=0.01, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
    divided, whole = run(given, "local_sgd(period=1) with mesh(replica=1, shard=2)", 2), run(given, "bsp", 2)
    assert apart(divided, whole) < 1e-10


def test_members_without_samples_left_in_a_pass_serve_on() -> None:
    given = task(data=tuple(part[:25] for part in IMAGES))  # 9, 8 and 8 samples: 2 batches each; of 4: 3, 2, 2
    smaller = task(data=tuple(part[:25] for part in IMAGES), batch_size=4)
    for found in (given, smaller):
        divided = run(found, "allreduce with mesh(shard=3)", 3, steps=None, epochs=2)
        assert divided.samples == 2 * 25
    one_pass = run(smaller, "allreduce with mesh(shard=3)", 3, steps=None, epochs=1)
    assert apart(one_pass, run(smaller, "allreduce", 3, steps=None, epochs=1)) < 1e-10


def test_a_rate_schedule_counts_what_others_compute_while_a_member_has_no_samples() -> None:
    asked: set[int] = set()

    def rate(progress: float) -> float:
        asked.add(round(50 * progress))
        return 1.0

    given = task(data=tuple(part[:25] for part in IMAGES), batch_size=4, rate=rate)
    run(given, "local_sgd(period=1) with mesh(replica=1, shard=3, zero=1)", 3, steps=None, epochs=2)
    assert asked == {0, 12, 24, 25, 37, 49}


def test_passes_of_a_group_end_together() -> None:
    group = GroupBatches(Shards(25, 3, 4, seed=0), 3)  # 8, 8 and 9 samples
    steps = group.steps(0)
    assert steps == 3 and sorted(group.deal.steps(rank) for rank in range(3)) == [2, 2, 3]
    for rank in range(3):
        taken = [group.own(rank, step) for step in range(2 * steps)]
        assert [own for own in taken if own is not None] == list(range(2 * group.deal.steps(rank)))
        for many in range(2 * steps + 1):
            assert group.total(rank, many) == sum(group.batch(rank, step) for step in range(many))


@pytest.mark.parametrize("samples", [62, 17])
def test_members_with_fewer_batches_of_a_step_compute_along(samples: int) -> None:
    """62 samples: the last step of a pass is computed in 2, 2, 1 and 1 batches; 17: one member has none of it."""
    many, size = (4, 3) if samples == 62 else (2, 4)
    given = task("cnn", data=tuple(part[:samples] for part in IMAGES), batch_size=size, accumulate=2)
    for zero in (2, 3):
        divided = run(given, f"allreduce with mesh(shard={many}, zero={zero})", many, steps=None, epochs=1)
        assert apart(divided, run(given, "allreduce", many, steps=None, epochs=1)) < 1e-10


class Shared(nn.Module):
    """Two parameters with one gradient, one that is kept over its layer's forward, and a layer that gives one away."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(64))
        self.table, self.given = nn.Linear(64, 64, bias=False), Given()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.table.weight
        x = self.table(x.flatten(1) * self.given()) + (self.one + self.two)
        return nn.functional.linear(x, torch.conj(torch.complex(kept, kept)).real[:3])


class SomeRows(nn.Module):
    """Uses rows from the middle of a parameter; backward needs them again."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(64, 9, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.table.weight[3:6])


def test_backward_sees_the_rows_that_forward_used() -> None:
    class Before(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rows = nn.Linear(64, 64), SomeRows()

        def forward(self, x: Tensor) -> Tensor:
            return self.rows(self.first(x.flatten(1)).tanh())

    given = task(model=lambda: Before().double())
    assert apart(run(given, "allreduce with mesh(shard=2)", 2), run(given, "allreduce", 2)) < 1e-10


class Given(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.5))

    def forward(self) -> Tensor:
        return self.scale


def test_parameters_that_are_kept_or_given_away_stay() -> None:
    given = task(model=lambda: Shared().double())
    assert apart(run(given, "allreduce with mesh(shard=2)", 2), run(given, "allreduce", 2)) < 1e-10


@pytest.mark.parametrize("zero", [1, 3])
def test_models_that_write_into_their_parameters_are_refused(zero: int) -> None:
    class Limited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 11, max_norm=0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.words(x)

    with pytest.raises(CoveyError, match=r"words\.weight is written to while the model computes"):
        run(task("gpt", model=lambda: Limited().double()), f"allreduce with mesh(shard=2, zero={zero})", 2)


def test_a_companion_that_writes_weights_leaves_a_step_alone() -> None:
    """Workers of adpsgd average in the middle of a step; forward and backward have the weights of its beginning."""
    given, cluster = task("gpt"), covey.simulate.from_flags(jitter=0.3)
    found = [run(given, f"adpsgd with mesh(replica=2, shard=2, zero={zero})", 4, cluster=cluster) for zero in (1, 3)]
    assert all(torch.isfinite(weight).all() for one in found for weight in one.weights.values())


# -- memory and traffic -----------------------------------------------------------------------------------------------


def member(zero: int, model: str = "gpt") -> ShardReplica:
    """One of four members of a group, outside of any run."""
    given = task(model)
    deal = Shards(70, 4, 6, seed=0)
    spec = ReplicaSpec(
        task=given, module=build.model(given, 0), deal=deal, who=Address("worker", 1), trains=True, budget=None
    )
    return shard_replica(Mesh(replica=1, stage=1, shard=4, zero=zero), 1, spec)


def test_a_member_holds_what_its_stage_of_zero_says() -> None:
    for zero, whole in ((1, True), (2, True), (3, False)):
        replica = member(zero)
        numbers = sum(shape.numel() for shape in replica.parts.weights.shapes.values())
        held = sum(stored(parameter) for parameter in replica.module.parameters())
        assert held == (numbers if whole else len(replica.parts.weights.shapes))  # one for each that is let go
        assert abs(replica.flat.numel - numbers / 4) < 0.05 * numbers
        states = sum(p.numel() for group in replica.optimizer.param_groups for p in group["params"])
        assert states == replica.flat.numel == replica.grad.numel


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most numbers of whole parameters, and of gradients of whole parameters, that one member had at a time."""
    seen = {"parameters": 0, "gradients": 0}
    gather, hand_out = WorkingWeights._gather, GradientSums.hand_out

    def gathering(self: WorkingWeights, number: int) -> None:
        gather(self, number)
        seen["parameters"] = max(seen["parameters"], sum(stored(p) for p in self.parameters.values()))

    async def handing(self: GradientSums, *given: Any) -> None:
        there = sum(p.grad.numel() for p in self.parameters.values() if p.grad is not None)
        seen["gradients"] = max(seen["gradients"], there)
        await hand_out(self, *given)

    monkeypatch.setattr(WorkingWeights, "_gather", gathering)
    monkeypatch.setattr(GradientSums, "hand_out", handing)
    return seen


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_only_a_layer_at_a_time_is_whole(zero: int, largest: dict[str, int]) -> None:
    run(task("gpt"), f"allreduce with mesh(shard=2, zero={zero})", 2, steps=2)
    replica = member(3)
    sizes = {name: shape.numel() for name, shape in replica.parts.weights.shapes.items()}
    layers = [sum(sizes[name] for name in layer.names) for layer in replica.parts.weights.layers]
    two_largest = sum(sorted(layers)[-2:])
    assert two_largest < sum(layers) / 2
    if zero == 1:
        assert largest["gradients"] == sum(sizes.values())
    else:
        assert 0 < largest["gradients"] <= two_largest
    if zero == 3:
        assert 0 < largest["parameters"] <= two_largest


@pytest.mark.parametrize(("zero", "volumes"), [(1, 2.0), (2, 2.0), (3, 3.0)])
def test_traffic_is_that_of_the_paper(zero: int, volumes: float) -> None:
    """Of Psi parameters every member sends 2 Psi (P - 1) / P numbers in a step, 3 where parameters are divided too."""
    steps, members = 3, 4
    first = 64 * 64  # its input needs no gradient, so backward does not ask for its weights
    given = task(model=lambda: nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64, bias=False) for _ in range(4))).double())
    found = run(given, f"allreduce with mesh(shard={members}, zero={zero})", members, steps=steps)
    numbers = 4 * first * volumes - (first if zero == 3 else 0)
    assert found.traffic.bytes == steps * numbers * (members - 1) * 8


def test_mics_pays_between_groups_once_for_all_batches_that_a_step_accumulates() -> None:
    between, inside = [], []
    for accumulate in (1, 4):
        found = run(task(batch_size=2, accumulate=accumulate), "allreduce with mesh(replica=2, shard=2)", 4, steps=4)
        links = {tuple(int(who.split()[1]) // 2 for who in link.split("->")): 0 for link in found.traffic.by_link}
        for link, size in found.traffic.by_link.items():
            one, other = (int(who.split()[1]) // 2 for who in link.split("->"))
            links[one, other] += size
        between.append(links[0, 1] + links[1, 0])
        inside.append(links[0, 0] + links[1, 1])
    assert between[0] == between[1] > 0
    assert inside[1] > 3 * inside[0]


# -- engines and checkpoints ------------------------------------------------------------------------------------------


def test_real_processes_compute_the_same() -> None:
    given = task("gpt")
    mesh = "allreduce with mesh(replica=1, shard=2)"
    assert apart(run(given, mesh, 2, engine="local"), run(given, mesh, 2)) < 1e-12


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    given = task("gpt")
    spec = "bsp with mesh(replica=2, shard=2)"
    run(given, spec, 4, steps=3, checkpoint=str(tmp_path / "kept"), every="20ms")
    resumed = run(given, spec, 4, steps=6, resume=str(tmp_path / "kept"))
    whole = run(given, spec, 4, steps=6)
    assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)


def test_the_names_of_the_papers_divide_what_they_say() -> None:
    given = task()
    whole = run(given, "allreduce", 4)
    for name in ("zero1", "zero2", "zero3", "fsdp", "mics"):
        found = run(given, name, 4)
        assert apart(found, whole) < 1e-10 and found.strategy.startswith(name)
    assert "zero=1" in run(given, "zero1 with mesh(shard=2)", 4).strategy, "what is written goes before, not instead"
    assert "zero=1" in run(given, "zero1", 2).strategy and "replica=2, stage=1, shard=2" in found.strategy
    assert apart(run(given, "zero3", 1), run(given, "allreduce", 1)) < 1e-10


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("allreduce with mesh(shard=3)", "a multiple of 3 workers, not 4"),
        ("allreduce with mesh(replica=2, shard=3)", r"mesh\(replica=2, shard=3\) needs 6 workers, not 4"),
        ("allreduce with mesh(shard=4, zero=4)", "zero=4: 1, 2 or 3"),
        ("zero2 with mesh(stage=2)", "zero=2 .* use zero=1, or shard without stage"),
        ("mics with mesh(replica=3)", "a multiple of 3 workers"),
        ("allreduce with mesh(shard=4, microbatches=2)", "omit them"),
        ("allreduce(bucket=1KB) with mesh(shard=4)", "while backward runs"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_would_work(spec: str, said: str) -> None:
    with pytest.raises(CoveyError, match=said):
        run(task(), spec, 4)


def test_optimizers_and_layers_that_see_whole_parameters_are_refused() -> None:
    class Whole(torch.optim.SGD):
        elementwise = False

    with pytest.raises(CoveyError, match="element-wise optimizer"):
        run(task(optimizer=lambda p: Whole(p, lr=0.1)), "allreduce with mesh(shard=2)", 2)
    norm = task("cnn", model=lambda: nn.SyncBatchNorm.convert_sync_batchnorm(cnn().double()))
    with pytest.raises(CoveyError, match=r"use nn\.BatchNorm"):
        run(norm, "allreduce with mesh(shard=2)", 2)
    tiny = task(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double())
    with pytest.raises(CoveyError, match="use fewer, or several replicas"):
        run(tiny, "allreduce with mesh(shard=4)", 4)


def test_layers_in_another_order_are_named() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
            self.last = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            layers = [self.one, self.two] if float(x.sum()) > 0 else [self.two, self.one]
            for layer in layers:
                x = torch.tanh(layer(x))
            return self.last(x)

    with pytest.raises(CoveyError, match="the same layers in the same order; use zero=2"):
        run(task(model=lambda: Fickle().double()), "allreduce with mesh(shard=2)", 2)
    given = task(model=lambda: Fickle().double())
    assert apart(run(given, "allreduce with mesh(shard=2, zero=2)", 2), run(given, "allreduce", 2)) < 1e-10


def test_a_layer_is_complete_once_and_a_gradient_after_that_is_refused() -> None:
    sums: Any = SimpleNamespace(of={"a": 0, "b": 0}, _left={(0, 0): {"a", "b"}})
    assert [GradientSums.ready(sums, 0, name) for name in ("a", "b")] == [None, 0]
    del sums._left[0, 0]  # as when its gradient has left
    with pytest.raises(PlanError, match="a gets its gradient twice in one backward.*use_reentrant=False"):
        GradientSums.ready(sums, 0, "a")


@pytest.mark.parametrize(("me", "samples", "mean"), [(0, [4, 0, 4], 3.0), (1, [4, 0, 4], 5.0), (0, [4, 4, 4], 3.0)])
def test_statistics_are_the_mean_of_members_that_had_samples(me: int, samples: list[int], mean: float) -> None:
    """The own ones are 1, and the others' 5: what a member without samples has counts for nobody."""
    sent: list[int] = []

    async def send(to: int, message: Any) -> None:
        sent.append(to)

    async def receive(kind: Any, sender: int, step: int) -> Any:
        return SimpleNamespace(buffers=vector(5.0 if samples[1] == 0 or sender == 1 else 3.0))

    node: Any = SimpleNamespace(step=0, send=send, receive=receive)
    parts = SimpleNamespace(shard=me, sums=SimpleNamespace(owners=SimpleNamespace(peer=lambda member: member)))
    others = [member for member in range(3) if member != me]
    replica: Any = SimpleNamespace(buffers=vector(1.0), parts=parts, _others=lambda: others)
    with pytest.raises(StopIteration):
        ShardReplica._mean_buffers(replica, node, samples).send(None)
    assert replica.buffers.parts[0].item() == mean and sent == (others if samples[me] else [])

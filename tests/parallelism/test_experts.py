"""Experts divided among workers: the values of whole models with a batch each, tokens on the wire, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.data.shards import Shards
from covey.errors import CoveyError
from covey.message import Address
from covey.model import build
from covey.model.replica_spec import ReplicaSpec
from covey.nn import Experts
from covey.parallelism.experts.expert_roles import expert_replica
from covey.parallelism.plan.mesh import Mesh
from tests.parallelism.divided_runs import apart, run

CHANCE = torch.Generator().manual_seed(4)
POINTS = torch.randn(70, 8, dtype=torch.float64, generator=CHANCE), torch.randint(0, 3, (70,), generator=CHANCE)
WORDS = torch.randint(0, 11, (70, 5), generator=CHANCE), torch.randint(0, 11, (70, 5), generator=CHANCE)


def perceptron(width: int = 8, hidden: int = 12) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width))


class Points(nn.Module):
    """Two layers of experts in a row, the second with fewer places than tokens, and batch statistics beside them."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.one = Experts(perceptron, **{"experts": 4, **more})
        self.two = Experts(lambda: nn.Linear(8, 8), **{"experts": 5, "capacity": 0.7, **more})

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        x = x + self.one(x)
        return self.last(x + self.two(x))


class Words(nn.Module):
    """Tied words, attention, dropout in front of the experts; the head has the words' weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.experts = Experts(perceptron, experts=6, top=2, capacity=1.0, jitter=0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        h = h + self.mix(h, h, h, need_weights=False)[0]
        return (h + self.experts(self.drop(h))) @ self.words.weight.t()


class Given(nn.Module):
    """Experts whose tokens are the samples, so that nobody asks for their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.last = Experts(perceptron, experts=4, capacity=0.5), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.experts(x))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
    "points": (lambda: Points().double(), POINTS),
    "second choices": (lambda: Points(top=2).double(), POINTS),
    "words": (lambda: Words().double(), WORDS),
    "given": (lambda: Given().double(), POINTS),
}


def task(which: str = "points", **more: Any) -> covey.Task:
    make, data = MODELS[which]
    usual: dict[str, Any] = {
        "model": make, "data": data, "batch_size": 6, "optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "loss": lambda out, target: nn.functional.cross_entropy(out.flatten(0, -2), target.flatten()),
    }  # fmt: skip
    return covey.Task(**{**usual, **more})


@pytest.mark.parametrize("members", [2, 3, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("model", MODELS)
def test_divided_experts_learn_what_whole_models_learn(model: str, members: int) -> None:
    given = task(model)
    divided = run(given, f"allreduce with mesh(expert={members})", members, steps=5 if members == 3 else 20)
    whole = run(given, "allreduce", members, steps=5 if members == 3 else 20)
    assert apart(divided, whole) < 1e-10
    assert divided.notes["dropped tokens"] == whole.notes["dropped tokens"] > 0


@pytest.mark.parametrize("spec", ["allreduce", "bsp", "easgd(period=2)"])
def test_strategies_run_along_the_replicas(spec: str) -> None:
    given = task(optimizer=lambda p: torch.optim.Adam(p, lr=0.01))
    found = run(given, f"{spec} with mesh(replica=2, expert=2)", 4)
    assert found.samples == 2 * 70  # two passes
    if spec in ("allreduce", "bsp"):
        assert apart(found, run(given, "allreduce", 4)) < 1e-10


def test_one_member_has_the_bits_of_a_whole_model() -> None:
    divided, whole = run(task(), "allreduce with mesh(expert=1)", 1), run(task(), "allreduce", 1)
    assert all(torch.equal(divided.weights[name], whole.weights[name]) for name in whole.weights)


@pytest.mark.parametrize(("samples", "size", "accumulate"), [(25, 4, 1), (17, 4, 2), (62, 3, 2)])
def test_members_without_samples_left_serve_on(samples: int, size: int, accumulate: int) -> None:
    """25, 17: one member has a step more than the others; 62: the last step has 2, 2, 1 and 1 batches."""
    data, many = tuple(part[:samples] for part in WORDS), {17: 2, 25: 3, 62: 4}[samples]
    given = task("words", data=data, batch_size=size, accumulate=accumulate)
    divided = run(given, f"allreduce with mesh(expert={many})", many, steps=None, epochs=1)
    whole = run(given, "allreduce", many, steps=None, epochs=1)
    assert apart(divided, whole) < 1e-10
    assert divided.notes["dropped tokens"] == whole.notes["dropped tokens"]
    twice = run(given, f"allreduce with mesh(expert={many})", many, steps=None, epochs=2)
    assert twice.samples == 2 * samples


class Crowded(nn.Module):
    """All tokens choose the last expert, so that all members but one have none to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.experts = Experts(perceptron, experts=4, capacity=4.0, balance=0.0)
        with torch.no_grad():
            self.experts.router.weight.zero_()[-1] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.first(x))
        return self.last(x + self.experts(x))


def test_members_without_a_token_for_their_experts_get_their_gradients() -> None:
    given = task(model=lambda: Crowded().double())
    assert apart(run(given, "allreduce with mesh(expert=2)", 2), run(given, "allreduce", 2)) < 1e-10


def test_clipping_holds_for_the_gradient_of_the_whole_model() -> None:
    given = task(clip_norm=0.01, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
    divided, whole = run(given, "local_sgd(period=1) with mesh(replica=1, expert=2)", 2), run(given, "bsp", 2)
    assert apart(divided, whole) < 1e-10


def test_random_delays_change_nothing() -> None:
    given = task("words")
    slow = run(given, "allreduce with mesh(replica=2, expert=2)", 4, cluster=covey.simulate.from_flags(jitter=0.5))
    assert apart(slow, run(given, "allreduce with mesh(replica=2, expert=2)", 4)) == 0


# -- memory and traffic -----------------------------------------------------------------------------------------------


def test_a_member_has_its_own_experts_alone() -> None:
    given = task()
    spec = ReplicaSpec(
        task=given, module=build.model(given, 0), deal=Shards(70, 3, 6, seed=0), who=Address("worker", 1), trains=True,
        budget=None,
    )  # fmt: skip
    whole = {name: weight.numel() for name, weight in build.model(given, 0).named_parameters()}
    replica = expert_replica(Mesh(replica=1, stage=1, expert=3), 1, spec)
    held = {name: weight.numel() for name, weight in replica.module.named_parameters()}
    experts = {name for name in held if ".experts." in name}
    layers = {tuple(name.split(".")[::2][:2]) for name in experts}
    assert layers == {("one", "1"), ("two", "1"), ("two", "2")}
    assert held.items() <= whole.items() and {name for name in whole if ".experts." not in name} <= held.keys()
    owned = sum(whole[name] for name in experts) + sum(whole[name] for name in held if name not in experts) / 3
    assert abs(replica.flat.numel - owned) < 0.05 * owned
    states = sum(p.numel() for group in replica.optimizer.param_groups for p in group["params"])
    assert states == replica.flat.numel == replica.grad.numel


class Even(nn.Module):
    """Every expert is chosen by as many tokens: each token says which."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.scale = nn.Linear(16, 16, bias=False)
        self.experts = Experts(lambda: nn.Linear(16, 16, bias=False), experts=experts, capacity=1.0, balance=0.0)
        with torch.no_grad():
            self.scale.weight.copy_(torch.eye(16))
            self.experts.router.weight.copy_(50 * torch.eye(16)[:experts])

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(self.scale(x))


@pytest.mark.parametrize("members", [2, 4])
def test_only_tokens_travel_twice_each_way(members: int) -> None:
    """2 T d b (1 - 1/E) bytes of a member forward, as many backward; of the other weights what sharded ones send."""
    samples, tokens, width, steps = 4, 8, 16, 3
    data = torch.eye(16, dtype=torch.float64)[torch.arange(tokens) % members].expand(64, tokens, 16).contiguous()
    given = task(
        model=lambda: Even(members).double(), data=(data, torch.zeros(64, 8, dtype=torch.int64)), batch_size=samples,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.0),
    )  # fmt: skip
    found = run(given, f"allreduce with mesh(expert={members})", members, steps=steps)
    of_tokens = 2 * 2 * samples * tokens * width * 8 * (1 - 1 / members)
    dense = 2 * (16 * 16 + members * 16) * 8 * (1 - 1 / members)
    assert found.traffic.bytes == steps * members * (of_tokens + dense)
    assert found.notes["dropped tokens"] == 0


# -- engines and checkpoints ------------------------------------------------------------------------------------------


def test_real_processes_compute_the_same() -> None:
    mesh = "allreduce with mesh(replica=1, expert=2)"
    assert apart(run(task("words"), mesh, 2, engine="local"), run(task("words"), mesh, 2)) < 1e-12


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    given, spec = task(), "bsp with mesh(replica=2, expert=2)"
    run(given, spec, 4, steps=3, checkpoint=str(tmp_path / "kept"), every="20ms")
    resumed = run(given, spec, 4, steps=6, resume=str(tmp_path / "kept"))
    whole = run(given, spec, 4, steps=6)
    assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)


def test_switch_is_this_by_name() -> None:
    found = run(task(), "switch", 4)
    assert found.strategy.startswith("switch") and "replica=2, stage=1, expert=2" in found.strategy
    assert "expert=4" in run(task(), "switch with mesh(expert=4)", 4).strategy
    assert apart(found, run(task(), "allreduce", 4)) < 1e-10


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("allreduce with mesh(expert=3)", r"mesh\(expert=3\) needs a multiple of 3 workers, not 4"),
        ("allreduce with mesh(replica=2, expert=3)", r"mesh\(replica=2, expert=3\) needs 6 workers, not 4"),
        ("allreduce with mesh(expert=0)", "at least 1 is needed"),
        ("allreduce with mesh(expert=2, zero=2)", "zero=2 .* use zero=1, or shard without expert"),
        ("allreduce with mesh(expert=2, microbatches=2)", "omit them"),
        ("allreduce(bucket=1KB) with mesh(expert=4)", "while backward runs"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_would_work(spec: str, said: str) -> None:
    with pytest.raises(CoveyError, match=said):
        run(task(), spec, 4)


def shared() -> nn.Module:
    one = nn.Linear(8, 8)
    return nn.Sequential(Experts(lambda: one, experts=4), nn.Linear(8, 3)).double()


def nested() -> nn.Module:
    return nn.Sequential(Experts(lambda: Experts(perceptron, experts=2), experts=4), nn.Linear(8, 3)).double()


def counting() -> nn.Module:
    return nn.Sequential(Experts(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), experts=4), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear(8, 3).double(), r"Linear has no such layer: use mesh\(shard=4\)"),
        (lambda: Points(experts=3).double(), r"one has 3 experts.*use mesh\(expert=3\), or fewer"),
        (shared, "share weights"), (nested, "experts inside its experts"), (counting, r"such as nn\.LayerNorm"),
        (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(Points().double()), "SyncBatchNorm"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_divided_are_refused(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(CoveyError, match=said):
        run(task(model=make), "allreduce with mesh(expert=4)", 4)


def test_layers_in_another_order_are_named() -> None:
    class Fickle(Points):
        def forward(self, x: Tensor) -> Tensor:
            layers = [self.one, self.two] if float(x.sum()) > 0 else [self.two, self.one]
            for layer in layers:
                x = x + layer(x)
            return self.last(x)

    with pytest.raises(CoveyError, match="these layers in the same order"):
        run(task(model=lambda: Fickle().double()), "allreduce with mesh(expert=2)", 2)


def test_a_router_without_numbers_is_named_with_its_step() -> None:
    given = task(optimizer=lambda p: torch.optim.SGD(p, lr=1e300))
    with pytest.raises(CoveyError, match=r"(one|two), step [1-3]: the router's probabilities are not numbers"):
        run(given, "allreduce with mesh(expert=2)", 2)

"""Layers divided among workers: the values of the model that is not divided, on every engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.errors import CoveyError
from covey.parallelism.tensor.tensor_replica import TensorReplica
from covey.program import Node
from tests.parallelism.models import Transformer, cnn
from tests.parallelism.split_models import Llama, Odd, Translator, mlp
from tests.parallelism.test_sharded import IMAGES, WORDS, apart, run

Made = Callable[[], nn.Module]
MODELS: dict[str, tuple[Made, tuple[Tensor, Tensor]]] = {
    "mlp": (mlp, IMAGES),
    "odd": (Odd, IMAGES),
    "cnn": (cnn, IMAGES),
    "gpt": (Transformer, WORDS),
    "tied": (lambda: Transformer(tied=True), WORDS),
    "llama": (Llama, WORDS),
    "plain attention": (lambda: Llama(fused=False, how="plain", drop=0.3), WORDS),
    "translator": (Translator, WORDS),
}


def task(which: str | Made = "gpt", **more: Any) -> covey.Task:
    make, data = (which, IMAGES) if callable(which) else MODELS[which]
    usual: dict[str, Any] = {
        "model": lambda: make().double(), "data": data, "batch_size": 6,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "loss": lambda out, target: nn.functional.cross_entropy(out.flatten(0, -2), target.flatten()),
    }  # fmt: skip
    return covey.Task(**{**usual, **more})


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_divided_layers_learn_what_whole_ones_learn(model: str) -> None:
    given = task(model)
    for members in (2, 3):
        found = run(given, f"allreduce with mesh(tensor={members})", members)
        assert apart(found, run(given, "allreduce", 1)) < 1e-10
    assert found.samples == 6 * 6


class Turned(nn.Module):
    """A weight that lies in memory as its transpose does, and belongs to no layer that can be divided."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(8, 12).t() * 0.1), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x.flatten(1)[:, :12] @ self.weight))


def test_a_whole_weight_may_lie_in_any_order() -> None:
    found = run(task(Turned), "allreduce with mesh(tensor=2)", 2)
    assert apart(found, run(task(Turned), "allreduce", 1)) < 1e-10


@pytest.mark.full
@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("model", MODELS)
def test_twenty_steps(model: str, members: int) -> None:
    given = task(model)
    whole = run(given, "allreduce", 2, steps=20)
    mesh = f"mesh(replica=2, tensor={members})"
    assert apart(run(given, f"allreduce with {mesh}", 2 * members, steps=20), whole) < 1e-10
    assert apart(run(given, f"bsp with {mesh}", 2 * members, steps=20), whole) < 1e-10


@pytest.mark.parametrize("model", ["gpt", "translator"])
def test_one_step_at_rate_1_has_the_gradient(model: str) -> None:
    given = task(model, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    found = run(given, "allreduce with mesh(tensor=2)", 2, steps=1)
    assert apart(found, run(given, "allreduce", 1, steps=1)) < 1e-10


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, str], list[Tensor]]:
    """Of parameters that all members have: what each member has found in a step."""
    found: dict[tuple[int, str], list[Tensor]] = defaultdict(list)
    before = TensorReplica.gradient

    async def gradient(self: TensorReplica, node: Node, clip: bool = True) -> Any:
        made = await before(self, node, clip)
        for name, one in self.parts.slices.shared.items():
            found[node.step, name].append(torch.zeros_like(one) if one.grad is None else one.grad.clone())
        return made

    monkeypatch.setattr(TensorReplica, "gradient", gradient)
    return found


@pytest.mark.parametrize("model", ["gpt", "plain attention", "odd"])
def test_whole_values_are_the_same_on_all_members_to_the_bit(
    model: str, gradients: dict[tuple[int, str], list[Tensor]]
) -> None:
    single = task(model, model=lambda: MODELS[model][0]().float(), data=_floats(MODELS[model][1]))
    run(single, "allreduce with mesh(tensor=3)", 3, steps=3)
    assert gradients and all(len(each) == 3 for each in gradients.values())
    assert all(torch.equal(one, each[0]) for each in gradients.values() for one in each)


def _floats(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return data[0].float() if data[0].is_floating_point() else data[0], data[1]


@pytest.mark.parametrize("spec", ["bsp", "easgd(period=2)", "local_sgd(period=3)", "bsp + topk(density=0.3)"])
def test_strategies_run_along_the_replicas(spec: str) -> None:
    """With one member they see the whole model; codecs that look at no layer see the same numbers with two."""
    given = task("mlp")
    found = [run(given, f"{spec} with mesh(replica=2, tensor={members})", 2 * members) for members in (1, 2)]
    if "topk" not in spec:
        assert apart(*found) < 1e-10
    assert found[1].samples == found[0].samples == 70  # a pass


def test_asynchronous_strategies_train_slices_that_differ_in_age() -> None:
    given, cluster = task("odd"), covey.simulate.from_flags(jitter=0.3)
    for spec in ("asynchronous", "adpsgd", "distbelief"):
        found = run(given, f"{spec} with mesh(replica=2, tensor=2)", 4, cluster=cluster, steps=8)
        assert all(torch.isfinite(weight).all() for weight in found.weights.values())


def test_clipping_holds_for_the_gradient_of_the_whole_model() -> None:
    given = task("gpt", clip_norm=0.01, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
    assert apart(run(given, "local_sgd with mesh(tensor=2)", 2), run(given, "local_sgd", 1)) < 1e-10


def test_a_gradient_that_is_not_a_number_is_so_for_all_members() -> None:
    """One member owns it, and the norm of all is none: torch's clip_grad_norm_ makes all gradients NaN then."""

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss + (model.get_parameter("5.bias")[0] * 0).sqrt()  # which is 0, and its gradient NaN

    given = task("mlp", clip_norm=0.01, loss=None, step=step)
    found = run(given, "local_sgd with mesh(tensor=2)", 2, steps=1)
    assert all(weight.isnan().all() for weight in found.weights.values())


def test_accumulated_batches_are_those_of_one_worker() -> None:
    given = task("gpt", accumulate=2, batch_size=3)
    assert apart(run(given, "allreduce with mesh(tensor=2)", 2), run(given, "allreduce", 1)) < 1e-10


class Decayed(nn.Module):
    """Uses parameters without their layer's forward, one that is frozen, and changes values in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 5)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        hidden += self.first.weight.mean(1)
        hidden.mul_(0.5).clamp_(-1, 1)
        return self.last(self.frozen(hidden).tanh())


def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss + 0.1 * torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def test_parameters_are_whole_to_whoever_uses_them() -> None:
    given = task(Decayed, loss=None, step=decayed)
    assert apart(run(given, "allreduce with mesh(tensor=3)", 3), run(given, "allreduce", 1)) < 1e-10


class Averaged(nn.Module):
    """A mean over seven columns, of which one member has four."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.last = nn.Linear(64, 7), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(x) * self.up(x).tanh().mean(-1, keepdim=True)


def test_a_mean_over_slices_counts_each_number_once() -> None:
    given = task(Averaged)
    found = run(given, 'allreduce with mesh(tensor=2, split="up:column")', 2)
    assert apart(found, run(given, "allreduce", 1)) < 1e-10


@pytest.mark.parametrize("more", [{"label_smoothing": 0.1}, {"ignore_index": 2}, {"reduction": "sum"}])
def test_losses_of_divided_classes(more: dict[str, Any]) -> None:
    given = task("mlp", loss=nn.CrossEntropyLoss(**more))
    assert apart(run(given, "allreduce with mesh(tensor=3)", 3), run(given, "allreduce", 1)) < 1e-10


# -- engines and checkpoints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["plain attention", "cnn", "odd"])
def test_real_processes_compute_the_same(model: str) -> None:
    """In theirs one thread computes all steps, so that members must sum in one order in all of them."""
    given, mesh = task(model), "allreduce with mesh(replica=1, tensor=2)"
    assert apart(run(given, mesh, 2, engine="local"), run(given, mesh, 2)) < 1e-12


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    given, spec = task("mlp"), "bsp with mesh(replica=2, tensor=2)"
    run(given, spec, 4, steps=3, checkpoint=str(tmp_path / "kept"), every="1ms")
    resumed, whole = run(given, spec, 4, steps=6, resume=str(tmp_path / "kept")), run(given, spec, 4, steps=6)
    assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)
    with pytest.raises(CoveyError, match="its roles remember"):
        run(given, "bsp with mesh(replica=2, tensor=3)", 6, steps=6, resume=str(tmp_path / "kept"))

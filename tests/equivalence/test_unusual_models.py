"""Frozen, tied, lazy and mixed-precision models, through every strategy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from covey import catalog
from covey.errors import PlanError
from covey.task import Task
from covey.vector import Vector
from tests.promises.specs import ALONE_AS, DIVIDING, IN_PARTS, LATE, ONE_SERVER, PULLED, ROUNDED, UNDIVIDED, workable
from tests.worlds import alone, run, sgd


class Odd(nn.Module):
    """A tied embedding in float32, layers in float64 and bfloat16, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.wide = nn.Linear(4, 4).double()
        self.short = nn.Linear(4, 4).bfloat16()
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(self.frozen(self.embedding(x)).double())
        x = self.short(x.bfloat16()).float()
        out: Tensor = self.head(x)
        return out


NUMBERS = {torch.float32: 40, torch.float64: 20, torch.bfloat16: 20}
BYTES = 40 * 4 + 20 * 8 + 20 * 2


def odd(rate: float = 0.5) -> Task:
    x = torch.arange(60) % 10
    return Task(
        model=Odd, data=(x, (x + 1) % 10), optimizer=sgd(rate), loss=nn.functional.cross_entropy, batch_size=5
    )  # fmt: skip


def start(task: Task) -> nn.Module:
    torch.manual_seed(0)
    return task.model()


@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in UNDIVIDED | DIVIDING])
def test_frozen_tied_and_mixed_parameters(name: str) -> None:
    task = odd(0.2 if name in LATE else 0.5)
    workers = workable(name, 3)
    several = catalog.resolve(name, workers).servers.count and name not in ONE_SERVER
    world = run(task, name, workers, servers=2 if several else None, steps=16)
    before = start(task).state_dict()
    for key, tensor in world.scored.items():
        assert tensor.dtype == before[key].dtype
        assert torch.isfinite(tensor).all()
        assert torch.equal(tensor, before[key]) == key.startswith("frozen"), key
    for replica in world.replicas.values():
        module = replica.module
        assert isinstance(module, Odd)
        assert module.head.weight is module.embedding.weight
        assert {part.dtype: part.numel() for part in replica.flat.parts} == NUMBERS
        assert replica.flat.nbytes == BYTES
    assert torch.equal(world.scored["head.weight"], world.scored["embedding.weight"])
    loaded = Odd()
    loaded.load_state_dict(world.scored)
    assert loss(loaded, task) < loss(start(task), task)


def loss(module: nn.Module, task: Task) -> float:
    with torch.no_grad():
        return task.forward(module, task.data).item()


@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in PULLED | ROUNDED | DIVIDING])
def test_one_worker_trains_them_as_a_plain_loop_does(name: str) -> None:
    world = run(odd(), ALONE_AS.get(name, name), 1, steps=12)
    for key, tensor in alone(odd(), steps=12, batch_size=5).items():
        torch.testing.assert_close(world.scored[key], tensor, atol=1e-6, rtol=0)


def test_mixed_replicas_of_allreduce_stay_identical_to_the_bit() -> None:
    first, *others = run(odd(), "allreduce", 3, steps=10).workers()
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first.flat.parts, other.flat.parts, strict=True))


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(5)
        self.norm = nn.LazyBatchNorm1d()
        self.last = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return out


def lazy() -> Task:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(48, 7, generator=chance)
    return Task(
        model=Lazy, data=(x, x[:, :3].argmax(1)), optimizer=sgd(0.2), loss=nn.functional.cross_entropy, batch_size=6
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in IN_PARTS])
def test_lazy_modules_take_their_shapes_from_the_data(name: str) -> None:
    world = run(lazy(), name, 2, steps=8)
    assert world.scored["first.weight"].shape == (5, 7)
    assert world.scored["norm.running_mean"].shape == (5,)
    plain = Lazy()
    plain.load_state_dict(world.scored)
    with torch.no_grad():
        assert plain(torch.randn(4, 7)).shape == (4, 3)


def test_lazy_modules_start_with_the_same_weights_everywhere() -> None:
    starts: list[Vector] = []
    run(lazy(), "dpsgd", 3, steps=1, before=lambda replicas: starts.extend(r.flat.clone() for r in replicas.values()))
    assert all(torch.equal(starts[0].parts[0], other.parts[0]) for other in starts[1:])


class Unused(nn.Module):
    """A parameter that a batch may not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.idle = nn.Parameter(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in DIVIDING])
def test_a_parameter_without_gradient_stays_where_it_is(name: str) -> None:
    x = torch.zeros(16, 3, dtype=torch.float64)
    task = Task(
        model=Unused, data=(x,), optimizer=sgd(0.1), batch_size=2,
        step=lambda model, batch: (model.used - batch[0]).square().sum(),
    )  # fmt: skip
    world = run(task, name, 2, steps=8)
    assert torch.equal(world.scored["idle"], torch.ones(3, dtype=torch.float64))
    assert (world.scored["used"] < 1).all()


@pytest.mark.parametrize("name", sorted(DIVIDING))
def test_tied_layers_are_not_divided(name: str) -> None:
    """The head of `Odd` is its embedding too."""
    with pytest.raises(PlanError, match="needs nn.Linear modules with weights of their own"):
        run(odd(), name, 3, steps=1)

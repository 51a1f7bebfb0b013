"""Poseidon: the same weights by factors as by sums, in the bytes that the rule counts; sums where factors would lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.central.layers.poseidon import FactorLayer, Factors, Uses, product
from covey.errors import PlanError, WireError
from covey.exchange.collectives.sums import Chunk
from covey.model.slots import TensorSlot
from covey.model.threads import one_thread
from covey.task import Task
from covey.vector import Vector
from tests.worlds import CLUSTER, INSTANT, World, adam, cloud, mlp, run, sgd, slowed

WIDE = 40 * 48


def wide(*more: nn.Module) -> nn.Module:
    """A layer of which factors are fewer bytes (24 * 88 <= 2 * 1920), and one of which they are not."""
    return nn.Sequential(nn.Linear(40, 48), *more, nn.Tanh(), nn.Linear(48, 3))


def task(samples: int = 96, model: Callable[[], nn.Module] = wide, **more: Any) -> Task:
    """In float32, where a product that is added elsewhere than in rank order would show itself."""
    data = cloud(samples, 40, dtype=torch.float32)
    return mlp(more.pop("optimizer", sgd(0.1, momentum=0.9)), samples, model=model, data=data, **more)


def both(given: Task, workers: int = 3, **how: Any) -> tuple[World, World]:
    """By factors, and by a sum that adds in rank order too."""
    ours, theirs = (run(given, name, workers, **how) for name in ("poseidon", "allreduce(pattern=scatter)"))
    return ours, theirs


def assert_same(one: World, other: World) -> None:
    """On every worker: those that end early stay behind, in both."""
    assert all(torch.equal(one.scored[name], other.scored[name]) for name in other.scored)
    for mine, theirs in zip(one.workers(), other.workers(), strict=True):
        assert torch.equal(mine.flat.parts[0], theirs.flat.parts[0])


def sent(world: World, kind: type) -> int:
    return sum(event.size for event in world.log.kinds(kind))


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_the_weights_are_those_of_a_sum_to_the_bit(workers: int) -> None:
    given = task(optimizer=adam(), rate=lambda progress: 1 - progress / 2)
    ours, theirs = both(given, workers, steps=4, cluster=slowed(w1=2))
    assert sent(ours, Factors) > 0
    assert_same(ours, theirs)
    first, *rest = ours.workers()
    assert all(torch.equal(first.flat.parts[0], replica.flat.parts[0]) for replica in rest)


def test_bytes_are_those_of_the_factors_and_of_the_rest() -> None:
    """Of two layers one goes by factors: (M + N) K to each other worker; the rest is summed, slice by slice."""
    ours, theirs = both(task(), steps=2)
    assert sent(ours, Factors) == 2 * 3 * 2 * (40 + 48) * 8 * 4
    assert sent(ours, Chunk) == sent(theirs, Chunk) - 2 * 2 * 2 * WIDE * 4
    assert {event.message.step % 2 for event in ours.log.kinds(Factors)} == {0}, "the narrow layer is summed"  # type: ignore[attr-defined]


def test_layers_are_exchanged_while_backward_runs() -> None:
    """Wait-free backpropagation: the last layer's sum, and the first one's factors, go before the step is computed.

    Of 10 ms forward takes a third; then each of four parameters is ready a sixth later.
    """
    ours, theirs = both(task(), steps=1, cluster=CLUSTER)
    end = min(end for _, end, _ in ours.log.computes)
    moments = {kind: min(event.at for event in ours.log.kinds(kind)) for kind in (Chunk, Factors)}
    assert moments[Chunk] == pytest.approx(10e-3 * (1 / 3 + 2 / 3 / 4)), "when the last parameter's gradient is there"
    assert end == pytest.approx(10e-3) and moments[Factors] == pytest.approx(end), "its weight is the first: the last"
    assert min(event.at for event in theirs.log.kinds(Chunk)) >= end
    deep = task(model=lambda: nn.Sequential(nn.Linear(40, 48), *(nn.Linear(48, 48) for _ in "abcd"), nn.Linear(48, 3)))
    ours, theirs = both(deep, steps=3, cluster=INSTANT)
    assert_same(ours, theirs)
    early = [event for event in ours.log.kinds(Factors) if event.at < 10e-3 - 1e-9]
    assert len(early) == 3 * 2 * 4, "all but the first layer's factors, from each of 3 workers to 2 others"


def test_backward_that_runs_twice_is_refused_with_what_works() -> None:
    """A gradient may have left before the second backward adds to it."""

    def twice(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward(retain_graph=True)
        return loss

    with pytest.raises(PlanError, match="backward ran twice.*use allreduce"):
        run(task(loss=None, step=twice), "poseidon", 2, steps=1)


@pytest.mark.parametrize(("workers", "most"), [(2, 21), (3, 14), (5, 8)])
def test_the_rule_is_zhangs_with_as_many_servers_as_workers(workers: int, most: int) -> None:
    """2K(P1-1)(M+N) <= 2MN(P1+P2-2)/P2, with P2 = P1; our own form of it counts all workers' samples."""
    layer = FactorLayer(0, nn.Linear(40, 48), TensorSlot("weight", 0, 0, WIDE, torch.Size([48, 40])))
    for samples in range(1, 50):
        theirs = 2 * samples * (workers - 1) * (40 + 48) <= 2 * 40 * 48 * (workers + workers - 2) / workers
        assert layer.pays(samples * workers) == theirs == (samples <= most)


def test_batches_may_differ_and_workers_end_apart() -> None:
    """97 samples: worker 0 has 33, in 5 batches of which the last is of 1, the others 4 batches; then it is alone."""
    ours, theirs = both(task(samples=97), epochs=1)
    rows = {event.message.factors.parts[0].shape[0] for event in ours.log.kinds(Factors)}  # type: ignore[attr-defined]
    assert rows >= {8} and ours.outcome.samples == 97
    assert_same(ours, theirs)
    uneven, summed = both(task(samples=98, batch_size=20), epochs=1)  # the last batches have 13 and 12 samples
    sizes = {event.message.factors.parts[0].shape[0] for event in uneven.log.kinds(Factors)}  # type: ignore[attr-defined]
    assert sizes == {13, 12}, "60 samples are too many, and are summed"
    assert_same(uneven, summed)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (wide, {"clip_norm": 0.05}),
        (lambda: wide(nn.BatchNorm1d(48)), {}),
        (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(wide(nn.BatchNorm1d(48))), {}),
    ],
    ids=["clip_norm", "buffers", "synchronized"],
)  # fmt: skip
def test_clipping_and_batch_norm_are_those_of_a_sum(model: Callable[[], nn.Module], more: dict[str, Any]) -> None:
    ours, theirs = both(task(model=model, **more), steps=3)
    assert sent(ours, Factors) > 0
    assert_same(ours, theirs)


# -- where factors would lie ------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """Uses its middle layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(40, 48), nn.Linear(48, 48), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.middle(self.first(x).tanh()).tanh()).tanh())  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two, self.last = (
            nn.Linear(40, 48),
            *(nn.Linear(48, 48) for _ in "ab"),
            nn.Linear(48, 3),
        )
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.one(self.first(x).tanh()).tanh()).tanh())  # type: ignore[no-any-return]


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(40, 48), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    model[1].weight.requires_grad_(False)
    return model


def hooked() -> nn.Module:
    """Somebody's hook doubles what comes out of a layer."""
    model = nn.Sequential(nn.Linear(40, 48), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    model[1].register_forward_hook(lambda module, given, output: 2 * output)
    return model


def in_rows() -> nn.Module:
    """A layer that sees two rows of each sample."""
    return nn.Sequential(
        nn.Linear(40, 48), nn.Unflatten(1, (2, 24)), nn.Linear(24, 60), nn.Flatten(), nn.Linear(120, 3)
    )


@pytest.mark.parametrize(
    ("model", "refused"),
    [(Twice, ["middle"]), (Tied, []), (frozen, []), (hooked, ["1"]), (in_rows, ["2"])],
)
def test_a_use_that_hooks_cannot_see_is_summed(model: Callable[[], nn.Module], refused: list[str]) -> None:
    """Everybody refuses at the first step, without sending anything, and nobody asks again."""
    ours, theirs = both(task(model=model), steps=2)
    assert_same(ours, theirs)
    empty = [event for event in ours.log.kinds(Factors) if not event.size]
    assert len(empty) == 3 * 2 * len(refused), "one round of empty answers"
    notes = [note.kind for note in ours.log.notes if note.kind.startswith("no factors of")]
    assert notes == [f"no factors of {name}" for name in refused]


def penalized(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A penalty on a weight, which no layer's output knows of."""
    weight = model.get_parameter("0.weight")
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 1e-3 * weight.square().sum()


def test_a_gradient_that_is_more_than_a_product_is_summed() -> None:
    ours, theirs = both(task(loss=None, step=penalized), steps=2)
    assert sent(ours, Factors) == 0 and ours.log.values("no factors of 0") == [1]
    assert_same(ours, theirs)


def test_where_one_worker_cannot_all_sum() -> None:
    """Only batches with a large first number are penalized: what the others sent of their factors was in vain."""

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        plain = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return penalized(model, batch) if batch[0].max() > 3.2 else plain

    ours, theirs = both(task(loss=None, step=step), steps=4)
    assert sent(ours, Factors) > 0 and ours.log.values("no factors of 0") == [1]
    assert_same(ours, theirs)


def test_a_worker_alone_sends_nothing() -> None:
    ours, theirs = both(task(), 1, steps=3)
    assert not [event for event in ours.log.sends if event.to != event.sender]
    assert_same(ours, theirs)


def test_factors_that_do_not_fit_are_refused_by_name() -> None:
    layer = FactorLayer(0, nn.Linear(4, 2), TensorSlot("weight", 0, 0, 8, torch.Size([2, 4])))
    wrong = Vector([torch.zeros(3, 4), torch.zeros(2, 2)], origin="worker 1")
    with pytest.raises(WireError, match="worker 1 sent"):
        layer.room(3, torch.zeros(2, 4)).copy_(wrong)


@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_autograds_own_to_the_bit(bias: bool) -> None:
    """What a worker holds against its gradient; were it only close, no layer would ever go by factors."""
    for samples, inputs, outputs in [(1, 7, 5), (8, 40, 48), (32, 784, 100)]:
        layer, uses = nn.Linear(inputs, outputs, bias=bias), Uses()
        with one_thread(), layer.register_forward_hook(uses.forward):
            layer(torch.randn(samples, inputs)).square().sum().backward()
            assert layer.weight.grad is not None
            assert torch.equal(product(Vector(uses.found[0])), layer.weight.grad)

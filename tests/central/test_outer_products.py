"""Project Adam's pushes: what servers multiply is what workers would have sent, in fewer bytes or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.catalog import formulas
from covey.central.layers.outer_products import HeldRange, Outer, held, pays, rest
from covey.central.server.shard import Push
from covey.errors import WireError
from covey.model.slots import TensorSlot
from covey.strategy import CountedRun
from covey.task import Task
from covey.vector import Vector
from tests.worlds import INSTANT, World, adam, cloud, mlp, run, sgd

CONV, WIDE, LAST = 2 * 9 + 2, 18 * 40, 40 * 3


def net() -> nn.Module:
    """A convolution, a layer that is worth its factors for few samples, and one that is for 2 at most."""
    front = nn.Unflatten(1, (1, 5, 5)), nn.Conv2d(1, 2, 3), nn.Flatten()
    return nn.Sequential(*front, nn.Linear(18, 40), nn.Tanh(), nn.Linear(40, 3)).double()


def task(batch_size: int = 4, model: Callable[[], nn.Module] = net, **more: Any) -> Task:
    optimizer = more.pop("optimizer", sgd(0.1, momentum=0.9))
    return mlp(optimizer, 48, model=model, data=cloud(48, 25), batch_size=batch_size, **more)


def both(given: Task, workers: int = 3, over: str = "", **how: Any) -> tuple[World, World]:
    """As factors, and as gradients; messages take no time, or their order would depend on their size."""
    names = ("outer_products", "asynchronous")
    ours, theirs = (run(given, name + over, workers, steps=6, cluster=INSTANT, **how) for name in names)
    return ours, theirs


def pushed(world: World, kind: type[Push]) -> list[int]:
    return [event.size for event in world.log.kinds(kind)]


def weights(world: World) -> list[tuple[int, ...]]:
    return [event.message.weights for event in world.log.kinds(Outer)]  # type: ignore[attr-defined]


def assert_same(one: World, other: World) -> None:
    for name, tensor in other.scored.items():
        torch.testing.assert_close(one.scored[name], tensor, atol=1e-12, rtol=0)


def test_few_samples_go_as_inputs_and_errors_and_convolutions_as_gradients() -> None:
    """4 (18 + 40) numbers in the place of 18 * 40; 4 (40 + 3) are more than 40 * 3."""
    ours, theirs = both(task(4))
    assert set(weights(ours)) == {(2,)}, "conv weight, its bias, then this one"
    assert set(pushed(theirs, Push)) == {8 * (CONV + WIDE + 40 + LAST + 3)}
    assert set(pushed(ours, Outer)) == {8 * (CONV + 4 * (18 + 40) + 40 + LAST + 3)}
    assert_same(ours, theirs)


def test_many_samples_go_as_gradients() -> None:
    """From 13 samples on 18 * 40 numbers are fewer; up to 2 also the last layer goes as factors."""
    many, few = run(task(13), "outer_products", 3, steps=1), run(task(2), "outer_products", 3, steps=1)
    assert not weights(many) and set(pushed(many, Push)) == {8 * (CONV + WIDE + 40 + LAST + 3)}
    assert set(weights(few)) == {(2, 4)}
    assert set(pushed(few, Outer)) == {8 * (CONV + 2 * (18 + 40) + 40 + 2 * (40 + 3) + 3)}


@pytest.mark.parametrize("samples", [2, 4, 13])
def test_the_formula_counts_each_layer_by_what_is_less(samples: int) -> None:
    counted = CountedRun(
        workers=3, steps=1, numbers=CONV + WIDE + 40 + LAST + 3, width=8, layers=((40, 18), (3, 40)),
        batch=lambda rank, step: samples,
    )  # fmt: skip
    expected = {2: 2 * (18 + 40) + 2 * (40 + 3), 4: 4 * (18 + 40) + LAST, 13: WIDE + LAST}[samples]
    for rank in range(3):
        assert formulas.products(counted)[f"worker {rank}->server 0"] == 8 * (CONV + expected + 40 + 3)


@pytest.mark.parametrize("samples", range(1, 20))
def test_the_rule_is_chilimbis(samples: int) -> None:
    slot = TensorSlot("weight", 0, 0, WIDE, torch.Size([40, 18]))
    whole = held(slot, ((0, WIDE),))
    assert whole == [HeldRange(0, 0, WIDE, (0, 40), 0)]
    assert pays(whole, samples, slot) == (samples < 18 * 40 / (18 + 40))


@pytest.mark.parametrize("over", [" over servers(count=3)", " over hashed(count=2, points=3)", " over colocated"])
def test_servers_that_have_parts_of_rows_multiply_their_rows(over: str) -> None:
    ours, theirs = both(task(1), over=over)
    sent = [weight for found in weights(ours) for weight in found]
    assert set(sent) == {2, 4} and {len(found) for found in weights(ours)} != {2}, "not every server has both"
    assert sum(pushed(ours, Outer)) < 0.6 * sum(pushed(theirs, Push))
    assert_same(ours, theirs)


@pytest.mark.parametrize("more", [{"clip_norm": 0.05}, {"optimizer": adam()}, {"rate": lambda progress: 1 - progress}])
def test_whatever_the_task_asks_for(more: dict[str, Any]) -> None:
    ours, theirs = both(task(4, **more))
    assert set(weights(ours)) == {(2,)}
    assert_same(ours, theirs)


class Twice(nn.Module):
    """A layer that is used twice: its gradient is no product of one input and one error."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.last = nn.Linear(25, 25), nn.Linear(25, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.same(self.same(x).tanh()))
        return made


def test_what_is_no_product_goes_as_it_is() -> None:
    ours, theirs = both(task(1, model=lambda: Twice().double()))
    assert set(weights(ours)) == {(2,)}, "the last layer alone"
    assert_same(ours, theirs)


def test_models_without_such_layers_are_pushed_as_they_are() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 5, 5)), nn.Conv2d(1, 3, 5), nn.Flatten()).double()

    ours, theirs = both(task(1, model=model))
    assert not weights(ours) and pushed(ours, Push) == pushed(theirs, Push)
    assert_same(ours, theirs)


def test_epochs_may_end_early() -> None:
    world = run(task(4), "project_adam", 4, epochs=2)
    assert world.outcome.samples <= 2 * 48 and {event.to.rank for event in world.log.kinds(Outer)} == {0, 1}


@pytest.mark.parametrize("piece", [((0, 5), (3, 30)), ((0, 12), (7, 9, 9, 13, 20, 40)), ((2, 2), (0, 40))])
def test_ranges_of_a_piece(piece: tuple[tuple[int, ...], ...]) -> None:
    """A 5 x 6 weight lies at 4 to 34 of the second part."""
    slot = TensorSlot("weight", 1, 4, 34, torch.Size([5, 6]))
    inputs, errors = torch.randn(3, 6), torch.randn(3, 5)
    whole = Vector([torch.randn(12), torch.randn(40)])
    slot.view(whole).copy_(errors.t() @ inputs)
    cut = whole.cut(piece)
    found = held(slot, piece)
    for one in found:
        rows = errors[:, slice(*one.rows)]
        torch.testing.assert_close(one.product(inputs, rows), cut.parts[one.part][one.start : one.stop])
    assert rest(cut, found).numel + sum(one.size for one in found) == cut.numel


def test_factors_that_do_not_fit_are_refused() -> None:
    slot = TensorSlot("weight", 0, 0, 30, torch.Size([5, 6]))
    (one,) = held(slot, ((0, 30),))
    with pytest.raises(WireError, match="does not fit"):
        one.room(3, 6, torch.empty(0)).copy_(Vector([torch.randn(3, 6), torch.randn(2, 5)], "worker 1"))

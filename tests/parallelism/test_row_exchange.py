"""Layers of a sharded model that are brought together at once, and ahead of their turn."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.check.unread import watched
from covey.parallelism.sharded.layer_parameters import bundles_of, layers_of
from covey.parallelism.sharded.row_exchange import RowExchange
from covey.program import Node
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.parallelism.divided_runs import apart, run
from tests.parallelism.test_sharded import task


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.large = (nn.Linear(64, n, bias=False) for n in (16, 16, 32, 64))


def test_neighbours_of_a_module_are_a_bundle_no_larger_than_the_largest_layer() -> None:
    module = nn.Sequential(nn.Linear(64, 4, bias=False), Block(), Block())
    layers = layers_of(module)
    bundles = bundles_of(layers, dict(module.named_parameters()))
    assert [[layers[number].path for number in bundle] for bundle in bundles] == [
        ["0"], ["1.one", "1.two", "1.three"], ["1.large"], ["2.one", "2.two", "2.three"], ["2.large"],
    ]  # fmt: skip


class Changing(nn.Module):
    """Computes its layers in other orders, and not all in each step; on all workers alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.last = nn.Linear(64, 3)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        orders = ([0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 1], [3, 2, 1, 0], [0], [0, 1, 2, 3])
        for number in orders[self.steps % len(orders)]:
            x = torch.tanh(self.layers[number](x))
        self.steps += self.training
        y: Tensor = self.last(x)
        return y


def test_what_was_foreseen_and_is_not_wanted_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, pass_over = set(), RowExchange.pass_over

    async def passing(self: RowExchange, node: Node) -> None:
        passed.add(node.step % 6)
        await pass_over(self, node)

    monkeypatch.setattr(RowExchange, "pass_over", passing)
    given = task(model=lambda: Changing().double())
    assert apart(run(given, "allreduce with mesh(shard=2)", 2, steps=12), run(given, "allreduce", 2, steps=12)) < 1e-10
    assert passed == {2, 3, 5}


def test_with_room_for_one_message_nobody_deadlocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were foreseen lie unread on both sides when gradients are to leave."""
    made, make_room = [], RowExchange.make_room

    async def making(self: RowExchange, node: Node) -> None:
        made.append(self.foresees and not node.room(self.owners.peer(1 - self.me)))
        await make_room(self, node)

    monkeypatch.setattr(RowExchange, "make_room", making)
    given = task(model=lambda: nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(4))).double())
    watched(given, "allreduce with mesh(shard=2)", 2, Cluster(compute=Seconds(0.01), jitter=0.5), window=1, steps=6)
    assert any(made)


def test_rows_travel_while_the_layers_before_them_compute() -> None:
    """The first step waits for each bundle; later ones for the first of a step only."""
    layers = 8
    given = covey.Task(
        model=lambda: nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64, bias=False) for _ in range(layers))),
        data=(torch.randn(64, 64), torch.randint(0, 64, (64,))), batch_size=4,
        optimizer=partial(torch.optim.SGD, lr=0.1), loss=nn.functional.cross_entropy,
    )  # fmt: skip
    slow = Cluster(compute=Seconds(8.0), link=Link(latency=Seconds(0.1), bandwidth=BytesPerSecond(1e12)))

    def seconds(steps: int) -> float:
        found: float = run(given, "allreduce with mesh(shard=2)", 2, steps=steps, cluster=slow).seconds
        return found

    first, later = seconds(1), seconds(3) - seconds(2)
    assert first - later > 0.1 * layers

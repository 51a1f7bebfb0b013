"""What tells p3, tictac, bytescheduler and staggered apart: which slices go first, and how many are on their way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.central.pushing import Turn
from covey.central.slices import Confirmed, Gradient, Updated
from covey.errors import PlanError
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.task import Task
from tests.worlds import CLUSTER, World, adam, cloud, mlp, run, sgd, worker

# 3 layers of 2,048 bytes each: backward makes all of their gradients in 7 ms, and one of them takes 20 ms on the wire.
SLOW = Cluster(compute=Seconds(0.010), link=Link(bandwidth=BytesPerSecond(1e5), latency=Seconds(0.0)))


def deep(optimizer: Any = None, samples: int = 64, **more: Any) -> Task:
    def model() -> nn.Module:
        return nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3))).double()

    return mlp(optimizer or sgd(), samples, **({"model": model, "data": cloud(samples, 16)} | more))


def same(one: World, other: World) -> bool:
    return all(torch.equal(one.scored[name], other.scored[name]) for name in one.scored)


@pytest.mark.parametrize(
    ("spec", "servers"),
    [
        ("p3(slice=50)", 1), ("p3(slice=50)", 2), ("p3(slice=50, order=fifo)", 1), ("tictac", 1), ("staggered", 2),
        ("bytescheduler(partition=256, credit=512)", 2),
    ],
)  # fmt: skip
def test_no_schedule_changes_a_bit_or_a_byte(spec: str, servers: int) -> None:
    """Of 17 samples worker 0 has a batch more than the others; bsp is what all of them must be."""
    task = deep(sgd(0.1, momentum=0.9), samples=17, batch_size=3, rate=lambda progress: 1 - progress / 2)
    plain, fast = (run(task, name, 2, epochs=2, servers=servers, cluster=SLOW) for name in ("bsp", spec))
    assert same(plain, fast)
    assert sum(sent.size for sent in plain.log.sends) == sum(sent.size for sent in fast.log.sends)
    assert len(plain.log.values("update")) == len(fast.log.values("update"))
    assert fast.outcome.seconds < plain.outcome.seconds or spec == "staggered"


@pytest.mark.parametrize("more", [{"optimizer": adam()}, {"clip_norm": 0.01}])
def test_nor_where_a_step_is_more_than_its_slices(more: dict[str, Any]) -> None:
    """Adam counts steps; clipping needs the norm of all."""
    task = deep(**more)
    assert same(run(task, "bsp", 2, steps=3), run(task, "p3(slice=50)", 2, steps=3))


class Lars(torch.optim.SGD):
    """Stands for optimizers that look at whole parameters."""

    elementwise = False


def test_an_optimizer_that_needs_whole_parameters_gets_them_in_one_step() -> None:
    task = deep(lambda pairs: Lars(pairs, lr=0.1))
    world = run(task, "p3(slice=50)", 2, steps=2)
    assert same(run(task, "bsp", 2, steps=2), world)
    assert {sent.size for sent in world.log.kinds(Gradient)} == {2048}


def layers(world: World, sender: Any, kind: Any = Gradient, step: int = 1) -> list[int]:
    """The layers of the slices of one step in the order of their arrival (or, for a kind, at the first worker)."""
    found = [event.message for event in world.log.deliveries if type(event.message) is kind]
    mine = [
        event for event in world.log.deliveries if type(event.message) is kind and sender in (event.sender, event.to)
    ]
    assert found and mine
    slices = 1 + max(message.place for message in found)  # type: ignore[attr-defined]
    return [event.message.place * 3 // slices for event in mine if event.message.step == step]  # type: ignore[attr-defined]


def test_p3_lets_the_first_layer_overtake_slices_of_the_last_that_were_queued_before() -> None:
    first, fifo = (
        run(deep(), f"p3(slice=32, order={order})", 1, steps=3, cluster=SLOW) for order in ("layers", "fifo")
    )
    assert layers(fifo, worker(0)) == [2] * 8 + [1] * 8 + [0] * 8
    pushed = layers(first, worker(0))
    assert pushed[0] == 2 and pushed[-1] == 2, "the first is ready first, and its rest goes last"
    assert pushed.index(0) < 6, "layer 0 is ready after 7 ms, and a slice takes 2.56 ms"
    assert first.outcome.seconds < fifo.outcome.seconds


def test_tictac_orders_what_comes_back_and_not_what_leaves() -> None:
    """Only clipping makes all updates ready at once: then they come in the order of their use."""
    world = run(deep(clip_norm=0.01), "tictac", 1, steps=3, cluster=SLOW)
    assert layers(world, worker(0)) == [2, 1, 0]
    assert layers(world, worker(0), Updated) == [0, 1, 2]
    fifo = run(deep(clip_norm=0.01), "p3(slice=0, order=fifo)", 1, steps=3, cluster=SLOW)
    assert world.outcome.seconds < fifo.outcome.seconds


class Backwards(nn.Module):
    """Uses its layers in another order than it names them, and one of them without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = (nn.Linear(16, 16, bias=False).double() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.linear(self.first(x).tanh(), self.middle.weight))  # type: ignore[no-any-return]


def test_the_order_is_that_of_use_and_no_weight_is_used_before_it_is_fresh() -> None:
    task = deep(model=Backwards, clip_norm=0.01)
    world = run(task, "tictac", 2, steps=4, cluster=SLOW)
    assert same(run(task, "bsp", 2, steps=4), world)
    assert layers(world, worker(0), Updated)[:1] == [2], "`first` is the last parameter, and needed first"


def test_forward_begins_before_the_last_layer_is_there() -> None:
    world = run(deep(), "p3(slice=0)", 1, steps=3, cluster=SLOW)
    begins = [begin for begin, _, _ in world.log.computes]
    late = [event.at for event in world.log.deliveries if type(event.message) is Updated and event.message.step == 0]
    assert any(begin < max(late) for begin in begins if begin >= min(late))


def test_bytescheduler_has_no_more_than_its_credit_on_the_way() -> None:
    world = run(deep(), "bytescheduler(partition=256, credit=700)", 2, steps=3, cluster=SLOW)
    for rank in range(2):
        sent = [(event.at, 1, event.size) for event in world.log.kinds(Gradient) if event.sender == worker(rank)]
        back = [
            (event.at, 0, -event.message.size)
            for event in world.log.deliveries
            if isinstance(event.message, Confirmed) and event.to == worker(rank)
        ]
        under_way, most = 0, 0
        for _, _, size in sorted(sent + back):
            under_way += size
            most = max(most, under_way)
        assert most == 512, "two partitions fit into 700 bytes, and both were used"


@pytest.mark.parametrize("flows", [1, 2])
def test_staggered_workers_do_not_push_together(flows: int) -> None:
    """And it takes no longer than when all push at once, under fair sharing."""
    fair = replace(SLOW, sharing="fair")
    world = run(deep(), f"staggered(flows={flows})", 4, steps=2, cluster=fair)
    arrived = {id(event.message): event.at for event in world.log.deliveries}
    spans = [(event.at, arrived[id(event.message)], event.sender) for event in world.log.kinds(Gradient)]
    for moment in {begin for begin, _, _ in spans}:
        at_once = {sender for begin, end, sender in spans if begin <= moment < end}
        assert len(at_once) <= flows
    assert len(world.log.kinds(Turn)) == len(spans)
    assert world.outcome.seconds <= run(deep(), "bsp", 4, steps=2, cluster=fair).outcome.seconds


def test_limits_that_cannot_be() -> None:
    with pytest.raises(PlanError, match=r"p3\(slice=-1\): must be 0 or more"):
        run(deep(), "p3(slice=-1)", 1, steps=1, cluster=CLUSTER)
    with pytest.raises(PlanError, match="nobody would ever push"):
        run(deep(), "staggered(flows=0)", 1, steps=1)


class Mixed(nn.Module):
    """Layers that torch uses in other ways than by calling them, one that is never used, buffers and chance."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.lstm, self.attention = nn.Linear(8, 3), nn.LSTM(6, 8), nn.MultiheadAttention(8, 2)
        self.norm, self.unused, self.dropout = nn.BatchNorm1d(8), nn.Linear(4, 4), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lstm(x.unsqueeze(0))[0]
        y = self.dropout(self.norm(self.attention(y, y, y)[0][0]))
        return nn.functional.linear(y, self.head.weight * 1.0, self.head.bias)


@pytest.mark.parametrize("together", [False, True])
def test_unusual_models_have_bsps_bits(together: bool) -> None:
    def model() -> nn.Module:
        module = Mixed().double()
        return nn.SyncBatchNorm.convert_sync_batchnorm(module) if together else module

    task = mlp(sgd(0.1, momentum=0.9, weight_decay=0.01), samples=41, model=model)
    assert same(run(task, "bsp", 3, epochs=1), run(task, "p3(slice=20)", 3, epochs=1, servers=2))

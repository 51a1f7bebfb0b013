"""What tells p3, tictac, bytescheduler and staggered apart: which slices go first, and how many are on their way."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.central.scheduled.forward_flow import ForwardFlow
from covey.central.scheduled.parameter_gates import Gated
from covey.central.scheduled.priorities import SlicedCopy
from covey.central.scheduled.pushing import Turn
from covey.central.scheduled.slice_server import SliceServer
from covey.central.scheduled.slices import Confirmed, Gradient, SliceOrder, Statistics, Updated
from covey.central.scheduled.tac import Op, tac
from covey.errors import PlanError
from covey.exchange.codec import dense
from covey.model.replica import Replica
from covey.program import Node
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.task import Task
from covey.vector import Vector
from tests.worlds import CLUSTER, World, adam, cloud, mlp, perform, run, sgd, worker

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
        ("bytescheduler(partition=256, credit=512)", 2), ("tictac(order=tac)", 1),
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


def test_statistics_of_two_steps_are_never_mixed() -> None:
    """Worker 0 may be a step ahead when worker 1's float buffers of the step before are still on a slow link."""
    found: list[float] = []

    async def tell(keeper: SliceServer, rank: int, step: int, value: float) -> None:
        buffers = Vector(torch.full_like(part, value) for part in keeper.replica.buffers.parts)
        await keeper.hear_statistics(Statistics(step, buffers, sender=worker(rank)))
        found.append(keeper.replica.buffers.parts[0][0].item())

    async def first(node: Node, replica: Replica) -> None:
        keeper = SliceServer(node, replica, count=1, manner=SliceOrder(), codec=dense)
        for rank, step, value in ((0, 0, 2.0), (0, 1, 20.0), (1, 0, 4.0), (1, 1, 40.0)):
            await tell(keeper, rank, step, value)

    async def second(node: Node, replica: Replica) -> None:
        pass

    perform(first, second, replicas=[Replica(nn.BatchNorm1d(1), sgd()) for _ in range(2)], steps=2)
    assert found == [0.0, 0.0, 3.0, 30.0]


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


def overtaken(world: World, step: int = 1) -> int:
    """How many slices of the last layer were at the server before one of the first, and came back after it."""
    pushed, given = (
        {e.message.place: e.at for e in world.log.deliveries if isinstance(e.message, kind) and e.message.step == step}
        for kind in (Gradient, Updated)
    )
    last, first = range(16, 24), range(8)  # 3 layers of 8 slices
    return sum(any(pushed[b] < pushed[a] and given[a] < given[b] for a in first) for b in last)


def test_p3_lets_the_first_layer_overtake_on_the_way_back_too() -> None:
    """Gradients come in as halves and weights leave as doubles, so that updates stand in line at the server."""
    first, fifo = (
        run(deep(), f"p3(slice=32, order={order}) + fp16", 1, steps=3, cluster=SLOW) for order in ("pulls", "fifo")
    )
    assert overtaken(first) >= 3 and overtaken(fifo) == 0
    assert first.outcome.seconds < fifo.outcome.seconds


def test_bytescheduler_queues_by_layer_what_its_credit_holds_back() -> None:
    """One partition is on its way at a time: what waits is in the worker's own queue, not on a link with priorities."""
    world = run(deep(), "bytescheduler(partition=256, credit=256)", 1, steps=3, cluster=SLOW)
    order = layers(world, worker(0))
    places = [e.message.place for e in world.log.deliveries if isinstance(e.message, Gradient) and e.message.step == 1]
    begin = order.index(0)
    assert order[0] == 2 and begin <= 4, "layer 0 is ready after 7 ms, and a partition takes 2.56 ms"
    assert order[begin:] == sorted(order[begin:]), "then by layers, from the first to the last"
    assert all(places[i] < places[i + 1] for i in range(begin, 23) if order[i] == order[i + 1]), "and in their order"


def test_tictac_orders_what_comes_back_and_not_what_leaves() -> None:
    """Only clipping makes all updates ready at once: then they come in the order of their use."""
    world = run(deep(clip_norm=0.01), "tictac", 1, steps=3, cluster=SLOW)
    assert layers(world, worker(0)) == [2, 1, 0]
    assert layers(world, worker(0), Updated) == [0, 1, 2]
    fifo = run(deep(clip_norm=0.01), "p3(slice=0, order=fifo)", 1, steps=3, cluster=SLOW)
    assert world.outcome.seconds < fifo.outcome.seconds


def test_the_time_of_a_byte_is_that_of_updates_that_come_after_another() -> None:
    """The first of them may have been on its way for long."""
    copy: Any = object.__new__(SlicedCopy)
    left, times = [Vector([torch.zeros(25)])] * 3, iter((5.0, 6.0, 8.0))

    async def receive(kind: Any) -> Any:
        return SimpleNamespace(params=left.pop())

    async def now() -> float:
        return next(times)

    copy.node, copy.of_slot = SimpleNamespace(receive=receive, now=now), [[0]]
    copy.fresh, copy.install = lambda slot: not left, lambda message: None
    with pytest.raises(StopIteration) as found:
        copy.seconds_of_a_byte().send(None)
    assert found.value.value == pytest.approx((8.0 - 5.0) / (2 * 100))


def test_what_forward_does_not_use_is_the_least_urgent() -> None:
    gated: Any = object.__new__(Gated)
    gated.order, gated.replica = {2: 0, 0: 1}, SimpleNamespace(layout=SimpleNamespace(slots=[None] * 3))
    assert [gated.urgency(slot) for slot in range(3)] == [1, 3, 0]


def test_tac_takes_first_what_hides_most_of_the_transfers() -> None:
    """P, M and M+ by hand: 0 alone lets 4 be computed, 1 alone lets 1, and 2 nothing before 0 is there."""
    ops = [Op(frozenset({0}), 4.0), Op(frozenset({1}), 1.0), Op(frozenset({0, 2}), 9.0), Op(frozenset({0, 1, 2}), 1.0)]
    assert tac(ops, {1: 3.0, 0: 2.0, 2: 5.0}) == [0, 2, 1], "then 2 alone lets 9 be computed, which hides all of 1"
    assert tac(ops, {0: 2.0, 1: 0.1, 2: 5.0}) == [1, 0, 2], "0 could hide but 0.1 of 1, and 1 hides 1 of 0"
    alike = [Op(frozenset({0, 1}), 1.0), Op(frozenset({0, 1, 2, 3}), 1.0)]
    assert tac(alike, {2: 1.0, 3: 1.0, 0: 1.0, 1: 1.0}) == [0, 1, 2, 3], "nothing alone lets anything run: M+ decides"


def test_tac_adds_up_all_that_a_parameter_alone_lets_be_computed() -> None:
    ops = [Op(frozenset({0}), 5.0), Op(frozenset({1}), 3.0), Op(frozenset({1}), 4.0)]
    assert tac(ops, {0: 9.0, 1: 9.0}) == [1, 0]


def test_tac_is_the_order_of_use_where_one_layer_follows_the_other() -> None:
    chain = [Op(frozenset(range(last + 1)), 1.0) for last in range(6)]
    assert tac(chain, dict.fromkeys(reversed(range(6)), 3.0)) == list(range(6))


def test_a_result_depends_on_parameters_given_by_keyword_too() -> None:
    replica = Replica(nn.Linear(2, 2), sgd())
    weight, bias = (replica.module.get_parameter(name) for name in ("weight", "bias"))
    flow = ForwardFlow(replica)
    with flow:
        positional = nn.functional.linear(torch.ones(1, 2), weight)
        keyword = nn.functional.linear(torch.ones(1, 2), weight=weight, bias=bias) * 2
    assert flow.known[id(positional)] == {0} and flow.known[id(keyword)] == {0, 1}


class Branches(nn.Module):
    """A large layer, then a small one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(16, 16, bias=False).double(), nn.Linear(16, 2, bias=False).double()
        self.last = nn.Linear(18, 16, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.large(x), self.small(x)], 1))  # type: ignore[no-any-return]


def test_tic_goes_by_the_order_of_use_and_tac_by_times() -> None:
    """A layer takes 1.1 ms in forward. The large one comes in 2 ms, the small one in 0.26 ms: so it comes first."""
    fast = replace(SLOW, link=replace(SLOW.link, bandwidth=BytesPerSecond(1e6)))
    task = deep(model=Branches, clip_norm=0.01)
    by_use, by_times = (run(task, f"tictac(order={order})", 1, steps=4, cluster=fast) for order in ("tic", "tac"))
    assert layers(by_use, worker(0), Updated, step=2) == [0, 1, 2]
    assert layers(by_times, worker(0), Updated, step=0) == [0, 1, 2], "nothing was measured yet"
    assert layers(by_times, worker(0), Updated, step=2) == [1, 0, 2]
    assert same(by_use, by_times)


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


def test_a_codec_that_looks_at_shapes_sees_whole_parameters() -> None:
    sliced, whole = (run(deep(), f"p3(slice={size}) + powersgd(rank=1)", 2, steps=3) for size in (50, 0))
    assert same(sliced, whole)
    assert len(sliced.log.kinds(Gradient)) == len(whole.log.kinds(Gradient)) == 2 * 3 * 3


def test_bytescheduler_finds_a_credit_that_suits_the_link() -> None:
    """The later servers confirm, the more has to be on its way; too little leaves the link empty."""
    found = []
    for latency in (0.005, 0.02):
        cluster = replace(SLOW, link=replace(SLOW.link, latency=Seconds(latency)))
        task = deep(samples=200, batch_size=4)
        tuned = run(task, "bytescheduler(partition=512, credit=auto)", 2, steps=24, cluster=cluster)
        found += tuned.log.values("credit")
        assert same(tuned, run(task, "bsp", 2, steps=24))
        fixed = {
            credit: run(task, f"bytescheduler(partition=512, credit={credit})", 2, steps=4, cluster=cluster)
            for credit in (512, int(found[-1]), 8192)
        }
        assert fixed[found[-1]].outcome.seconds < 0.8 * fixed[512].outcome.seconds
        assert fixed[found[-1]].outcome.seconds < 1.1 * fixed[8192].outcome.seconds
    assert 512 < found[0] < found[1]


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


def test_a_partition_larger_than_all_credit_goes_alone() -> None:
    world = run(deep(), "bytescheduler(partition=512, credit=256)", 1, steps=2, cluster=SLOW)
    sent = [event.at for event in world.log.kinds(Gradient)]
    confirmed = [event.at for event in world.log.deliveries if isinstance(event.message, Confirmed)]
    assert len(sent) == 2 * 12 and all(later >= back for later, back in zip(sent[1:], confirmed, strict=False))


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
    with pytest.raises(PlanError, match="at least 1 worker must be allowed to push"):
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

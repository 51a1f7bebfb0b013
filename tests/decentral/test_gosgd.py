"""What tells GoSGD apart: weight is passed on by halves and never lost, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import catalog
from covey.decentral.gossip.gosgd import Gossip, GossipLinks
from covey.errors import PlanError
from covey.exchange.codec import dense
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.program import Node
from tests.conftest import Golden
from tests.worlds import (
    CLUSTER,
    INSTANT,
    Point,
    World,
    paced,
    perform,
    quadratic,
    run,
    sgd,
    slowed,
    spread,
    vector,
    worker,
)


class Scales(Instrument):
    """Weighs all workers and all that travels, at every event of a run."""

    def __init__(self) -> None:
        self.replicas: dict[Address, Replica] = {}
        self.under_way: list[Gossip] = []
        self.weighed: list[float] = []
        self.models: list[Tensor] = []
        self.single: list[float] = []

    def before(self, replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        self.replicas = replicas

    def taken(self, message: Gossip) -> None:
        self.under_way = [other for other in self.under_way if other is not message]

    def weigh(self) -> None:
        bodies = [(replica.shown.weight, replica.flat.parts[0]) for replica in self.replicas.values()]
        bodies += [(message.weight, message.model.parts[0]) for message in self.under_way]
        self.weighed.append(sum(weight for weight, _ in bodies))
        self.models.append(sum((weight * model for weight, model in bodies), torch.zeros(5).double()))
        self.single += [weight for weight, _ in bodies]

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Gossip):
            self.under_way.append(message)
        self.weigh()

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.weigh()

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if all(replica.shown.weight < 1 or len(self.replicas) == 1 for replica in self.replicas.values()):
            self.weigh()  # every worker has begun


def weighed_run(
    scales: Scales, strategy: str, slow: list[float], *, lr: float, steps: int, seed: int = 0,
    watch: Sequence[Instrument] = (),
) -> World:  # fmt: skip
    """A run on the scales: what is taken in is taken off the wire."""
    real = GossipLinks.take_in

    def watched(links: GossipLinks, message: Gossip) -> None:
        before = links.weight.value
        real(links, message)
        assert links.weight.value == before + message.weight, "the receiver gains exactly what was sent"
        scales.taken(message)

    cluster = paced(slow, jitter=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GossipLinks, "take_in", watched)
        return run(
            quadratic(lr=lr), strategy, len(slow), steps=steps, cluster=cluster, watch=[scales, *watch], seed=seed,
            before=scales.before,
        )  # fmt: skip


speeds = st.lists(st.floats(0.2, 20.0), min_size=2, max_size=6)


@settings(max_examples=20, deadline=None)
@given(slow=speeds, probability=st.floats(0.05, 1.0), seed=st.integers(0, 50))
def test_weights_sum_to_one_at_every_instant(slow: list[float], probability: float, seed: int) -> None:
    scales = Scales()
    weighed_run(scales, f"gosgd(probability={probability})", slow, lr=0.1, steps=10, seed=seed)
    assert len(scales.weighed) > 10
    assert scales.weighed == pytest.approx([1.0] * len(scales.weighed), abs=1e-12)
    assert 0 < min(scales.single) <= max(scales.single) <= 1
    assert not scales.under_way, "a weight was lost on its way"
    assert sum(replica.shown.weight for replica in scales.replicas.values()) == pytest.approx(1.0)


@settings(max_examples=10, deadline=None)
@given(slow=speeds, seed=st.integers(0, 50))
def test_without_a_learning_rate_the_weighted_sum_stays(slow: list[float], seed: int) -> None:
    """Also with what travels; and the scored model is that mean."""
    scales = Scales()
    world = weighed_run(scales, "gosgd(probability=0.7)", slow, lr=0.0, steps=10, seed=seed)
    for model in scales.models:
        assert torch.allclose(model, scales.models[0], atol=1e-10, rtol=0)
    assert torch.allclose(world.scored["w"], scales.models[0], atol=1e-10, rtol=0)


def test_without_a_learning_rate_all_come_to_the_mean() -> None:
    scales = Scales()
    world = weighed_run(scales, "gosgd(probability=1)", [1.0] * 4, lr=0.0, steps=150)
    for replica in world.workers():
        assert torch.allclose(replica.flat.parts[0], scales.models[0], atol=1e-6)


def test_taking_in_by_hand() -> None:
    """(a w + b v) / (a + b), and a + b."""

    async def program(node: Node, _: Replica) -> None:
        replica = Replica(Point(2, torch.float64), sgd())
        replica.flat.copy_(vector(1.0, 3.0))
        links = GossipLinks(node, replica, dense)
        links.weight.value = 0.25
        links.take_in(Gossip(vector(5.0, -1.0), 0.75))
        assert replica.flat.parts[0].tolist() == [4.0, 0.0]
        assert links.weight.value == replica.shown.weight == 1.0

    perform(program)


def test_the_sender_keeps_half_and_sends_half() -> None:
    log = run(quadratic(), "gosgd(probability=1)", 2, steps=1, cluster=INSTANT).log
    first, second = log.kinds(Gossip)
    assert isinstance(first.message, Gossip) and first.message.weight == 0.25
    assert isinstance(second.message, Gossip) and second.message.weight == 0.25
    assert first.size == second.size == 5 * 8 + 8


def test_nobody_waits_for_anybody_before_the_end() -> None:
    world = run(quadratic(), "gosgd(probability=0.5)", 3, steps=8, cluster=slowed(INSTANT, w1=10))
    assert world.outcome.seconds == pytest.approx(0.8)
    ends = {rank: max(end for _, end, who in world.log.computes if who.rank == rank) for rank in range(3)}
    assert ends[0] == pytest.approx(0.08) and ends[2] == pytest.approx(0.08)
    assert all(wait.begin >= ends[wait.who.rank] - 1e-9 for wait in world.log.waits)


def test_all_that_waits_is_taken_in_before_the_next_step() -> None:
    """A slow worker hears of ten steps at once: its mailbox must not grow."""
    scales = Scales()
    waiting: list[int] = []

    class Watch(Instrument):
        def computed(self, begin: float, end: float, who: Address) -> None:
            if who == worker(0):
                waiting.append(len(scales.under_way))

    weighed_run(scales, "gosgd(probability=1)", [10.0, 1.0], lr=0.1, steps=30, watch=[Watch()])
    assert 5 < max(waiting) < 25


@pytest.mark.parametrize("topology", ["ring", "star", "chain"])
def test_only_neighbours_gossip(topology: str) -> None:
    world = run(quadratic(), f"gosgd(probability=1) over {topology}", 5, steps=10)
    pairs = {(sent.sender.rank, sent.to.rank) for sent in world.log.kinds(Gossip)}
    near = {
        "ring": {(r, (r + hop) % 5) for r in range(5) for hop in (1, -1)},
        "chain": {(r, r + hop) for r in range(5) for hop in (1, -1) if 0 <= r + hop < 5},
        "star": {(0, r) for r in range(1, 5)} | {(r, 0) for r in range(1, 5)},
    }
    assert pairs <= near[topology] and len(pairs) > 3
    assert sum(replica.shown.weight for replica in world.workers()) == pytest.approx(1.0)


@pytest.mark.parametrize("probability", ["0", "1.5", "-0.1"])
def test_probabilities_are_checked(probability: str) -> None:
    with pytest.raises(PlanError, match="must lie in \\(0, 1\\]"):
        catalog.resolve(f"gosgd(probability={probability})", 2)


def test_picture(golden: Golden) -> None:
    task = quadratic(size=248, dtype=torch.float32)  # 992 bytes and a weight of 8
    golden("traces/gosgd.txt", run(task, "gosgd(probability=0.5)", 3, steps=3, cluster=CLUSTER).trace)

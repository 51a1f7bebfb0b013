"""Value bounds: who waits depends on how much changed unseen; strong ones also bound what some have seen."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.cached.value_bound import ViewChange, VisibilityGate, Visible, fits
from covey.exchange.codec import dense
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.simulate import BytesPerSecond, Link, Seconds
from tests.central.test_downpour import ramp
from tests.worlds import CLUSTER, INSTANT, paced, perform, quadratic, run, vector, worker

P, LR = 5, 0.5
STEP = LR / P  # what one change of the ramp is, in every number
FAR = Link(bandwidth=BytesPerSecond(math.inf), latency=Seconds(10.0))


class Spread(Instrument):
    """At every event: how far the weights of two workers that are still there are apart."""

    def __init__(self) -> None:
        self.replicas: dict[Address, Replica] = {}
        self.apart = 0.0
        self.left: set[Address] = set()

    def look(self) -> None:
        flats = [self.replicas[who].flat.parts[0] for who in self.replicas if who in self.there()]
        apart = (float((a - b).abs().max()) for a in flats for b in flats)
        self.apart = max(self.apart, max(apart, default=0.0))

    def there(self) -> set[Address]:
        return {who for who in self.replicas if who.role == "worker"} - self.left

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Goodbye):
            self.left.add(sender)
        self.look()

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.look()


def apart(spec: str, count: int = P) -> float:
    """All go the same way; what worker `count - 1` sees, and says that it has seen, takes ten seconds."""
    cluster = replace(INSTANT, links={f"worker {count - 1}": FAR})
    spread = Spread()
    run(ramp(LR), spec, count, steps=12, cluster=cluster, watch=[spread], before=spread.replicas.update)
    return spread.apart


def test_weak_lets_two_workers_differ_by_what_all_others_may_have_pending() -> None:
    """Each of four may have 3 changes unseen by the fifth: the others see 12 that it does not."""
    bound = 3 * STEP + 1e-9
    weak = apart(f"vap(bound={bound})")
    assert 2 * bound + 1e-9 < weak <= P * bound + 1e-9


def test_strong_stops_the_same_construction_at_twice_the_bound() -> None:
    bound = 3 * STEP + 1e-9
    assert apart(f"vap(bound={bound}, strong=true)") <= 2 * bound + 1e-9


def test_a_tiny_bound_lets_one_change_at_a_time_be_unseen_and_a_large_one_holds_nobody() -> None:
    """No change larger than the bound is refused for ever: alone it passes."""
    cluster = replace(CLUSTER, link=Link(bandwidth=BytesPerSecond(math.inf), latency=Seconds(0.05)))
    tiny = run(ramp(LR), "vap(bound=0.000001)", 3, steps=4, cluster=cluster).log
    sent = [event.at for event in tiny.kinds(ViewChange) if event.sender == worker(0)]
    assert all(later - earlier >= 4 * 0.05 - 1e-9 for earlier, later in pairwise(sent)), "there and back, twice"
    free = run(ramp(LR), "vap(bound=1000000)", 3, steps=4, cluster=cluster)
    assert [event.at for event in free.log.kinds(ViewChange) if event.sender == worker(0)] == pytest.approx(
        [0.01, 0.02, 0.03, 0.04]
    )


def test_unseen_changes_that_reach_the_bound_exactly_fit_and_a_large_change_fits_alone() -> None:
    """Wei et al. 2013: at most max(u, bound) may be unseen, where u is the change itself; other signs cancel."""
    half = [vector(0.25, 0.0)]
    assert fits(half, vector(0.25, 0.0), 0.5) and not fits(half, vector(0.26, 0.0), 0.5)
    assert fits([], vector(9.0, 0.0), 0.5) and fits([vector(0.0, 0.5)], vector(9.0, 0.0), 0.5)
    assert not fits(half, vector(9.0, 0.0), 0.5) and fits(half, vector(-9.0, 0.0), 0.5)
    large = [vector(9.0, 0.0)]
    assert not fits(large, vector(0.0, 0.25), 0.5), "u is the change to come, not a large one that went before"


def test_a_worker_alone_has_seen_all_changes() -> None:
    assert run(quadratic(), "vap(bound=100)", 1, steps=5).log.values("staleness") == [0] * 5


def test_nobody_waits_for_one_who_has_left_and_all_for_the_others() -> None:
    async def serve(node: Node, replica: Replica) -> None:
        gate = VisibilityGate(node, replica, bound=None, codec=dense)
        gate.half[2, 0] = vector(1.0), {0, 1}
        await gate.left(worker(1))
        assert gate.half[2, 0][1] == {0} and gate.members == [0]

    async def leave(node: Node, replica: Replica) -> None:
        await node.receive(Goodbye)

    perform(serve, leave)


@pytest.mark.parametrize(("strong", "sharers"), [("false", 1), ("true", 2)])
def test_a_decaying_bound_lets_ever_less_be_unseen(strong: str, sharers: int) -> None:
    """v0 / sqrt(t), with v0 = 8 equal changes: from the 8th change on 2 fit, from the 17th on one alone; else always 8.

    Worker 2 is so far away that all run into the bound: what is on its way to it is what each of the other two may
    have unseen or, where the bound is strong, what they may have together.
    """
    cluster = replace(INSTANT, links={"worker 2": FAR})

    def under_way(decay: str) -> list[int]:
        spec = f"vap(bound={0.8 + 1e-9}, strong={strong}, decay={decay})"
        log = run(ramp(0.3), spec, 3, steps=22, cluster=cluster).log
        sent = [(e.at, e.message.step) for e in log.kinds(Visible) if e.to == worker(2)]
        counts = [(step, sum(at - 20 + 1e-6 < before <= at for before, _ in sent)) for at, step in sent]
        return [max(count for step, count in counts if step in steps) for steps in (range(7, 16), range(16, 22))]

    assert [count * sharers for count in under_way("true")] == [4, 2]
    assert min(under_way("false")) * sharers == 16


@settings(max_examples=12, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=4), bound=st.floats(0.01, 1.0), strong=st.booleans(),
    late=st.floats(0.0, 0.1), seed=st.integers(0, 9),
)  # fmt: skip
def test_the_bound_holds_at_every_instant(
    slow: list[float], bound: float, strong: bool, late: float, seed: int
) -> None:
    """From the messages alone: own changes that somebody has not received never exceed max(u, bound)."""
    n, far = len(slow), Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(late))
    cluster = replace(paced(slow, 0.3), links={"worker 0": far})
    task = quadratic(samples=24 * n)
    spec = f"vap(bound={bound:.4f}, strong={'true' if strong else 'false'})"
    world = run(task, spec, n, steps=6, seed=seed, cluster=cluster)
    events = sorted(
        [(e.at, 1, e) for e in world.log.kinds(ViewChange)]
        + [(e.at, 0, e) for e in world.log.deliveries if isinstance(e.message, Visible | Goodbye)],
        key=lambda event: event[:2],
    )
    changes: dict[tuple[int, int], torch.Tensor] = {}
    missing: dict[tuple[int, int], set[int]] = {}
    there = set(range(n))
    for _, _, event in events:
        if isinstance(event.message, Visible):
            missing[event.message.owner, event.message.step].discard(event.to.rank)
        elif isinstance(event.message, Goodbye):  # who has left is not waited for
            there -= {event.sender.rank} if event.sender.role == "worker" else set()
        else:
            key = event.sender.rank, event.message.step
            changes[key], missing[key] = event.message.change.parts[0], there - {event.sender.rank}
            mine = [changes[k] for k, ranks in missing.items() if k[0] == key[0] and ranks & there]
            largest = max([round(bound, 4), *(float(change.abs().max()) for change in mine)])
            assert not mine or float(torch.stack(mine).sum(0).abs().max()) <= largest + 1e-9
    assert len(world.log.kinds(ViewChange)) == 6 * n
    total = sum((e.message.change.parts[0] for e in world.log.kinds(ViewChange)), torch.zeros(5).double())
    assert torch.allclose(world.scored["w"], 1 + total, atol=1e-9), "no change is lost"

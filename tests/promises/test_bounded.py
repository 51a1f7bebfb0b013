"""What waits in links and mailboxes is bounded while a role is stuck; no strategy deadlocks with a small window."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace

import pytest

from covey import catalog
from covey.engines.virtual import VirtualEngine
from covey.message import Address, Message, vectors
from covey.model import build
from covey.model.threads import one_thread
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.run.options import options
from covey.run.request import request
from covey.simulate import Cluster, Seconds
from tests.promises.specs import SPECS, workable
from tests.worlds import mlp

STUCK = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={1: 1000.0})
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.5, slowdowns={2: 3.0})
BUSIEST = {
    "gosgd": "gosgd(probability=1)", "ako": "ako(partitions=2)", "malt": "malt(bound=3)", "sgp": "sgp(overlap=2)",
}  # fmt: skip
"""Settings with which workers send without waiting for an answer, as the bare names do more rarely."""

OWN_LIMIT = {"malt(bound=3)": 4, "sgp(overlap=2)": 3}
"""How many messages may lie unread on a link of those that limit that themselves: one more than their bound."""

NAMES = [SPECS.get(name, name) for name in catalog.names()] + list(BUSIEST.values())


def size(message: Message) -> int:
    return sum(vector.nbytes for vector in vectors(message))


class Waiting(Instrument):
    """The most that was under way and unread on one link at once."""

    def __init__(self) -> None:
        self.engine: VirtualEngine | None = None
        self.under_way: defaultdict[tuple[Address, Address], deque[int]] = defaultdict(deque)
        self.bytes = self.messages = self.largest = 0

    def sent(self, at: float, sender: Address, to: Address, message: Message, _: int) -> None:
        assert self.engine is not None
        self.under_way[sender, to].append(size(message))
        self.largest = max(self.largest, size(message))
        lying = [size(other) for other in self.engine._seats[to].mailbox.waiting if other.sender == sender]
        here = [*self.under_way[sender, to], *lying]
        self.bytes, self.messages = max(self.bytes, sum(here)), max(self.messages, len(here))

    def delivered(self, at: float, sender: Address, to: Address, message: Message, _: int) -> None:
        self.under_way[sender, to].remove(size(message))


def watched(spec: str, cluster: Cluster, window: int, steps: int) -> Waiting:
    task, workers = mlp(samples=64), workable(spec, 4)
    asked = request(task, spec, workers, options({"engine": "simulated", "steps": steps}))
    replicas = {
        role.address: build.replica(task, role.address, role.trains, asked.deal, asked.budget, role.part)
        for role in asked.plan.roles
    }
    waiting = Waiting()
    waiting.engine = VirtualEngine(
        replace(asked.plan, window=window), replicas, cluster, [waiting], Referee(10**9)
    )  # fmt: skip
    with one_thread():
        waiting.engine.run()
    return waiting


@pytest.mark.parametrize("spec", NAMES)
def test_a_stuck_worker_fills_no_memory_and_nobody_deadlocks(spec: str) -> None:
    """With a window of one byte: one message on each link, and one more that its receiver waits for."""
    waiting = watched(spec, STUCK, 1, steps=12)
    assert waiting.bytes <= OWN_LIMIT.get(spec, 2) * waiting.largest
    assert waiting.messages <= 8, "words without numbers"


@pytest.mark.full
@pytest.mark.parametrize("spec", NAMES)
def test_with_room_for_one_message_nobody_deadlocks(spec: str) -> None:
    watched(spec, UNEVEN, 1, steps=9)

"""How much lies in links and mailboxes at once? In virtual time, with links that hold one message."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace

from covey.engines.virtual import VirtualEngine
from covey.message import Address, Message, vectors
from covey.model import build
from covey.model.threads import one_thread
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.run.options import options
from covey.run.request import request
from covey.simulate import Cluster
from covey.task import Task


class UnreadMessages(Instrument):
    """The most that was under way and unread on one link at once."""

    def __init__(self) -> None:
        self.engine: VirtualEngine | None = None
        self.under_way: defaultdict[tuple[Address, Address], deque[int]] = defaultdict(deque)
        self.bytes = self.messages = self.largest = 0
        self.watches = False

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        assert self.engine is not None
        self.watches = False  # what fails in here would be removed, and the rest of the run would count for nothing
        self.under_way[sender, to].append(_size(message))
        self.largest = max(self.largest, _size(message))
        lying = [_size(other) for other in self.engine._actors[to].mailbox.waiting if other.sender == sender]
        here = [*self.under_way[sender, to], *lying]
        self.bytes, self.messages = max(self.bytes, sum(here)), max(self.messages, len(here))
        self.watches = True

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.under_way[sender, to].remove(_size(message))


def _size(message: Message) -> int:
    return sum(vector.nbytes for vector in vectors(message))


def watched(task: Task, spec: str, workers: int, cluster: Cluster, *, window: int, steps: int) -> UnreadMessages:
    """A run in virtual time whose links hold `window` bytes, or one message."""
    asked = request(task, spec, workers, options({"engine": "simulated", "steps": steps}))
    replicas = {
        role.address: build.replica(task, role.address, role.trains, asked.deal, asked.budget, role.part)
        for role in asked.plan.roles
    }
    waiting = UnreadMessages()
    waiting.engine = VirtualEngine(
        replace(asked.plan, window=window), replicas, cluster, [waiting], Referee(10**9)
    )  # fmt: skip
    with one_thread():
        outcome = waiting.engine.run()
    assert waiting.watches or not any(tally.messages for tally in outcome.tallies.values()), "nothing was watched"
    return waiting

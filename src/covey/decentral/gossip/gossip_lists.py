"""What models contain, and the list of batches that all workers have alike, where they come and go.

A model contains the first batches of each seat, whoever did them; how many is all that must be known. A batch of one
that is gone counts if a model contains it that is still there, else it goes back to the list: also later, as long as
not all models contain it.
"""

from __future__ import annotations

from typing import Any

from covey.data.leases import Ledger
from covey.errors import WireError
from covey.membership import all_lost
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.tally import AcceptedSamples
from covey.program import Memory, Node
from covey.servers.packed_state import packed, unpacked
from covey.servers.round_messages import PeerReady, PeerState
from covey.servers.together import Together
from covey.vector import Vector

Contents = tuple[int, ...]
"""The version of the sender's list, and how many batches of each seat the model of each worker contains at least.

One worker comes after the other.
"""


class ModelContents(Message):
    """What the sender's model contains, which version of the list it has, and its step."""

    wire_name = "gossip.contents"

    version: int
    counts: tuple[int, ...]
    step: int

    counted = kept = False


class DonatedModel:
    """What a worker that comes is given: a model, and half of its donor's weight where models have weights."""

    counts = alike = lends = False

    def __init__(self, replica: Replica, weight: Memory[float] | None) -> None:
        self.replica, self.weight = replica, weight

    def give(self) -> dict[str, Any]:
        if self.weight is not None:
            self._weigh(self.weight.value / 2)
        weight = self.weight.value if self.weight else 1.0
        return {"parts": list(self.replica.model.parts), "others": self.replica.layout.others(), "weight": weight}

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        self.replica.model.copy_(Vector(state["parts"]))
        self.replica.layout.set_others(state["others"])
        self._weigh(state["weight"])

    def settle(self) -> None:
        """A model is given as it is."""

    def _weigh(self, weight: float) -> None:
        if self.weight is not None:
            self.weight.value = weight
        self.replica.weigh(weight)


class GossipList(Together):
    """The list as one worker has it; when all meet, the first one that has the newest makes the next."""

    def __init__(self, node: Node, replica: Replica, weight: Memory[float] | None = None) -> None:
        super().__init__(node, DonatedModel(replica, weight))
        source, seats = replica.batch_source, range(node.workers)
        limits = [limit or 0 for limit in node.limits]
        self.replica, self.weight = replica, weight
        self.ledger = Ledger(limits, [source.steps(seat) for seat in seats], source.samples)
        self.known = [[0] * node.workers for _ in seats]  # of each worker, what its model contains at least
        self.listed = (0,) * node.workers  # who was there when the list was made, as marks of seats
        self.start = [0] * node.workers  # how many batches of each seat were in some model then
        self.rounds = 0  # that are dealt out since then
        self.turns = [0] * node.workers  # that each has in these rounds: the first ones, without a gap

    @property
    def version(self) -> int:
        """Of the list; -1: this worker has neither a list nor a model.

        Where there are no rounds, it is what a worker tells the others at a meeting in place of steps that are done.
        """
        return self._done.value

    @version.setter
    def version(self, version: int) -> None:
        self._done.value = version

    @property
    def members(self) -> list[int]:
        """The workers that were there when the list was made."""
        return [rank for rank, mark in enumerate(self.listed) if mark % 2 == 0]

    @property
    def over(self) -> bool:
        """Whether the run has ended for somebody, and so for all."""
        return bool(self.ended)

    @property
    def counts(self) -> list[int]:
        """What this worker's model contains."""
        return self.known[self.node.rank]

    def replaced(self) -> set[int]:
        """Whose incarnations are over since the list was made."""
        return {rank for rank, mark in enumerate(self.seats.marks) if mark != self.listed[rank]}

    @property
    def lost_models(self) -> int:
        """How many of those that had a model are lost since the list was made."""
        return sum(self.listed[rank] % 2 == 0 for rank in self.replaced())

    # -- what models contain -----------------------------------------------------------------------------------------

    def did(self) -> None:
        """The gradient of its batch is in this worker's model."""
        self.counts[self.node.rank] += 1

    def contains(self) -> Contents:
        """What goes along with a model or a gradient."""
        return self.version, *(count for counts in self.known for count in counts)

    def took_in(self, sender: Address, contents: Contents, whole: bool = True) -> None:
        """The sender's model is in this worker's model now; or, if not the `whole`, only the sender's own batches.

        Where somebody went or came since it was sent, what it says of others may be of incarnations that are over.
        """
        me, size = self.node.rank, self.node.workers
        counts = self._checked(sender, contents[1:], size * size)
        told = [counts[rank * size : (rank + 1) * size] for rank in range(size)]
        for rank in range(size) if contents[0] == self.version else [sender.rank]:
            if rank != me:  # which knows best itself
                self.known[rank] = [*map(max, self.known[rank], told[rank])]
        for rank in range(size) if whole else [sender.rank]:
            if rank != me:
                self.counts[rank] = max(self.counts[rank], told[sender.rank][rank])

    def _checked(self, sender: Address, counts: tuple[int, ...], size: int) -> tuple[int, ...]:
        """What another one says, if it can be."""
        most = sum(self.ledger.limits)
        if len(counts) != size or not all(0 <= count <= most for count in counts):
            raise WireError(
                f"{sender} sent {len(counts)} numbers of batches, the largest {max(counts, default=0)}, where {size} "
                f"were due, each from 0 to {most}"
            )
        return counts

    def _check_step(self, sender: Address, step: int) -> None:
        """All batches are done once for each list, and each change of members makes one; -1: it has not begun."""
        most = sum(self.ledger.limits) * (sum(self.seats.marks) + 2)
        if not -1 <= step <= most:
            raise WireError(f"{sender} says that it is at step {step}, where -1 to {most} are possible")

    def settle(self) -> None:
        """What all models contain cannot be lost any more."""
        for rank in range(self.node.workers):
            self.ledger.settle(rank, min(self.known[other][rank] for other in self.members))

    def deal(self, rounds: int) -> None:
        """Deal out the list up to this number of rounds: each member gets a batch in a round, if there is one."""
        while self.rounds < rounds:
            for rank in self.members:
                self.turns[rank] += self.ledger.take(rank, self.start[rank] + self.rounds) is not None
            self.rounds += 1

    # -- where all meet ------------------------------------------------------------------------------------------------

    async def _catch_up(self, standings: dict[int, tuple[int, bool]]) -> None:
        """Make a new list for those that are there; who has no model gets one."""
        if self.over:
            return await self._tell_of_end()
        node = self.node
        told = {node.rank: ModelContents(self.version, tuple(self.counts), node.step)}
        await node.broadcast(self.peers, told[node.rank])
        for who in self.peers:
            told[who.rank] = await node.receive(ModelContents, sender=who)
            self._checked(who, told[who.rank].counts, node.workers)
            self._check_step(who, told[who.rank].step)
        newest = max(contents.version for contents in told.values())
        if newest < 0:
            raise all_lost(self.seats.last_gone or node.address)
        maker = min(rank for rank, contents in told.items() if contents.version == newest)
        donors = {rank: self._donor(rank, told) for rank, contents in told.items() if contents.version < 0}
        if node.rank == maker:
            lost = self._make_list(told, donors)
            for who in self.peers:
                if who.rank not in donors:
                    await node.send(who, PeerState(packed(self._given())))
            await self._tell_of(lost)
        else:
            source = Address("worker", donors.get(node.rank, maker))
            self._take(unpacked((await node.receive(PeerState, sender=source)).state, source))
        for rank in sorted(donors):
            if donors[rank] == node.rank:
                given = {**self._given(), "donated": self.state.give()}
                await node.send(Address("worker", rank), PeerState(packed(given)))
        await node.broadcast(self.peers, PeerReady())
        for who in self.peers:
            await node.receive(PeerReady, sender=who)
        self._skip_to(max(contents.step for contents in told.values()))

    @staticmethod
    def _donor(rank: int, told: dict[int, ModelContents]) -> int:
        """Whose model one gets that comes: the one that contains most of what was done in its seat."""
        known = [other for other, contents in told.items() if contents.version >= 0]
        return max(known, key=lambda other: (told[other].counts[rank], -other))

    def _make_list(self, told: dict[int, ModelContents], donors: dict[int, int]) -> int:
        """What no model contains that is there goes back to the list; how many incarnations ended since then."""
        ledger, marks = self.ledger, self.seats.marks
        nothing = (0,) * self.node.workers
        for rank in range(self.node.workers):
            self.known[rank] = list(told[donors.get(rank, rank)].counts if rank in told else nothing)
        had = [max(column) for column in zip(*self.known, strict=True)]
        self.deal(max(count - first for count, first in zip(had, self.start, strict=True)))
        for rank, mark in enumerate(marks):
            ledger.give_back(rank, had[rank])
            if mark % 2:
                ledger.empty.add(rank)
            else:
                ledger.join(rank)
        lost = self.lost_models
        self._begin_list(self.version + 1, marks, had)
        return lost

    def _given(self) -> dict[str, Any]:
        made = {"version": self.version, "marks": list(self.listed), "start": list(self.start)}
        return {**made, "list": self.ledger.state(), "known": [list(counts) for counts in self.known]}

    def _take(self, state: dict[str, Any]) -> None:
        if state["version"] <= self.version:
            return
        if self.version < 0:
            self.state.take(state["donated"], restarted=True)
        self.ledger.restore(state["list"])
        self.known = [list(counts) for counts in state["known"]]
        self._begin_list(state["version"], tuple(state["marks"]), list(state["start"]))

    def _begin_list(self, version: int, marks: tuple[int, ...], start: list[int]) -> None:
        self.version, self.listed, self.start = version, marks, start
        self.rounds, self.turns = 0, [0] * self.node.workers
        self.settle()

    async def _tell_of(self, lost: int) -> None:
        """Note how many models were lost, and how much of what those did counts whose seats are empty."""
        if lost:
            await self.node.note("lost models" if self.weight is None else "lost shares", lost)
        for rank in sorted(self.ledger.empty):
            await self.node.note("accepted", AcceptedSamples(self.ledger.done[rank], Address("worker", rank)))

    async def _tell_of_end(self) -> None:
        """Nobody does again what only a lost model contained: the first of those that are left notes it."""
        if self.lost_models and self.node.rank == min([self.node.rank, *(who.rank for who in self.peers)]):
            await self.node.note("lost at the end", self.lost_models)

    def _skip_to(self, step: int) -> None:
        """Count as many steps as the others, so that all can end after the same one."""
        while self.node.step < step:
            self.node.training()

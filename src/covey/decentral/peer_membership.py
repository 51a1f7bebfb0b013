"""Workers without a server, of which one is lost: its next incarnation takes over the model of another worker.

Where lost workers are restarted, nobody ends before all are through: so whoever has a model is there to give it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from covey.decentral.leaving import addresses
from covey.membership import Joined, all_lost
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.servers.round_messages import own_mark
from covey.servers.standing import begin
from covey.vector import Vector


class AskModel(Message):
    """A worker that was restarted asks for a model; it knows all workers in these incarnations."""

    wire_name = "peers.ask_model"

    incarnations: tuple[int, ...]

    counted = kept = False


class GivenModel(Message):
    """The sender's model, and the weight that goes along, where models have weights."""

    wire_name = "peers.given_model"

    model: Vector
    weight: float
    others: Vector  # buffers that are no floats

    counted = kept = False


class NoModel(Message):
    """The sender was restarted itself, knows all workers in these incarnations, and has no model yet."""

    wire_name = "peers.no_model"

    incarnations: tuple[int, ...]

    counted = kept = False


class Farewell(Message):
    """The sender has done its last step, in this incarnation."""

    wire_name = "peers.farewell"

    incarnation: int

    counted = kept = False


async def _nothing(rank: int) -> None:
    pass


class PeerMembership:
    """One worker among those of its run. Where lost workers are not restarted, nothing of this costs anything.

    Args:
        near: From whom a new incarnation would rather have its model, in this order.
        weight: Of the model, where models have weights that add up: a new incarnation takes half of its donor's.
        restarted: What else is done when a worker was restarted.
    """

    def __init__(
        self, node: Node, replica: Replica, near: Sequence[int] = (), weight: Memory[float] | None = None,
        restarted: Callable[[int], Awaitable[None]] = _nothing,
    ) -> None:  # fmt: skip
        self.node, self.replica, self.weight, self.restarted = node, replica, weight, restarted
        self.elastic = node.incarnation.elastic
        self.asks: tuple[type[Message], ...] = (Joined, AskModel) if self.elastic else ()  # a companion may hear these
        self.kinds = (*self.asks, Farewell)  # the program that parts hears all
        self.incarnations = own_mark(node, node.incarnation.number)
        away = {node.rank, *(who.rank for who in node.incarnation.ended)}
        ranks = dict.fromkeys((*near, *range(node.workers))) if self.elastic else ()
        self.others = [rank for rank in ranks if rank not in away]  # that have not ended, where that counts
        self.has_model = not node.incarnation.enters
        self._left: dict[int, int] = {}  # in which incarnation each one has said farewell
        self._told: dict[int, int] = {}  # to which incarnation of each one this one has said it
        self._met: dict[int, int] = {}  # in which incarnation each one hears this one, as far as is certain
        self._parting = self._patient = False

    @property
    def through(self) -> set[int]:
        """Who has done its last step."""
        return {rank for rank, incarnation in self._left.items() if incarnation >= self.incarnations[rank]}

    async def enter(self) -> bool:
        """Begin; or in the place of a lost one, at the step in which it was lost. False: who has a model has ended."""
        going = await self.adopt()
        if going and self.node.incarnation.enters:
            await begin(self.node, self.replica, self.node.incarnation.step)
        return going

    async def adopt(self) -> bool:
        """Have a model: one's own, or in the place of a lost one that of another. False: who has one has ended."""
        if not self.node.incarnation.enters:
            return True
        await self.node.note("lost models" if self.weight is None else "lost shares")
        self.replica.weigh(0.0)  # nothing of it is scored yet
        nobody = not self.others
        while not nobody and not self.has_model:
            told: dict[int, tuple[int, ...]] = {}
            for rank in self.others:
                if not self.has_model:
                    await self._ask(rank, told)
            # Who says so in these incarnations had none, and hears no earlier one: none of them can get one any more.
            nobody = all(told.get(rank) == self.incarnations for rank in self.others)
        if nobody and len(self.others) == self.node.workers - 1:
            raise all_lost(self.node.address)
        return self.has_model  # those who have ended did so when all were through: nothing is left to do

    async def _ask(self, rank: int, told: dict[int, tuple[int, ...]]) -> None:
        """Ask one worker for its model; what it tells where it has none."""
        who = Address("worker", rank)
        await self.look()  # so that whoever is restarted from here on was not asked in its new incarnation
        await self.node.send(who, AskModel(self.incarnations))
        while True:
            word = await self.node.receive_any(GivenModel, NoModel, *self.kinds)
            if isinstance(word, GivenModel):
                return self._take(word)
            if isinstance(word, NoModel):
                self._know(word.incarnations)
                told[rank] = word.incarnations
                return None
            await self.hear(word)
            if isinstance(word, Joined) and word.sender == who:
                return None

    def _take(self, given: GivenModel) -> None:
        self.replica.model.copy_(given.model)
        layout, others = self.replica.layout, self._others().clone().copy_(given.others)  # refused if they do not fit
        parts = zip(layout.others().items(), others.parts, strict=True)
        layout.set_others({name: part.view(buffer.shape) for (name, buffer), part in parts})
        self.has_model = True
        if self.weight is not None:
            self.weight.value = given.weight
        self.replica.weigh(1.0 if self.weight is None else given.weight)

    async def look(self) -> None:
        """Hear what others have said."""
        while self.elastic and (word := self.node.receive_nowait(*self.kinds)):
            await self.hear(word)

    async def hear(self, word: Message) -> None:
        """A worker was restarted, asks for a model, or is through."""
        rank = word.sender.rank
        if isinstance(word, Joined):
            self._know(tuple(word.incarnation if other == rank else 0 for other in range(self.node.workers)))
            self._met[rank] = word.incarnation
            await self.restarted(rank)
            if not self._patient:
                await self._say_farewell(rank)
        elif isinstance(word, Farewell):
            self._left[rank] = self._met[rank] = word.incarnation
            await self._say_farewell(rank)
        elif isinstance(word, AskModel):
            self._know(word.incarnations)
            await self.node.send(word.sender, self._given() if self.has_model else NoModel(self.incarnations))

    def _others(self) -> Vector:
        return Vector(buffer.reshape(-1) for buffer in self.replica.layout.others().values())

    def _given(self) -> GivenModel:
        others = self._others()
        if self.weight is None:
            return GivenModel(self.replica.model, 1.0, others)
        self.weight.value = self.weight.value / 2
        self.replica.weigh(self.weight.value)
        return GivenModel(self.replica.model, self.weight.value, others)

    def _know(self, incarnations: tuple[int, ...]) -> None:
        self.incarnations = tuple(map(max, self.incarnations, incarnations))

    async def part(self, after: Collection[int] = ()) -> None:
        """Say farewell, and stay until all others have said theirs.

        With `after` it is said only when these have said theirs, to each of their incarnations: each of them has heard
        all that was sent to it before.
        """
        self._patient = bool(after)
        await self._await(after)
        self._parting = True
        for rank in self.others:
            await self._say_farewell(rank)
        await self._await(self.others)

    async def _await(self, ranks: Collection[int]) -> None:
        while True:
            await self.look()
            if not set(ranks) & set(self.others) - self.through:
                return
            await self.hear(await self.node.receive_any(*self.kinds))

    async def _say_farewell(self, rank: int) -> None:
        """Once to each incarnation of a worker."""
        if self._parting and self._told.get(rank, -1) < (met := self._met.get(rank, 0)):
            self._told[rank] = met
            await self.node.broadcast(addresses([rank]), Farewell(self.node.incarnation.number))

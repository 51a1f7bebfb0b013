"""The skeleton of a server, a master or an aggregator: what it does with each message is its policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from covey.membership import Departed, Joined
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.standing import LEFT, UNKNOWN, AskStanding, ClientStanding
from covey.vector import Vector, mean_

Hears = dict[type[Message], Callable[[Any], Awaitable[None]]]
"""What to do with each kind of message."""


async def serve(policy: Callable[..., ServerProgram], node: Node, replica: Replica, /, **settings: Any) -> None:
    """The role's program, for a policy with these settings."""
    await policy(node, replica, **settings).serve()


class ServerProgram:
    """A role that hears its clients until all of them have said goodbye.

    A policy fills `hears`, and says what follows on any message (`settle`) and on a goodbye (`left`).
    """

    hears: Hears
    first = True  # notes of updates and staleness come from one server only, which also keeps the float buffers

    def __init__(self, node: Node, replica: Replica, clients: int | None = None) -> None:
        self.node, self.replica = node, replica
        self.clients = node.workers if clients is None else clients
        self.gone: set[Address] = set()  # not remembered: after a restart all say goodbye anew
        self.finished: set[Address] = set()  # said goodbye, in whichever of their incarnations

    async def serve(self) -> None:
        while (message := await self.next_message()) is not None:
            if isinstance(message, Goodbye):
                self.gone.add(message.sender)
                self.finished.add(message.sender)
                await self.left(message.sender)
            elif isinstance(message, Departed):
                self.gone.add(message.sender)
                await self.departed(message.sender)
            elif isinstance(message, Joined | AskStanding):
                await self.tell_standing(message)
            else:
                await self.hears[type(message)](message)
            await self.settle()

    @property
    def team(self) -> int:
        """The number of workers."""
        return self.node.workers

    @property
    def over(self) -> bool:
        """Whether there is nothing more to hear."""
        return len(self.gone) >= self.clients

    async def next_message(self) -> Message | None:
        """What to do next; nothing when all clients have left, and none of them was restarted since."""
        elastic = self.node.incarnation.elastic
        if not self.over:
            news = (Joined, Departed, AskStanding) if elastic else ()
            return await self.node.receive_any(*self.hears, Goodbye, *news)
        return self.node.receive_nowait(Joined) if elastic else None

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        """A client is restarted, or asks whether all that it sent has come: tell it which step is its next here."""
        who = message.sender
        if isinstance(message, Joined):
            self.gone.discard(who)  # it says goodbye once more
            self.forget_requests(who.rank)
        step = LEFT if who in self.finished else self.next_step(who.rank)
        buffers = self.replica.buffers if self.first else NOTHING
        await self.node.send(who, ClientStanding(message.incarnation, step, buffers))

    def forget_requests(self, rank: int) -> None:
        """A client is restarted: nobody waits for what its earlier incarnation asked."""

    def next_step(self, rank: int) -> int:
        """The first step of a client of which nothing has come, where the policy knows."""
        return UNKNOWN

    async def left(self, who: Address) -> None:
        """A client has said goodbye; after a restart it may say so twice."""

    async def departed(self, who: Address) -> None:
        """A client is gone without a goodbye, and its seat is empty."""
        self.forget_requests(who.rank)
        await self.left(who)

    async def settle(self) -> None:
        """Do what has become possible."""

    async def note_update(self, ages: Iterable[int] = ()) -> None:
        """Tell of an update, and of the staleness of each gradient in it."""
        if self.first:
            for age in ages:
                await self.node.note("staleness", age)
            await self.node.note("update")

    def replace_buffers(self, pushed: Sequence[Vector]) -> None:
        """Let the float buffers be the mean of those pushed."""
        if self.first and self.replica.buffers.parts:
            self.replica.buffers.zero_()
            for buffers in pushed:
                self.replica.buffers.add_(buffers, alpha=1 / len(pushed))

    def keep_buffers(self, pushed: Sequence[Vector], counts: Sequence[float] = ()) -> None:
        """Move the float buffers to the mean of those pushed, as far as these gradients are of all workers."""
        if self.first and self.replica.buffers.parts:
            counts = counts or [1.0] * len(pushed)
            mean = mean_(self.replica.buffers.clone(), pushed, counts)
            self.replica.buffers.lerp_(mean, min(1.0, sum(counts) / self.team))

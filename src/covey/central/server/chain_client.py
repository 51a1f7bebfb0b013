"""A worker of servers that have copies: it speaks to the copy that leads, and asks again when one is lost."""

from __future__ import annotations

from collections.abc import Sequence

from covey.central.server.client import Servers, catch_up
from covey.central.server.leased import any_worker
from covey.central.server.shard import Params, Pull, Push
from covey.exchange.codec import Codec, dense
from covey.membership import Joined, by_seniority
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.standing import LEFT, AskStanding, ClientStanding, begin
from covey.strategy.roles import copies_of
from covey.vector import Vector


class CopiedServers(Servers):
    """The servers as a worker sees them; `servers` are those that lead now, one for each piece."""

    def __init__(self, node: Node, replica: Replica, addresses: Sequence[Address], codec: Codec = dense) -> None:
        super().__init__(node, replica, addresses, codec)
        self.copies = [copies_of(index, len(addresses), node.incarnation.replicas) for index in range(len(addresses))]
        self.incarnations = dict(node.incarnation.others)
        self.servers = self.leading = [by_seniority(copies, self.incarnations)[0] for copies in self.copies]
        self.sent: list[Push] = []  # the last gradients, until the next pull is answered

    def index(self, copy: Address) -> int:
        """Whose piece this copy holds."""
        return copy.rank % len(self.copies)

    async def pull(self) -> None:
        step, missing = self.node.step, {*range(len(self.servers))}
        await self.ask(step)
        while missing:
            message = await self.node.receive_any(Params, Joined)
            index = self.index(message.sender)
            if isinstance(message, Joined):
                if self.renewed(message) and index in missing:
                    await self.send_again(index, Pull(step))
            elif isinstance(message, Params) and message.step == step and index in missing:
                missing.remove(index)
                self.take(index, message)
                self.versions[index] = message.version

    async def push(self, grad: Vector) -> None:
        self.sent.clear()
        await super().push(grad)

    def parcel(self, push: Push) -> Push:
        self.sent.append(push)
        return push

    async def send_again(self, index: int, question: Message) -> None:
        """Let the copy that leads now have the last gradient, if it has not, and answer the question."""
        for message in (*self.sent[index : index + 1], question):
            await self.node.send(self.servers[index], message, loan=True)

    def renewed(self, joined: Joined) -> bool:
        """Know the new incarnation of a copy, which is now the last of its chain; whether it is one of a server's."""
        if joined.sender not in self.copies[index := self.index(joined.sender)]:
            return False
        self.incarnations[joined.sender] = joined.incarnation
        self.leading[index] = by_seniority(self.copies[index], self.incarnations)[0]
        return True

    async def rejoin(self, *stale: type[Message]) -> bool:
        await self.note_residuals()
        incarnation = self.node.incarnation
        if not incarnation.enters:
            return True
        if any(copy in incarnation.ended for copies in self.copies for copy in copies):
            return False
        told = await self.standings(incarnation.number)
        if any(standing.step == LEFT for standing in told):
            return False
        if told[0].buffers.parts:
            self.replica.buffers.copy_(told[0].buffers)
        await begin(self.node, self.replica, min(standing.step for standing in told))
        return True

    async def standings(self, question: int) -> list[ClientStanding]:
        """Ask every server which step is the next of this worker."""
        ask, told = AskStanding(question), dict[int, ClientStanding]()
        await self.node.broadcast(self.servers, ask)
        while len(told) < len(self.servers):
            message = await self.node.receive_any(ClientStanding, Joined)
            index = self.index(message.sender)
            if isinstance(message, Joined):
                if self.renewed(message) and index not in told:
                    await self.send_again(index, ask)
            elif isinstance(message, ClientStanding) and message.incarnation == question:
                told[index] = message
        return [told[index] for index in range(len(self.servers))]

    async def complete(self) -> None:
        """Wait until all copies have all that was sent: a server answers this question not before."""
        await self.standings(-1 - self.node.incarnation.number)

    async def leave(self) -> None:
        for copies in self.copies:
            await self.node.broadcast(copies, Goodbye())


async def copied_worker(node: Node, replica: Replica, *, servers: Sequence[Address], codec: Codec, clip: bool) -> None:
    """Pull, differentiate, push."""
    store = CopiedServers(node, replica, servers, codec)
    if await store.rejoin():
        while node.training():
            await store.pull()
            if not await catch_up(node, replica, store.over):
                break
            await store.push(await replica.gradient(node, clip))
        await store.complete()
    await store.leave()


async def any_client(node: Node, replica: Replica, *, servers: Sequence[Address], codec: Codec, clip: bool) -> None:
    """The program of a worker, in a run whose servers have copies or in another one."""
    program = copied_worker if node.incarnation.replicas > 1 else any_worker
    await program(node, replica, servers=servers, codec=codec, clip=clip)

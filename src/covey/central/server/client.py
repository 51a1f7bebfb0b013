"""What a worker does with parameter servers: pull, differentiate, push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.central.server.codec_trials import CodecTrials
from covey.central.server.shard import Params, Pull, Push
from covey.exchange.codec import Codec, dense
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.servers.clients import PieceClient
from covey.servers.pulls import Given, Landing
from covey.servers.standing import complete
from covey.vector import Vector


class Servers(PieceClient):
    """The servers as a worker, or a proxy, sees them: each holds one piece of the parameters."""

    answers: type[Params] = Params

    def __init__(self, node: Node, replica: Replica, addresses: Sequence[Address], codec: Codec = dense) -> None:
        super().__init__(node, replica, addresses, codec, named=addresses)
        self.versions = [0] * len(addresses)
        self.over = 0  # epochs that have ended for everybody
        self.trials = CodecTrials(node, addresses, self.coders, self.memories) if codec.traits.measured else None
        self.back = Landing(node, self.forms, codec)

    def remembered(self) -> Sequence[Memory[Any]]:
        return [self.node.remember(f"codec {at}", coder.memory) for at, coder in enumerate(self.coders)]

    async def pull(self) -> None:
        """Bring the newest parameters that the rule allows into the replica."""
        step = self.node.step
        await self.ask(step)
        for index, address in enumerate(self.servers):
            params = await self.back.receive(self.answers, index, self.place(index), address, step)
            self.versions[index] = params.version
            self.over = max(self.over, params.over)
            self.answered(index, params)

    def take(self, index: int, params: Params) -> None:
        """Take over what a server gives: parameters, or how they have changed since it gave them last."""
        self.back.land(index, self.place(index), Given(params.params, params.whole))

    async def ask(self, step: int) -> None:
        await self.node.broadcast(self.servers, Pull(step))

    async def push(self, grad: Vector) -> None:
        """Give each server its piece of the gradient; it is lent until the next pull is answered."""
        samples = self.replica.batch.samples
        await self.choose(grad)
        for index, address in enumerate(self.servers):
            wire = self.encode(index, grad.cut(self.pieces[index]))
            push = self.parcel(Push(self.node.step, self.versions[index], samples, wire, self.buffers(index)))
            await self.replica.updates.inform(self.node, address)
            await self.node.send(address, push, loan=True)
        await self.ended()

    def answered(self, index: int, params: Params) -> None:
        """A server has answered a pull."""

    def parcel(self, push: Push) -> Push:
        """What travels with a gradient."""
        return push

    async def choose(self, grad: Vector) -> None:
        """With `auto`: find out, once, what this gradient and all later ones are to travel as."""
        if self.trials:
            await self.trials.choose([grad.cut(piece) for piece in self.pieces])

    async def ended(self) -> None:
        """A push is on its way."""
        if self.trials:
            await self.trials.trying.ended()


async def worker(
    node: Node, replica: Replica, *, servers: Sequence[Address], codec: Codec = dense, clip: bool = True
) -> None:
    """Pull, differentiate, push."""
    store = Servers(node, replica, servers, codec)
    if await store.rejoin(Params):
        while node.training():
            await store.pull()
            if not await catch_up(node, replica, store.over):
                break
            await store.push(await replica.gradient(node, clip))
        await complete(node, servers)
    await store.leave()


async def catch_up(node: Node, replica: Replica, over: int) -> bool:
    """Skip what is left of epochs that have ended for everybody; False when no step remains."""
    begin, training = over * replica.batch_source.steps(node.rank), True
    while node.step < begin and training:
        # told step by step: a run may be kept in `training`, and a count of several steps would be lost there
        await node.note("skipped", replica.batch_source.samples(node.rank, node.step))
        training = node.training()
    return training

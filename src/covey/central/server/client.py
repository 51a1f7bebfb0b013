"""What a worker does with parameter servers: pull, differentiate, push."""

from __future__ import annotations

from collections.abc import Sequence

from covey.central.server.codec_trials import CodecTrials
from covey.central.server.shard import Params, Pull, Push
from covey.exchange.codec import Codec, dense, seed
from covey.exchange.differences import difference_coder
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.pulls import Given, land
from covey.vector import Vector


class Servers:
    """The servers as a worker, or a proxy, sees them: each holds one piece of the parameters."""

    def __init__(self, node: Node, replica: Replica, addresses: Sequence[Address], codec: Codec = dense) -> None:
        self.node, self.replica, self.addresses = node, replica, addresses
        self.pieces = replica.pieces(len(addresses))
        self.versions = [0] * len(addresses)
        self.over = 0  # epochs that have ended for everybody
        self.coders = [
            codec.carrying().made(replica.form(piece), seed(node, address))
            for piece, address in zip(self.pieces, addresses, strict=True)
        ]
        self.memories = [node.remember(f"codec {index}", coder.memory) for index, coder in enumerate(self.coders)]
        self.trials = CodecTrials(node, addresses, self.coders, self.memories) if codec.traits.measured else None
        self.pulls = codec.pull
        self.back = [
            difference_coder(node, replica.form(piece), codec, "pull") if codec.pull else None for piece in self.pieces
        ]

    async def pull(self) -> None:
        """Bring the newest parameters that the rule allows into the replica."""
        step = self.node.step
        await self.ask(step)
        for index, address in enumerate(self.addresses):
            mine = None if self.pulls else self.replica.flat.cut(self.pieces[index])
            params = await self.node.receive(Params, sender=address, step=step, into=mine)
            if mine is None:
                self.take(index, params)
            self.versions[index] = params.version
            self.over = max(self.over, params.over)

    def take(self, index: int, params: Params) -> None:
        """Take over what a server gives: parameters, or how they have changed since it gave them last."""
        mine = self.replica.flat.cut(self.pieces[index])
        land(mine, Given(params.params, params.whole), self.back[index])

    async def ask(self, step: int) -> None:
        await self.node.broadcast(self.addresses, Pull(step))

    async def push(self, grad: Vector) -> None:
        """Give each server its piece of the gradient; it is lent until the next pull is answered."""
        samples = self.replica.batch.samples
        await self.choose(grad)
        for index, address in enumerate(self.addresses):
            buffers = self.replica.buffers if index == 0 else NOTHING
            push = Push(self.node.step, self.versions[index], samples, self.encode(index, grad), buffers)
            await self.replica.updates.inform(self.node, address)
            await self.node.send(address, push, loan=True)
        await self.ended()

    async def choose(self, grad: Vector) -> None:
        """With `auto`: find out, once, what this gradient and all later ones are to travel as."""
        if self.trials:
            await self.trials.choose([grad.cut(piece) for piece in self.pieces])

    async def ended(self) -> None:
        """A push is on its way."""
        if self.trials:
            await self.trials.trying.ended()

    def encode(self, index: int, grad: Vector) -> Vector:
        """A server's piece of the gradient, as it travels."""
        memory = self.memories[index]
        wire, memory.value = self.coders[index].encode(grad.cut(self.pieces[index]), memory.value)
        return wire

    async def leave(self) -> None:
        await self.node.broadcast(self.addresses, Goodbye())


async def worker(
    node: Node, replica: Replica, *, servers: Sequence[Address], codec: Codec = dense, clip: bool = True
) -> None:
    """Pull, differentiate, push."""
    store = Servers(node, replica, servers, codec)
    while node.training():
        await store.pull()
        if not await catch_up(node, replica, store.over):
            break
        await store.push(await replica.gradient(node, clip))
    await store.leave()


async def catch_up(node: Node, replica: Replica, over: int) -> bool:
    """Skip what is left of epochs that have ended for everybody; False when no step remains."""
    begin, training = over * replica.batch_source.steps(node.rank), True
    while node.step < begin and training:
        # told step by step: a run may be kept in `training`, and a count of several steps would be lost there
        await node.note("skipped", replica.batch_source.samples(node.rank, node.step))
        training = node.training()
    return training

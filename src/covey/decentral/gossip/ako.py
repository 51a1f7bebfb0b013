"""Ako: each peer gets another partition of the gradients at every step, and every number of them exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from covey.decentral.leaving import leave
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense, seed
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.vector import Piece, Vector, chunks


class Part(Message):
    """One partition of the gradients that a worker summed up since it last sent this partition to the receiver."""

    wire_name = "partial.part"

    partition: int
    grads: Vector


class EncodedPartitions:
    """The partitions as a codec writes them; what it drops of one stays owed."""

    def __init__(self, node: Node, replica: Replica, pieces: Sequence[Piece], turns: int, codec: Codec) -> None:
        self.pieces = pieces
        self.stays = codec.traits.feedback == "needed"
        self.coders = [codec.made(replica.form(piece), seed(node, place)) for place, piece in enumerate(pieces)]
        self.memories = node.remember("codecs", [[coder.memory for coder in self.coders] for _ in range(turns)]).value

    def take(self, turn: int, partition: int, due: Vector) -> Vector:
        """What travels of what is due, which is owed no more."""
        coder, memories = self.coders[partition], self.memories[turn]
        wire, memories[partition] = coder.encode(due, memories[partition])
        wire = wire.clone()
        if self.stays:
            due.add_(coder.decode(wire), alpha=-1)
        else:
            due.zero_()
        return wire

    def add(self, part: Part, into: Vector) -> None:
        """Add a partition that has come to a gradient."""
        into.cut(self.pieces[part.partition]).add_(self.coders[part.partition].decode(part.grads))


async def worker(node: Node, replica: Replica, *, partitions: int, codec: Codec) -> None:
    """Differentiate, send each peer the partition whose turn it is, step on all that is there (Watcharapichat 2016)."""
    pieces = chunks(replica.flat, partitions)
    places = sorted(range(node.workers - 1), key=lambda place: place % partitions)  # those of one partition together
    peers = [(node.rank + 1 + place) % node.workers for place in places]
    owed = node.remember("owed", [replica.grad.map(torch.zeros_like) for _ in peers])
    late = node.remember("late", replica.grad.map(torch.zeros_like))  # what came after the last step
    came = node.remember("came late", 0)
    parts = EncodedPartitions(node, replica, pieces, len(peers), codec)
    for step in node.steps():
        grad = await replica.gradient(node)
        for turn, (place, rank) in enumerate(zip(places, peers, strict=True)):
            owed.value[turn].add_(grad)
            partition = (place + step) % partitions
            if node.room(Address("worker", rank)):  # else it stays owed: nobody waits for a peer that takes nothing in
                wire = parts.take(turn, partition, owed.value[turn].cut(pieces[partition]))
                await node.send(Address("worker", rank), Part(partition, wire), loan=True)
        while came_now := node.receive_nowait(Part):
            parts.add(came_now, grad)
        grad.mul_(1 / node.workers)
        replica.apply(grad)
        await node.note("update")
    await leave(node, peers)
    missing = set(peers)
    while missing:  # taken in as they come, or they would fill the mailbox while others still train
        message = await node.receive_any(Part, Goodbye)
        if isinstance(message, Part):
            parts.add(message, late.value)
            came.value += 1
        else:
            missing.discard(message.sender.rank)
    if came.value:
        replica.apply(replica.grad.copy_(late.value).mul_(1 / node.workers))
        late.value.zero_()
        came.value = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ako:
    """Partial gradient exchange: each peer gets one of `partitions` parts of the gradient, another one every step."""

    partitions: int | None = None  # workers - 1: each worker sends one gradient a step, however many the peers are

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        partitions = max(1, workers - 1) if self.partitions is None else self.partitions
        if partitions < 1:
            raise PlanError(f"ako(partitions={partitions}): at least 1, which sends every peer the whole gradient")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, partitions=partitions, codec=codec)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="ako", settings={"partitions": partitions}, roles=roles,
            description=Description(
                scored="the mean of the workers' models", rate="every gradient counts 1/n, at each worker",
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="asynchronous", exchange="partial gradients",
                topology="peer-to-peer mesh",
            ),
        )  # fmt: skip

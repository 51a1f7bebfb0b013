"""Means over a group of compressed vectors: by summing encoded values, or by gathering them on all ranks."""

from __future__ import annotations

import torch

from covey.errors import PlanError
from covey.exchange.codec import Codec, Coder, Memory, Sum, seed
from covey.exchange.collectives.sums import Group, Pattern
from covey.message import Message
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class Wire(Message):
    """What one rank's vector looks like on the wire, on its way around; `step` is the turn."""

    wire_name = "compressed.wire"

    step: int
    wire: Vector


async def gather(node: Node, wire: Vector, group: Group) -> list[Vector]:
    """Everybody's wire, in the order of the group. They go around a ring, and may differ in length.

    In turn t the wire of rank r - t leaves rank r, and that of rank r - t - 1 comes.
    """
    size, me = len(group), group.index(node.address)
    found = {me: wire}
    for turn in range(size - 1):
        await node.send(group[(me + 1) % size], Wire(turn, found[(me - turn) % size]))
        came = await node.receive(Wire, sender=group[me - 1], step=turn)
        found[(me - turn - 1) % size] = came.wire
    return [found[place] for place in range(size)]


async def totalled(
    node: Node, coder: Coder, memory: Memory, vector: Vector, group: Group, pattern: Pattern
) -> tuple[Vector, Memory, Vector | None]:
    """The sum over a group, the coder's memory, and what everybody made of one's own vector where it was gathered."""
    if coder.total:
        total, memory = await coder.total(vector, memory, lambda wire: node.sum(wire, group, pattern))
        return total, memory, None
    wire, memory = coder.encode(vector, memory)
    total, told = vector.map(torch.zeros_like), None
    for who, one in zip(group, await gather(node, wire, group), strict=True):
        decoded = coder.decode(one)
        total.add_(decoded)
        told = decoded if who == node.address else told
    return total, memory, told


class Sums:
    """Sums over groups of vectors that travel as they are."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def add_up(self, vector: Vector, group: Group, pattern: Pattern, also: Vector) -> Vector | None:
        """Turn a vector, and what travels as it is, into the group's sums; what is left out of one's own, if known."""
        await self.node.sum(vector.join(also), group, pattern)
        return None


class Means(Sums):
    """Means of vectors of one form over groups; what the coder carries on from one to the next is remembered.

    Where wires cannot be added up on their way, everybody gathers and decodes all of them, in the order of ranks, its
    own too: so all have the same bits.
    """

    def __init__(self, node: Node, coder: Coder, what: str = "") -> None:
        super().__init__(node)
        self.coder = coder
        self.memory = node.remember(f"codec of {what or 'means'}", coder.memory)
        self.told: Vector | None = None  # what everybody made of one's own last vector, where it was gathered

    async def mean(self, vector: Vector, group: Group, pattern: Pattern) -> Vector:
        """The mean over the group of everybody's vector, as far as the codec tells it."""
        return (await self.total(vector, group, pattern)).mul_(1 / len(group))

    async def add_up(self, vector: Vector, group: Group, pattern: Pattern, also: Vector) -> Vector | None:
        given = vector.clone()
        vector.copy_(await self.total(given, group, pattern))
        if also.parts:
            await self.node.sum(also, group, pattern)
        return None if self.told is None else given.add_(self.told, alpha=-1)

    async def total(self, vector: Vector, group: Group, pattern: Pattern) -> Vector:
        """The sum."""
        total, self.memory.value, self.told = await totalled(
            self.node, self.coder, self.memory.value, vector, group, pattern
        )
        return total


def check_pattern(name: str, pattern: str, codec: Codec) -> None:
    """Refuse a pattern of sums for a codec that cannot be added up."""
    if pattern != "ring" and not codec.adds_up:
        raise PlanError(
            f"{name}(pattern={pattern}): {codec.name} cannot be added up on its way, so everybody's goes around a ring "
            "to all: omit pattern, or use a codec that adds up, such as fp16"
        )


def gradient_coder(node: Node, replica: Replica, codec: Codec, *what: object) -> Coder:
    """For whole gradients, or changes of all parameters; with error feedback where the codec needs it."""
    return codec.carrying().made(replica.form(replica.trained), seed(node, *what))


def change_coder(node: Node, replica: Replica, codec: Codec, *what: object) -> Coder:
    """For changes of a whole model: those of its parameters as gradients travel, its float buffers as they are."""
    return beside(gradient_coder(node, replica, codec, *what), len(replica.buffers.parts))


def scaled(codec: Codec, coder: Coder, size: float) -> Coder:
    """A codec's coder for vectors that are `size` times as large as those it is made for."""

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        return coder.encode(vector * (1 / size), memory)

    return codec.either(coder, Coder(coder.start, encode, lambda wire: coder.decode(wire).mul_(size)))


def beside(coder: Coder, count: int) -> Coder:
    """A coder for vectors whose last `count` parts travel as they are: statistics are few numbers, and exact ones."""
    if not count:
        return coder

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        wire, memory = coder.encode(Vector(vector.parts[:-count]), memory)
        return wire.join(Vector(vector.parts[-count:])), memory

    def decode(wire: Vector) -> Vector:
        return coder.decode(Vector(wire.parts[:-count], wire.origin)).join(Vector(wire.parts[-count:]).clone())

    async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        assert coder.total is not None
        summed, memory = await coder.total(Vector(vector.parts[:-count]), memory, add)
        rest = Vector(vector.parts[-count:]).clone()
        await add(rest)
        return summed.join(rest), memory

    options = tuple(beside(option, count) for option in coder.options)
    return Coder(coder.start, encode, decode, total if coder.total else None, options)

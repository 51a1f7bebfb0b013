"""Patterns that sum a vector over a group, written as programs of sends and receives, for any number of ranks."""

from __future__ import annotations

from covey.message import Address, Message
from covey.program import Node
from covey.vector import Vector, chunks


class Chunk(Message):
    """A slice of a vector on its way around; `step` is the round of the pattern."""

    step: int
    part: Vector


async def ring(node: Node, vector: Vector, group: tuple[Address, ...]) -> None:
    """Sum over the group in place (Patarasu & Yuan 2009): n-1 rounds of reducing, n-1 of gathering.

    Each slice is added in ring order starting at its own index, so that all ranks hold the same bits.
    """
    size, me = len(group), group.index(node.address)
    after, before = group[(me + 1) % size], group[(me - 1) % size]
    slices = [vector.cut(piece) for piece in chunks(vector, size)]
    for turn in range(size - 1):
        # lent: the slice changes again only when its sum comes around, which is after `after` has read it
        await node.send(after, Chunk(turn, slices[(me - turn) % size]), loan=True)
        part = (await node.receive(Chunk, sender=before, step=turn)).part
        slices[(me - turn - 1) % size].add_(part)
    for turn in range(size - 1):
        await node.send(after, Chunk(size + turn, slices[(me + 1 - turn) % size]))
        await node.receive(Chunk, sender=before, step=size + turn, into=slices[(me - turn) % size])

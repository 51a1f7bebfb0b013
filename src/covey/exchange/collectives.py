"""Patterns that sum a vector over a group, written as programs of sends and receives, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from covey.message import Address, Message
from covey.program import Effect, Node
from covey.vector import Vector, chunks

Group = tuple[Address, ...]
Pattern = Callable[[Node, Vector, Group], Coroutine[Effect[Any], Any, None]]


class Chunk(Message):
    """A slice of a vector on its way around; `step` is the round of the pattern."""

    step: int
    part: Vector


async def ring(node: Node, vector: Vector, group: Group) -> None:
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


async def star(node: Node, vector: Vector, group: Group) -> None:
    """Everybody sends to the first, which adds in rank order and sends the sum back."""
    hub, *leaves = group
    if node.address != hub:
        await node.send(hub, Chunk(0, vector), loan=True)
        await node.receive(Chunk, sender=hub, step=1, into=vector)
        return
    for part in await node.gather(Chunk, leaves, step=0):
        vector.add_(part.part)
    await node.broadcast(leaves, Chunk(1, vector))


async def binomial(node: Node, vector: Vector, group: Group) -> None:
    """A binomial tree to the first rank and back: the fewest rounds for small vectors (FireCaffe's pattern)."""
    await reduce_tree(node, vector, group)
    await broadcast_tree(node, vector, group)


async def reduce_tree(node: Node, vector: Vector, group: Group) -> None:
    """Sum to the first rank of the group, whose vector then holds the sum; the others' hold part sums."""
    me, hop = group.index(node.address), 1
    while hop < len(group):
        if me % (2 * hop) == hop:
            await node.send(group[me - hop], Chunk(hop, vector), loan=True)
            return
        if me + hop < len(group):
            vector.add_((await node.receive(Chunk, sender=group[me + hop], step=hop)).part)
        hop *= 2


async def broadcast_tree(node: Node, vector: Vector, group: Group) -> None:
    """Give the first rank's vector to everybody."""
    me, hop = group.index(node.address), 1 << max(0, (len(group) - 1).bit_length() - 1)
    while hop:
        if me % (2 * hop) == hop:
            await node.receive(Chunk, sender=group[me - hop], step=-hop, into=vector)
        elif me % (2 * hop) == 0 and me + hop < len(group):
            await node.send(group[me + hop], Chunk(-hop, vector))
        hop //= 2


async def doubling(node: Node, vector: Vector, group: Group) -> None:
    """Recursive doubling: partners exchange whole vectors at distances 1, 2, 4; odd ranks stand in for the rest.

    With n = p + r ranks, p a power of two, the first r even ranks hand theirs to a neighbour and get the sum back.
    """
    me, size = group.index(node.address), len(group)
    power = 1 << (size.bit_length() - 1)
    spare = size - power
    if me < 2 * spare and me % 2 == 0:
        await node.send(group[me + 1], Chunk(0, vector), loan=True)
        await node.receive(Chunk, sender=group[me + 1], step=2 * power, into=vector)
        return
    if me < 2 * spare:
        vector.add_((await node.receive(Chunk, sender=group[me - 1], step=0)).part)
    active = [*range(1, 2 * spare, 2), *range(2 * spare, size)]
    place, hop = active.index(me), 1
    while hop < power:
        partner = group[active[place ^ hop]]
        await node.send(partner, Chunk(hop, vector))
        theirs = (await node.receive(Chunk, sender=partner, step=hop)).part
        # a + b and b + a are the same bits, so both partners hold the same sum
        vector.add_(theirs)
        hop *= 2
    if me < 2 * spare:
        await node.send(group[me - 1], Chunk(2 * power, vector))


async def scatter_gather(node: Node, vector: Vector, group: Group) -> None:
    """Each rank sums one slice for all, in rank order, and gives the sum to everybody: two hops, no ring."""
    size, me = len(group), group.index(node.address)
    slices = [vector.cut(piece) for piece in chunks(vector, size)]
    # from one's own place on, so that nobody is everybody's first
    others = [(index % size, group[index % size]) for index in range(me + 1, me + size)]
    for index, peer in others:
        await node.send(peer, Chunk(0, slices[index]), loan=True)
    parts = {index: (await node.receive(Chunk, sender=peer, step=0)).part for index, peer in others}
    parts[me] = slices[me].clone()
    slices[me].zero_()
    for index in range(size):
        slices[me].add_(parts[index])
    for _, peer in others:
        await node.send(peer, Chunk(1, slices[me]))
    for index, peer in others:
        await node.receive(Chunk, sender=peer, step=1, into=slices[index])


PATTERNS: Mapping[str, Pattern] = {
    "ring": ring, "star": star, "binomial": binomial, "doubling": doubling, "scatter": scatter_gather,
}  # fmt: skip

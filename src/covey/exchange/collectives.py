"""Patterns that sum a vector over a group, written as programs of sends and receives, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from covey.message import Address, Message
from covey.program import Effect, Node
from covey.vector import Vector, chunk, chunks

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
    await reduce_ring(node, vector, group)
    await gather_ring(node, vector, group)


def ring_slices(vector: Vector, size: int) -> list[int]:
    """The bytes of each slice of a ring."""
    found = [0] * size
    for part in vector.parts:
        for place in range(size):
            start, stop = chunk(part.numel(), size, place)
            found[place] += (stop - start) * part.element_size()
    return found


def ring_sent(slices: Sequence[int]) -> list[int]:
    """What each member sends: all slices but one, twice (Patarasu & Yuan 2009)."""
    size, both = len(slices), 2 * sum(slices)
    return [both - slices[(place + 1) % size] - slices[(place + 2) % size] for place in range(size)]


async def reduce_ring(node: Node, vector: Vector, group: Group) -> None:
    """Sum slice by slice: each rank ends with the whole sum of the slice after its own, and part sums of the rest."""
    size, me = len(group), group.index(node.address)
    slices = [vector.cut(piece) for piece in chunks(vector, size)]
    for turn in range(size - 1):
        # lent: the slice changes again only when its sum comes around, which is after the next rank has read it
        await node.send(group[(me + 1) % size], Chunk(turn, slices[(me - turn) % size]), loan=True)
        part = (await node.receive(Chunk, sender=group[me - 1], step=turn)).part
        slices[(me - turn - 1) % size].add_(part)


async def gather_ring(node: Node, vector: Vector, group: Group) -> None:
    """Give everybody the slices as the ranks that summed them up hold them."""
    size, me = len(group), group.index(node.address)
    slices = [vector.cut(piece) for piece in chunks(vector, size)]
    for turn in range(size - 1):
        await node.send(group[(me + 1) % size], Chunk(size + turn, slices[(me + 1 - turn) % size]))
        await node.receive(Chunk, sender=group[me - 1], step=size + turn, into=slices[(me - turn) % size])


async def chain(node: Node, vector: Vector, group: Group) -> None:
    """Along the ranks to the last one and back again, slice after slice, so that all of them work (Mariana 2014)."""
    size, me = len(group), group.index(node.address)
    for back, (before, after) in enumerate([(me - 1, me + 1), (me + 1, me - 1)]):
        for number, piece in enumerate(chunks(vector, size)):
            mine, step = vector.cut(piece), number + back * size
            if 0 <= before < size:
                came = await node.receive(Chunk, sender=group[before], step=step, into=mine if back else None)
                if not back:
                    mine.add_(came.part)
            if 0 <= after < size:
                await node.send(group[after], Chunk(step, mine), loan=not back)


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

"""Patterns that sum a vector over a group, written as programs of sends and receives, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from covey.exchange.collectives.ring_slices import GRAIN, MOST, Frame, SlicedVector, rows, whole
from covey.message import Address, Message
from covey.program import Effect, Node
from covey.vector import Vector, chunks

Group = tuple[Address, ...]
Pattern = Callable[[Node, Vector, Group], Coroutine[Effect[Any], Any, None]]

AHEAD = 8  # rows of a ring that are under way before the first of them came


class Chunk(Message):
    """A slice of a vector on its way around; `step` is the round of the pattern."""

    wire_name = "collectives.chunk"

    step: int
    part: Vector


async def ring(node: Node, vector: Vector, group: Group, frame: Frame | None = None) -> None:
    """Sum over the group in place (Patarasu & Yuan 2009): n-1 rounds of reducing, n-1 of gathering.

    Each slice is added in ring order starting at its own index, so that all ranks hold the same bits. Long vectors go
    in rows of slices, one behind the other. Of a bucket, `frame` says where it lies in the gradient.
    """
    grid = rows(vector, frame or whole(vector), len(group))
    await around(node, grid, group, 0, 2 * (len(group) - 1))


async def around(node: Node, grid: Sequence[Sequence[SlicedVector]], group: Group, first: int, end: int) -> None:
    """The turns `first` to before `end` of a ring; of its 2 (n-1) turns the first half adds up, the second gathers.

    In turn t slice r - t leaves rank r and slice r - t - 1 comes, which leaves in the next turn: at once, while the
    next row comes. After the first half a rank holds the sum of the slice after its own, and part sums of the rest.
    """
    size, me = len(group), group.index(node.address)
    if first == end:
        return

    async def pass_on(turn: int, row: Sequence[SlicedVector]) -> None:
        # lent: what is added up changes again only when its sum comes around, after the next rank has read it
        step, adding = _step(turn, size), turn < size - 1
        await node.send(group[(me + 1) % size], Chunk(step, row[(me - turn) % size].vector), loan=adding)

    for row in grid[:AHEAD]:
        await pass_on(first, row)
    for turn in range(first, end):
        for number, row in enumerate(grid):
            mine = row[(me - turn - 1) % size].vector
            into = None if turn < size - 1 else mine
            came = await node.receive(Chunk, sender=group[me - 1], step=_step(turn, size), into=into)
            if into is None:
                mine.add_(came.part)
            if turn + 1 < end:
                await pass_on(turn + 1, row)
            if turn == first and number + AHEAD < len(grid):
                await pass_on(first, grid[number + AHEAD])


def _step(turn: int, size: int) -> int:
    """What a turn of a ring is called: those that gather come after a gap."""
    return turn if turn < size - 1 else turn + 1


async def chain(node: Node, vector: Vector, group: Group) -> None:
    """Along the ranks to the last one and back again, piece after piece, so that all of them work (Mariana 2014).

    Every number is added in rank order, in however many pieces.
    """
    size, me = len(group), group.index(node.address)
    pieces = chunks(vector, links(vector.nbytes, size))
    for back, (before, after) in enumerate([(me - 1, me + 1), (me + 1, me - 1)]):
        for number, piece in enumerate(pieces):
            mine, step = vector.cut(piece), number + back * len(pieces)
            if 0 <= before < size:
                came = await node.receive(Chunk, sender=group[before], step=step, into=mine if back else None)
                if not back:
                    mine.add_(came.part)
            if 0 <= after < size:
                await node.send(group[after], Chunk(step, mine), loan=not back)


def links(nbytes: int, size: int) -> int:
    """In how many pieces a chain of `size` sends this many bytes: 2 (m + n - 2) / m vectors pass each rank."""
    return min(size * MOST, max(size, -(-nbytes // GRAIN)))


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


def add_in_order(mine: Vector, place: int, others: Mapping[int, Vector]) -> None:
    """Add up in place, from the vector at place 0 to the last one; this is the one at `place`."""
    if place > 1:
        before = others[0].clone()
        for other in range(1, place):
            before.add_(others[other])
        mine.add_(before)
    elif place == 1:
        mine.add_(others[0])
    for other in range(place + 1, len(others) + 1):
        mine.add_(others[other])


async def scatter_gather(node: Node, vector: Vector, group: Group) -> None:
    """Each rank sums one slice for all, in rank order, and gives the sum to everybody: two hops, no ring."""
    size, me = len(group), group.index(node.address)
    slices = [vector.cut(piece) for piece in chunks(vector, size)]
    # from one's own place on, so that nobody is everybody's first
    others = [(index % size, group[index % size]) for index in range(me + 1, me + size)]
    for index, peer in others:
        await node.send(peer, Chunk(0, slices[index]), loan=True)
    parts = {index: (await node.receive(Chunk, sender=peer, step=0)).part for index, peer in others}
    add_in_order(slices[me], me, parts)
    for _, peer in others:
        await node.send(peer, Chunk(1, slices[me]))
    for index, peer in others:
        await node.receive(Chunk, sender=peer, step=1, into=slices[index])

"""Sums between partners at distances 1, 2, 4…: recursive doubling, and halving with doubling; any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from covey.exchange.collectives.sums import Chunk, Group, Pattern
from covey.program import Node
from covey.vector import Piece, Vector, chunks


async def doubling(node: Node, vector: Vector, group: Group) -> None:
    """Partners exchange whole vectors: the fewest rounds."""
    await folded(node, vector, group, _doubling)


async def halving(node: Node, vector: Vector, group: Group) -> None:
    """Partners exchange halves, quarters, eighths…, and gather them again: a ring's bytes in as few rounds.

    Rabenseifner's algorithm (Thakur et al. 2005).
    """
    await folded(node, vector, group, _halving)


async def folded(node: Node, vector: Vector, group: Group, among: Pattern) -> None:
    """Sum among a power of two of ranks; odd ranks stand in for the rest.

    With n = p + r ranks, p a power of two, the first r even ranks hand theirs to a neighbour and get the sum back.
    """
    me, size = group.index(node.address), len(group)
    power = 1 << (size.bit_length() - 1)
    spare, last = size - power, 2 * power
    if me < 2 * spare and me % 2 == 0:
        await node.send(group[me + 1], Chunk(0, vector), loan=True)
        await node.receive(Chunk, sender=group[me + 1], step=last, into=vector)
        return
    if me < 2 * spare:
        vector.add_((await node.receive(Chunk, sender=group[me - 1], step=0)).part)
    await among(node, vector, (*group[1 : 2 * spare : 2], *group[2 * spare :]))
    if me < 2 * spare:
        await node.send(group[me - 1], Chunk(last, vector))


async def _doubling(node: Node, vector: Vector, active: Group) -> None:
    place, hop = active.index(node.address), 1
    while hop < len(active):
        partner = active[place ^ hop]
        await node.send(partner, Chunk(hop, vector))
        theirs = (await node.receive(Chunk, sender=partner, step=hop)).part
        # a + b and b + a are the same bits, so both partners hold the same sum
        vector.add_(theirs)
        hop *= 2


async def _halving(node: Node, vector: Vector, active: Group) -> None:
    place, pieces = active.index(node.address), chunks(vector, len(active))
    low, high, hop, turn = 0, len(active), len(active) // 2, 1
    while hop:
        partner, middle = active[place ^ hop], (low + high) // 2
        give = (middle, high) if place < place ^ hop else (low, middle)
        low, high = (low, middle) if place < place ^ hop else (middle, high)
        # lent: what is given changes again only when its sum comes back, which is after the partner has read it
        await node.send(partner, Chunk(turn, vector.cut(span(pieces, *give))), loan=True)
        theirs = (await node.receive(Chunk, sender=partner, step=turn)).part
        vector.cut(span(pieces, low, high)).add_(theirs)
        hop, turn = hop // 2, turn + 1
    hop = 1
    while hop < len(active):
        partner, wide = active[place ^ hop], high - low
        other = (high, high + wide) if place < place ^ hop else (low - wide, low)
        await node.send(partner, Chunk(turn, vector.cut(span(pieces, low, high))))
        await node.receive(Chunk, sender=partner, step=turn, into=vector.cut(span(pieces, *other)))
        low, high, hop, turn = min(low, other[0]), max(high, other[1]), 2 * hop, turn + 1


def span(pieces: Sequence[Piece], low: int, high: int) -> Piece:
    """The pieces from `low` to before `high` as one."""
    ends = zip(pieces[low], pieces[high - 1], strict=True)
    return tuple((first[0], last[1]) for first, last in ends)

"""Sums in which all ranks do the same in every round: a butterfly of any radix, and Bruck's gathering."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from covey.exchange.collectives.sums import Chunk, Group
from covey.program import Node
from covey.vector import Vector

TOGETHER = 4  # blocks of one message: what a link takes at once is a few models


async def butterfly(node: Node, vector: Vector, group: Group) -> None:
    """A stage for every prime factor of n: the ranks of a wing exchange whole vectors and add them in rank order.

    With a power of two of ranks that is recursive doubling; with others nobody is passive (Zhao & Canny 2013).
    """
    me, hop = group.index(node.address), 1
    for stage, radix in enumerate(radices(len(group))):
        place = me // hop % radix
        wing = [group[me + (other - place) * hop] for other in range(radix)]
        others = [wing[(place + away) % radix] for away in range(1, radix)]
        for peer in others:
            await node.send(peer, Chunk(stage, vector))
        parts = {peer: (await node.receive(Chunk, sender=peer, step=stage)).part for peer in others}
        parts[node.address] = vector.clone()
        vector.copy_(parts[wing[0]])
        for peer in wing[1:]:
            vector.add_(parts[peer])
        hop *= radix


def radices(size: int) -> list[int]:
    """The prime factors, the smallest first."""
    found, factor = [], 2
    while size > 1:
        while size % factor == 0:
            found.append(factor)
            size //= factor
        factor += 1
    return found


async def bruck(node: Node, vector: Vector, group: Group) -> None:
    """Everybody gathers everybody's vector and adds them in rank order: the fewest rounds for any n (Bruck 1997)."""
    me = group.index(node.address)
    blocks = [vector.map(torch.empty_like) for _ in group]
    blocks[me].copy_(vector)
    await gather_bruck(node, blocks, group)
    vector.copy_(blocks[0])
    for block in blocks[1:]:
        vector.add_(block)


async def gather_bruck(node: Node, blocks: Sequence[Vector], group: Group) -> None:
    """Give everybody the block of each rank, where each brings its own; the blocks may differ in length.

    Round k: rank r has the blocks r, r+1, … and sends the first min(2^k, n - 2^k) of them to rank r - 2^k.
    """
    size, me, hop = len(group), group.index(node.address), 1
    turned = [*blocks[me:], *blocks[:me]]
    while hop < size:
        count = min(hop, size - hop)
        for first in range(0, count, TOGETHER):
            await node.send(group[me - hop], Chunk(hop, _side_by_side(turned[first : min(first + TOGETHER, count)])))
        for first in range(hop, hop + count, TOGETHER):
            into = _side_by_side(turned[first : min(first + TOGETHER, hop + count)])
            await node.receive(Chunk, sender=group[(me + hop) % size], step=hop, into=into)
        hop *= 2


def _side_by_side(blocks: Sequence[Vector]) -> Vector:
    return Vector(part for block in blocks for part in block.parts)

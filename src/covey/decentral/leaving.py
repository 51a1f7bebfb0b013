"""How workers that never wait for each other end: none ends while a message may still be on its way to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from covey.message import Address
from covey.program import Node
from covey.servers.goodbye import Goodbye


def addresses(ranks: Iterable[int]) -> list[Address]:
    return [Address("worker", rank) for rank in ranks]


async def part(node: Node, hearers: Collection[int], heard: Collection[int]) -> None:
    """Say goodbye to those who hear this worker, and wait until all whom it hears have said goodbye."""
    await leave(node, hearers)
    await see_off(node, heard)


async def leave(node: Node, hearers: Collection[int]) -> None:
    await node.broadcast(addresses(hearers), Goodbye())


async def see_off(node: Node, heard: Collection[int]) -> None:
    """Wait for their goodbyes. After a restart all are said anew: so who said one is a set, and no count."""
    missing = set(heard)
    while missing:
        leaving = await node.receive(Goodbye)
        missing.discard(leaving.sender.rank)

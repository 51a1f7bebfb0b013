"""Consistent hashing: servers own arcs of a ring on which the parameters lie in their order (Li et al. 2014).

Every server has many points on the ring, found by hashing, and owns what lies between each of them and the next one. A
further server takes a part of everybody's arcs, and nothing else changes its owner.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise

from covey.model.replica import Replica
from covey.vector import Piece

ROUND = 1 << 64


def arcs(servers: int, points: int) -> list[tuple[int, int]]:
    """Where each arc begins on the ring, in order, and whose it is; the last one goes on to the first one's begin."""
    return sorted((position(server, point), server) for server in range(servers) for point in range(points))


def position(server: int, point: int) -> int:
    digest = blake2b(f"server {server}, point {point}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def owned(servers: int, points: int, length: int) -> list[list[tuple[int, int]]]:
    """Of `length` numbers around the ring, the ranges of each server."""
    ring = arcs(servers, points)
    edges = [(0, ring[-1][1]), *((begin * length // ROUND, server) for begin, server in ring), (length, -1)]
    found: list[list[tuple[int, int]]] = [[] for _ in range(servers)]
    for (start, server), (stop, _) in pairwise(edges):
        if start < stop and found[server] and found[server][-1][1] == start:
            found[server][-1] = found[server][-1][0], stop
        elif start < stop:
            found[server].append((start, stop))
    return found


def divide(replica: Replica, servers: int, *, points: int) -> list[Piece]:
    """The pieces of the servers; whole parameters, by where their middle lies, where the optimizer needs them whole."""
    pieces: list[list[tuple[int, ...]]] = [[] for _ in range(servers)]
    for part, numbers in enumerate(replica.flat.parts):
        for server, mine in enumerate(owned(servers, points, numbers.numel())):
            if not replica.elementwise:
                slots = [slot for slot in replica.layout.slots if slot.part == part]
                middles = [(slot.start + slot.stop) // 2 for slot in slots]
                mine = [
                    (slot.start, slot.stop)
                    for slot, middle in zip(slots, middles, strict=True)
                    if any(start <= middle < stop for start, stop in mine)
                ]
            pieces[server].append(tuple(end for ends in mine for end in ends))
    return [tuple(piece) for piece in pieces]

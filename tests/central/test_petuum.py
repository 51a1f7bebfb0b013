"""Petuum's servers: what they give out, and what they know after a restart; and what workers make of it."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, cast

import torch

from covey.central.cached.cache import Cache, CachedChange, ParameterCopy, ReadParameters
from covey.central.cached.petuum import TableServer
from covey.membership import Incarnation
from covey.model.replica import Replica
from covey.program import Effect, Host, Memory, Node, Send
from covey.vector import Vector
from tests.worlds import Point, perform, server, sgd, vector, worker


class Kept:
    """A checkpoint: what one server remembers, the next one finds."""

    incarnation = Incarnation()

    def __init__(self) -> None:
        self.memories: dict[str, Memory[Any]] = {}

    def remember(self, name: str, value: Any) -> Memory[Any]:
        return self.memories.setdefault(name, Memory(value))

    def measure(self, kind: str, value: float) -> None:
        pass


def sent(program: Coroutine[Effect[Any], Any, None]) -> list[Send]:
    """What a program sends, to its end."""
    found: list[Send] = []
    try:
        while True:
            effect = program.send(None)
            found += [effect] if isinstance(effect, Send) else []
    except StopIteration:
        return found


def table(kept: Kept) -> TableServer:
    node = Node(server(0), (9, 9), cast(Host, kept), Random(0), 0)
    return TableServer(node, Replica(Point(2, torch.float64), sgd()), count=1, eager=True)


def test_after_a_restart_a_reader_is_given_one_copy() -> None:
    kept = Kept()
    before = table(kept)
    for rank in range(2):
        sent(before.add(CachedChange(0, 4, Vector([torch.ones(2).double()]), Vector(()), sender=worker(rank))))
    sent(before.settle())
    after = table(kept)
    assert after.clocks.slowest == 1
    after.parked[0] = ReadParameters(1, sender=worker(0))
    after.readers.add(0)
    copies = sent(after.settle())
    assert [(copy.to, type(copy.body)) for copy in copies] == [(worker(0), ParameterCopy)]


def test_a_worker_adds_to_a_copy_all_of_its_own_changes_that_the_server_did_not_hold() -> None:
    """The server held the first two: those of steps 0 and 1."""

    async def program(node: Node, _: Replica) -> None:
        replica = Replica(Point(2, torch.float64), sgd())
        cache = Cache(node, replica, 1, 3, eager=False)
        cache.own = [(step, vector(10.0**step, 0.0)) for step in range(4)]
        cache.take(0, ParameterCopy(1, 2, vector(5.0, 7.0), sender=server(0)))
        assert replica.flat.parts[0].tolist() == [1105.0, 7.0]

    perform(program)

"""Sums in the network: a switch, or a smart network card, adds up what workers send and returns the sum.

Its memory is small. A vector passes in pieces, and at most a window of them is under way: a worker sends the next piece
when the sum of an earlier one has come back (SwitchML, Sapio et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import torch

from covey.exchange.collectives.costs import SLOTS, switch_pieces
from covey.exchange.collectives.sums import Group
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Effect, Node, Program
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram
from covey.vector import Vector, chunks

SWITCH = Address("switch", 0)


class Summand(Message):
    """A piece of a worker's vector; `step` is the number of the piece, `of` the worker's step."""

    wire_name = "switch.summand"

    step: int
    of: int
    piece: Vector


class SwitchSum(Message):
    """The sum of a piece over all workers."""

    wire_name = "switch.sum"

    step: int
    piece: Vector


class SwitchedNode(Node):
    """A node whose sums all pass the switch, also where the engine could sum in its own way."""

    __slots__ = ("window",)

    def __init__(self, node: Node, window: int) -> None:
        super().__init__(node.address, node.limits, node.host, node.rng, node.seed)
        self.window = window

    async def sum(
        self, vector: Vector, group: Group,
        fallback: Callable[[Node, Vector, Group], Coroutine[Effect[Any], Any, None]], share: float = 1.0,
    ) -> None:  # fmt: skip
        if share != 1:
            vector.mul_(share)
        await through_switch(self, vector, self.window)


async def through_switch(node: Node, vector: Vector, window: int) -> None:
    """Sum over all workers that take part in this step, in place."""
    parts = [vector.cut(piece) for piece in chunks(vector, switch_pieces(vector.nbytes, window))]

    async def give(number: int) -> None:
        # lent: it changes again only when its sum comes back, after the switch has read it
        await node.send(SWITCH, Summand(number, node.step, parts[number]), loan=True)

    for number in range(min(SLOTS, len(parts))):
        await give(number)
    for number, part in enumerate(parts):
        await node.receive(SwitchSum, sender=SWITCH, step=number, into=part)
        if number + SLOTS < len(parts):
            await give(number + SLOTS)


class Switch(ServerProgram):
    """The role: add up each piece in the order of ranks, as `scatter` does, and send the sum to everybody."""

    def __init__(self, node: Node, replica: Replica) -> None:
        super().__init__(node, replica)
        self.hears = {Summand: self.add_up}

    async def add_up(self, first: Summand) -> None:
        total, members = first.piece.map(torch.zeros_like), self.node.members(first.of)
        for member in members:
            mine = member == first.sender
            came = first if mine else await self.node.receive(Summand, sender=member, step=first.step)
            total.add_(came.piece)
        await self.node.broadcast(members, SwitchSum(first.step, total))


async def switched(node: Node, replica: Replica, *, work: Program, window: int) -> None:
    """A worker's program, with all its sums through the switch."""
    await work(SwitchedNode(node, window), replica)
    await node.send(SWITCH, Goodbye())

"""Clipping by the norm of a gradient whose parts are on several roles: the roles exchange their squared norms."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class Square(Message):
    """The square of the norm of one role's part of the gradient of an update."""

    wire_name = "clipping.square"

    step: int
    square: float


async def clip_part(node: Node, replica: Replica, grad: Vector, step: int, owners: Sequence[Address]) -> None:
    """Shorten one's part of the gradient of update `step` by as much as the norm of all parts asks for.

    The squares are added in the owners' order, so that all of them find the same norm.
    """
    if replica.updates.clip_norm is None:
        return
    others = [owner for owner in owners if owner != node.address]
    mine = grad.norm() ** 2
    await node.broadcast(others, Square(step, mine))
    squares = {square.sender: square.square for square in await node.gather(Square, others, step=step)}
    squares[node.address] = mine
    replica.updates.clip_(grad, sqrt(sum(squares[owner] for owner in owners)))

"""What the members of a shard group tell one another; `step` numbers what they do in the whole run."""

from __future__ import annotations

from covey.message import Message
from covey.vector import Vector


class ParameterRows(Message):
    """A member's rows of the parameters of a layer, or of all."""

    wire_name = "sharded.parameter_rows"

    step: int
    layer: int  # all members compute the same layers in the same order
    rows: Vector


class GradientRows(Message):
    """A member's gradient of the receiver's rows, of a layer or of all; nothing where it has no gradient."""

    wire_name = "sharded.gradient_rows"

    step: int
    rows: Vector


class GroupBuffers(Message):
    """A member's float buffers after its batch."""

    wire_name = "sharded.group_buffers"

    step: int
    buffers: Vector


class GradientSquare(Message):
    """How long a member's rows of a gradient are, squared."""

    wire_name = "sharded.gradient_square"

    step: int
    square: float

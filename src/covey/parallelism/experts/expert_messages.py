"""What members with experts tell one another; `step` numbers their exchanges in the whole run."""

from __future__ import annotations

from covey.message import Message
from covey.vector import Vector


class ExpertTokens(Message):
    """Tokens of the sender's batch for the receiver's experts, and how many each of these gets."""

    wire_name = "experts.tokens"

    step: int
    layer: int  # all members compute the same layers in the same order
    counts: list[int]
    rows: Vector


class ExpertRows(Message):
    """What experts made of such tokens, or the gradients of either; in the same order."""

    wire_name = "experts.rows"

    step: int
    rows: Vector

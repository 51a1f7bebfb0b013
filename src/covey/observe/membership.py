"""Who came and went in a run, and how much of its work counted."""

from __future__ import annotations

from typing import Literal

import msgspec


class MembershipEvent(msgspec.Struct, kw_only=True):
    """A change of who takes part: what happened to whom, and for how many seconds training stood still."""

    seconds: float  # of training, when it happened
    view: int  # the number of the membership that follows
    event: Literal["restart", "rebirth"]
    who: str
    cause: str
    workers: int
    stalled: float


class Goodput(msgspec.Struct, kw_only=True):
    """Samples that count in the final model, and those that were trained on in vain."""

    accepted: int
    repeated: int
    ratio: float

    @staticmethod
    def of(accepted: int, repeated: int) -> Goodput:
        total = accepted + repeated
        return Goodput(accepted=accepted, repeated=repeated, ratio=accepted / total if total else 1.0)

"""Who came and went in a run, and how much of its work counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

EventKind = Literal["restart", "rebirth", "leave", "join"]
"""All started again; a lost worker was replaced; one went and its seat is empty; one came to an empty seat."""


class MembershipEvent(msgspec.Struct, kw_only=True):
    """A change of who takes part: what happened to whom, and for how many seconds training stood still."""

    seconds: float  # of training, when it happened
    view: int  # the number of the membership that follows
    event: EventKind
    who: str
    cause: str
    workers: int
    stalled: float


@dataclass(slots=True)
class MembershipLog:
    """The changes of a run so far; `told` hears of each at once, before it is known for how long training stands still.

    It hears copies: `stalled` is set later.
    """

    told: Callable[[MembershipEvent], None] | None = None
    events: list[MembershipEvent] = field(default_factory=list)

    def add(
        self, event: EventKind, who: str, cause: str, *, seconds: float, workers: int,
        stalled: float = 0.0,
    ) -> MembershipEvent:  # fmt: skip
        made = MembershipEvent(
            seconds=seconds, view=len(self.events) + 1, event=event, who=who, cause=cause, workers=workers,
            stalled=stalled,
        )  # fmt: skip
        self.events.append(made)
        if self.told:
            self.told(msgspec.structs.replace(made))
        return made


class Goodput(msgspec.Struct, kw_only=True):
    """Samples that count in the final model, and those that were trained on in vain."""

    accepted: int
    repeated: int
    ratio: float

    @staticmethod
    def of(accepted: int, repeated: int) -> Goodput:
        total = accepted + repeated
        return Goodput(accepted=accepted, repeated=repeated, ratio=accepted / total if total else 1.0)

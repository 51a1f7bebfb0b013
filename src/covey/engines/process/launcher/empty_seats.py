"""A seat of a run that is empty, and what it takes to fill it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from covey.engines.process import control
from covey.engines.worker_scaling import ScaledSeats
from covey.membership import Deaths, workers
from covey.message import Address
from covey.observe.membership import MembershipEvent, MembershipLog
from covey.observe.progress import Phase


class HeardWords(Protocol):
    """What the launcher has heard of its roles."""

    phase: Phase
    inbox: dict[type[control.ControlMessage], dict[Address, Any]]

    def hear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Renewal:
    """How lost workers are born again: counted, and started in the newest of all lives, at an endpoint of their own."""

    deaths: Deaths
    start: Callable[[Address, Mapping[Address, int]], str]
    log: MembershipLog = field(default_factory=MembershipLog)  # of the run, in all its attempts
    least: int = 0  # workers, where a seat may stay empty
    nowhere: str = ""  # the beginning of endpoints where nobody is
    joining: Callable[[Sequence[Address]], list[Address]] = lambda empty: []  # which of these are to be taken now
    scaling: ScaledSeats | None = None  # what decides how many workers there are
    release: Callable[[Address], None] = lambda who: None  # lets one go when its batch is through

    def endpoint_of_nobody(self, who: Address, life: int) -> str:
        """Where the others send, and nobody hears, while a seat is empty."""
        return f"{self.nowhere}{who.rank}.{life}"


@dataclass(slots=True)
class EmptySeat:
    """A worker that was lost: when, how, and how far its next life has come."""

    who: Address
    life: int
    event: MembershipEvent
    step: int  # in which it was last seen
    died: float
    due: float  # when its next life may begin
    forked: bool = False
    ready: bool = False
    told: dict[Address, control.Installed] = field(default_factory=dict)  # who speaks to the new life already
    missed: bool = True  # the others may wait for it from the beginning
    announced: bool = False  # the others know of its next life, and may wait for it

    @property
    def unseated(self) -> bool:
        """Whether all others go on without it, as they do not know of its next life yet."""
        return not self.missed and not self.announced

    def filled(self, now: float, count: int) -> str:
        """Write down that training stood still while it was missed, and say that it is one of so many workers again."""
        seconds = now - self.died
        self.event.stalled = seconds * self.missed
        if self.event.event == "join":
            return f"{self.who} joined; now {workers(count)}"
        if self.missed:
            return f"{self.who} died ({self.event.cause}); born again after {seconds:.1f} s"
        return f"{self.who} is back after {seconds:.1f} s; now {workers(count)}"


class EmptySeats(dict[Address, EmptySeat]):
    """Those of a run that are being filled, by role."""

    @property
    def unknown(self) -> set[Address]:
        """To whose next lives nobody speaks yet."""
        return {who for who, seat in self.items() if not seat.announced}

    def unseated(self, besides: EmptySeat | None = None) -> EmptySeats:
        """Besides this one, those that are empty for all others, while somebody is being built for them."""
        return EmptySeats((who, seat) for who, seat in self.items() if seat is not besides and seat.unseated)

    def known_lives(self, seat: EmptySeat, lives: Mapping[Address, int], empty: set[Address]) -> dict[Address, int]:
        """What one that is built for a seat knows of all others.

        A life that the others do not know yet is told when they do, and so is that a seat is empty.
        """
        unknown, unseated = self.unknown - {seat.who} | empty, self.unseated(seat)
        return {who: life - (who in unknown) - (who in unseated) for who, life in lives.items()}

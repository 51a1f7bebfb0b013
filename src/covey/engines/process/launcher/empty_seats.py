"""A seat of a run that is empty, and what it takes to fill it."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from covey.engines.process import control
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.run_processes import LOST_WITH
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.worker_scaling import ScaledSeats
from covey.errors import PeerLost
from covey.membership import Deaths, workers
from covey.message import Address
from covey.names import option
from covey.observe.membership import MembershipEvent, MembershipLog
from covey.observe.progress import Phase

BY_SIGNAL = "exited with signal "
KILLED = "killed by signal "
TOLD_TO_LEAVE = f"{KILLED}{int(signal.SIGTERM)}"


class HeardWords(Protocol):
    """What the launcher has heard of its roles."""

    phase: Phase
    inbox: dict[type[control.ControlMessage], dict[Address, Any]]

    def hear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Renewal:
    """How lost workers are restarted: counted, and started in the newest incarnation, at an endpoint of their own."""

    deaths: Deaths
    start: Callable[[Address, Mapping[Address, int]], str]
    log: MembershipLog = field(default_factory=MembershipLog)  # of the run, in all its attempts
    least: int = 0  # workers, where a seat may stay empty
    nowhere: str = ""  # the beginning of endpoints where nobody is
    joining: Callable[[Sequence[Address]], list[Address]] = lambda empty: []  # which of these are to be taken now
    scaling: ScaledSeats | None = None  # what decides how many workers there are
    release: Callable[[Address], None] = lambda who: None  # lets one go when its batch is through
    renewable: Callable[[Address], bool] = lambda who: True  # whether the host of a lost one is there
    patience: float = math.inf  # seconds that others may wait for a host

    def endpoint_of_nobody(self, who: Address, incarnation: int) -> str:
        """Where the others send, and nobody hears, while a seat is empty."""
        return f"{self.nowhere}{who.rank}.{incarnation}"

    def due(self, seat: EmptySeat) -> bool:
        """Whether the next incarnation of a lost one can begin now; if others wait in vain the run ends."""
        now = time.monotonic()
        if now < seat.due:
            return False
        if self.renewable(seat.who):
            return True
        if seat.missed and now - seat.died > self.patience:
            raise PeerLost(
                f"{seat.who} was {seat.event.cause}, which did not come back within {self.patience:g} s, and others "
                f"wait for it; a longer {option('stall')} gives it more time, and a range of workers goes on without",
                str(seat.who),
            )
        return False


def cause_of(how: str) -> str:
    """Why a lost role is replaced, from how it ended; empty if it ended by itself, which ends the run."""
    if how.startswith(LOST_WITH):
        return f"lost with {how.removeprefix(LOST_WITH).split(',')[0]}"
    number = how.removeprefix(BY_SIGNAL).split(",")[0]
    return f"{KILLED}{number}" if how.startswith(BY_SIGNAL) else ""


@dataclass(slots=True)
class EmptySeat:
    """A worker that was lost: when, how, and how far its next incarnation has come."""

    who: Address
    incarnation: int
    event: MembershipEvent
    step: int  # in which it was last seen
    died: float
    due: float  # when its next incarnation may begin
    forked: bool = False
    bound: bool = False  # its endpoint is known
    ready: bool = False
    told: dict[Address, control.Installed] = field(default_factory=dict)  # who speaks to the new incarnation already
    missed: bool = True  # the others may wait for it from the beginning
    wanted: bool = False  # they will, as soon as its endpoint is known
    announced: bool = False  # the others know of its next incarnation, and may wait for it

    @property
    def unseated(self) -> bool:
        """Whether all others go on without it, as they do not know of its next incarnation yet."""
        return not self.missed and not self.announced

    def filled(self, now: float, count: int) -> str:
        """Write down that training stood still while it was missed, and say that it is one of so many workers again."""
        seconds = now - self.died
        self.event.stalled = seconds * self.missed
        if self.event.event == "join":
            return f"{self.who} joined; now {workers(count)}"
        if self.missed:
            return f"{self.who} died ({self.event.cause}); replaced after {seconds:.1f} s"
        return f"{self.who} is back after {seconds:.1f} s; now {workers(count)}"


class EmptySeats(dict[Address, EmptySeat]):
    """Those of a run that are being filled, by role."""

    @property
    def unknown(self) -> set[Address]:
        """To whose next incarnations nobody speaks yet."""
        return {who for who, seat in self.items() if not seat.announced}

    def unseated(self, besides: EmptySeat | None = None) -> EmptySeats:
        """Besides this one, those that are empty for all others, while somebody is being built for them."""
        return EmptySeats((who, seat) for who, seat in self.items() if seat is not besides and seat.unseated)

    def known_incarnations(
        self, seat: EmptySeat, incarnations: Mapping[Address, int], empty: set[Address]
    ) -> dict[Address, int]:
        """What one that is built for a seat knows of all others.

        An incarnation that the others do not know yet is told when they do, and so is that a seat is empty.
        """
        unknown, unseated = self.unknown - {seat.who} | empty, self.unseated(seat)
        return {who: incarnation - (who in unknown) - (who in unseated) for who, incarnation in incarnations.items()}


class Introductions:
    """Tells each role which process of every other role to speak to, where lost ones are restarted."""

    def __init__(self, roster: Roster, board: Switchboard, renewal: Renewal | None) -> None:
        self.roster, self.board, self.renewal = roster, board, renewal
        self.seats = EmptySeats()
        self.endpoints: dict[Address, str] = {}  # of all that were restarted
        self.book: dict[str, str] = {}  # the newest endpoint of every role, where roles choose their ports
        self.finished: set[Address] = set()  # lost after the end of their programs: nobody needs them
        self.empty: set[Address] = set()  # of workers that went: these are among them until somebody joins

    @property
    def renewed(self) -> Renewal:
        """How lost workers are restarted: only runs that do so introduce anybody."""
        assert self.renewal is not None
        return self.renewal

    def bind(self, seat: EmptySeat, heard: HeardWords) -> None:
        """Where roles choose their ports, a new incarnation says which, and learns those of the others."""
        if word := heard.inbox.get(control.Bound, {}).pop(seat.who, None):
            self.book[str(seat.who)] = word.endpoint
            self.board.tell([seat.who], control.Endpoints(self.book))
            self.bound(seat, word.endpoint)

    def bound(self, seat: EmptySeat, endpoint: str) -> None:
        """The endpoint of a new incarnation is known; where others wait for it, they hear of it."""
        seat.bound, self.endpoints[seat.who] = True, endpoint
        seat.missed |= seat.wanted
        if seat.missed:
            self.announce(seat)

    def announce(self, seat: EmptySeat) -> None:
        """Have the others speak to a new incarnation, for which they wait from then on; those being built do later."""
        seat.announced = True
        building = {who for who, other in self.seats.items() if not other.ready}
        self.install(seat.who, [who for who in self.listeners(seat) if who not in building])

    def introduce(self, seat: EmptySeat) -> None:
        """Tell a new incarnation of all roles that have had an earlier incarnation."""
        for who in self.endpoints.keys() - self.seats.unknown - {seat.who}:  # all that were restarted, or are gone
            self.install(who, [seat.who])
        for who, other in self.seats.unseated(seat).items():
            nowhere = self.renewed.endpoint_of_nobody(who, other.incarnation - 1)
            self.board.tell([seat.who], control.Install(who, other.incarnation - 1, nowhere, empty=True))

    def listeners(self, seat: EmptySeat) -> list[Address]:
        """Who must speak to the new incarnation before it enters: all that the others know."""
        gone = self.seats.unknown | self.finished | {seat.who}
        return [who for who in (*self.roster.roles, SCORER) if who not in gone]

    def install(self, who: Address, listeners: Sequence[Address]) -> None:
        """Have these roles drop their links to a role's earlier process, and speak to its present one."""
        incarnation, empty = self.renewed.deaths.incarnations[who], who in self.empty
        self.board.tell(listeners, control.Install(who, incarnation, self.endpoints[who], empty))

"""Faults of links in virtual time: messages that are late, lost or doubled, and networks that fall apart.

Messages of a link are numbered, as on real ones: a second one of the same number is refused, and a gap means that one
was lost. What is late holds back what was sent after it, so that messages stay in order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.stall import clock
from covey.engines.virtual.virtual_actor import MessageInFlight, VirtualLink
from covey.errors import PeerLost
from covey.message import stamped
from covey.simulate.faults import Fault

Armed = dict[tuple[str, str], deque[Fault]]
"""The faults that strike the next messages of each link."""


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that its link has lost."""

    text: str
    sender: str


class LinkFaults:
    """What goes wrong on the links of one attempt."""

    def __init__(self, agenda: Agenda, armed: Armed, tell: Callable[[str], None]) -> None:
        self._agenda, self._armed, self._tell = agenda, armed, tell
        self.hand_over: Callable[[MessageInFlight, Any], None]  # gives a message to its receiver
        self.cuts: list[tuple[frozenset[str], float]] = []  # the roles on one side, and until when
        self.lost: list[LostMessage] = []
        self._sent: Counter[tuple[VirtualLink, int]] = Counter()
        self._received: Counter[tuple[VirtualLink, int]] = Counter()
        self._late: dict[VirtualLink, deque[tuple[float, MessageInFlight]]] = {}  # with when each may arrive
        self._delays: dict[int, float] = {}
        self._doubled: dict[int, Fault] = {}  # of which the second has not arrived yet

    def lets_out(self, flight: MessageInFlight) -> bool:
        """Number a message that leaves, and see what its link does to it; False when it is lost."""
        link = flight.link
        armed = self._armed.get((link.sender.name, link.receiver.name))
        fault = armed.popleft() if armed else None
        if not (fault and fault.kind == "drop" and flight.lossy):  # a lossy one that is lost leaves no gap
            flight.number = self._sent[link, flight.priority]
            self._sent[link, flight.priority] += 1
        if fault is None:
            return True
        if fault.kind == "drop":
            self._tell(f"{fault}: it lost {_what(flight)}{', which was sent as lossy' if flight.lossy else ''}")
            if not flight.lossy:
                self.lost.append(LostMessage(f"{_what(flight)}, sent at {clock(flight.left_at)}", link.sender.name))
            return False
        if fault.kind == "delay":
            self._delays[flight.serial] = fault.by
        else:
            self._doubled[flight.serial] = fault
        return True

    def lets_in(self, flight: MessageInFlight) -> bool:
        """Whether a message that has crossed the network arrives now; else it does later, or never."""
        link, now = flight.link, self._agenda.now
        ready = now + self._delays.pop(flight.serial, 0.0)
        waiting = self._late.setdefault(link, deque())
        if not waiting and max(ready, self._cut_until(link)) <= now:
            return self._in_order(flight)
        waiting.append((ready, flight))
        if len(waiting) == 1:
            self._release(link)
        return False

    def _release(self, link: VirtualLink, _: Any = None) -> None:
        """Let what is late arrive, as far as its time has come."""
        waiting = self._late[link]
        while waiting:
            until = max(waiting[0][0], self._cut_until(link))
            if until > self._agenda.now:
                return self._agenda.at(until, self._release, link)
            flight = waiting.popleft()[1]
            if self._in_order(flight):
                self.hand_over(flight, None)
        return None

    def _cut_until(self, link: VirtualLink) -> float:
        here, there = link.sender.name, link.receiver.name
        return max((until for side, until in self.cuts if (here in side) != (there in side)), default=0.0)

    def _in_order(self, flight: MessageInFlight) -> bool:
        """Whether it is the message that its number says comes next."""
        link, key = flight.link, (flight.link, flight.priority)
        if flight.number < self._received[key]:
            link.under_way -= flight.weight
            self._tell(f"{link.receiver.name} refused a second time {_what(flight)}")
            return False
        if flight.number > self._received[key]:
            self.check()
            raise AssertionError(f"{_what(flight)} overtook another message of its link")
        self._received[key] += 1
        if flight.serial in self._doubled:
            link.under_way += flight.weight
            again = replace(flight, message=stamped(flight.message, link.sender.address, copy=True))
            self._agenda.at(self._agenda.now, self._again, again)
        return True

    def _again(self, flight: MessageInFlight, _: Any) -> None:
        del self._doubled[flight.serial]
        if self._in_order(flight):
            self.hand_over(flight, None)

    @property
    def unmet(self) -> list[Fault]:
        """The faults whose second messages are still on their way."""
        return list(self._doubled.values())

    def check(self) -> None:
        """Name a message that was lost."""
        for lost in self.lost:
            raise PeerLost(f"the network lost {lost.text}", lost.sender)


def _what(flight: MessageInFlight) -> str:
    message, link = flight.message, flight.link
    step = f" of step {number}" if (number := getattr(message, "step", None)) is not None else ""
    return f"{type(message).__name__}{step} from {link.sender.name} to {link.receiver.name}"

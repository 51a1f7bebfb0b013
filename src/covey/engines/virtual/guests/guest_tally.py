"""What did the guests of a run do? They are counted as one: a million of them would be a table that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.observe.tally import Tally, Teller


class GuestTeller(Teller):
    """Keeps the tallies of a run's own roles, and one for all guests together."""

    def __init__(self, kept: Sequence[Tally], role: str) -> None:
        super().__init__(kept)
        self._role, self._all = role, Address(f"{role}s", 0)

    def of(self, who: Address) -> Tally:
        return super().of(self._all if who.role == self._role else who)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        one = self._all if sender.role == self._role else sender
        super().sent(at, one, self._all if to.role == self._role else to, message, size)

    def computed(self, begin: float, end: float, who: Address) -> None:
        if who.role == self._role:  # many compute at once: only the sum of their times means something
            self.of(who).compute += end - begin
        else:
            super().computed(begin, end, who)

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        if who.role != self._role:
            super().waited(begin, end, who, what, wire)


class GuestsAside(Instrument):
    """Tells an instrument of the run's own roles only, and of what they send."""

    def __init__(self, inner: Instrument, role: str) -> None:
        self._inner, self._role, self._all = inner, role, Address(f"{role}s", 0)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        one = self._all if sender.role == self._role else sender
        self._inner.sent(at, one, self._all if to.role == self._role else to, message, size)

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        if who.role != self._role:
            self._inner.waited(begin, end, who, what, wire)

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if who.role != self._role:
            self._inner.noted(at, who, kind, value)

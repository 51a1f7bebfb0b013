"""Instruments: observers attached from outside, which the engine informs of events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from covey.message import Address, Message

log = logging.getLogger(__name__)


class Instrument:
    """Watches a run. Every method does nothing here; times are seconds of training."""

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        """A message was handed to its link; `size` is its payload of exchange in bytes."""

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        """The message lies in the mailbox of `to`."""

    def computed(self, begin: float, end: float, who: Address) -> None:
        """The role's compute was busy; told at its end, one after the other."""

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        """The role's main program was held up for `what`; for `wire` seconds of it that was on its way to it.

        An engine whose messages carry no time of sending leaves `wire` at 0.
        """

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        """A program said something of itself: `staleness 3`, `update 1`."""

    def measured(self, who: Address, kind: str, value: float) -> None:
        """A program has measured something, as it does now and then: `compression 0.2`."""

    def ended(self, at: float, who: Address) -> None:
        """The role's main program is through."""

    def kept(self, at: float) -> None:
        """The run was written to a checkpoint."""

    def restarted(self, at: float) -> None:
        """The run was lost, and goes on from its newest checkpoint; from its beginning where it has none."""


class Instruments(Instrument):
    """Tells several instruments; one that raises is logged and removed, and the run goes on."""

    def __init__(self, instruments: Iterable[Instrument] = ()) -> None:
        self._hands: dict[str, list[tuple[Instrument, Callable[..., None]]]] = {name: [] for name in EVENTS}
        for instrument in instruments:
            self.attach(instrument)

    def attach(self, instrument: Instrument) -> None:
        """Tell this one too, from now on."""
        for name, hands in self._hands.items():
            # Most instruments care for few of the events: the others cost them nothing.
            if getattr(type(instrument), name) is not getattr(Instrument, name):
                hands.append((instrument, getattr(instrument, name)))

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self._tell("sent", at, sender, to, message, size)

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self._tell("delivered", at, sender, to, message, size)

    def computed(self, begin: float, end: float, who: Address) -> None:
        self._tell("computed", begin, end, who)

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        self._tell("waited", begin, end, who, what, wire)

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        self._tell("noted", at, who, kind, value)

    def measured(self, who: Address, kind: str, value: float) -> None:
        self._tell("measured", who, kind, value)

    def ended(self, at: float, who: Address) -> None:
        self._tell("ended", at, who)

    def _tell(self, name: str, *facts: object) -> None:
        for instrument, tell in self._hands[name]:
            try:
                tell(*facts)
            except Exception:
                self._remove(instrument)

    def _remove(self, broken: Instrument) -> None:
        log.exception("the instrument %s failed and is removed; the run goes on", type(broken).__name__)
        for name, hands in self._hands.items():
            self._hands[name] = [hand for hand in hands if hand[0] is not broken]


EVENTS = ("sent", "delivered", "computed", "waited", "noted", "measured", "ended")

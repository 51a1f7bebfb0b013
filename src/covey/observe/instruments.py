"""Instruments: observers attached from outside, which the engine informs of events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from covey.message import Address, Message

log = logging.getLogger(__name__)


class Instrument:
    """Watches a run. Every method does nothing here; times are seconds of training."""

    explains: ClassVar[bool] = True
    """Whether it uses the words in which `waited` says what a role waited for."""

    essential: ClassVar[bool] = False
    """Whether the run cannot go on without it: what it raises then ends the run."""

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
    """Tells several instruments; one that raises is logged and removed, unless it is essential, and the run goes on.

    Its methods are made anew whenever an instrument comes or goes: an event that nobody hears costs next to nothing.
    """

    explained = False
    """Whether somebody wants to know what a role waited for, which takes longer to say than to note."""

    follows = False
    """Whether somebody wants to know of what is delivered."""

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
        self._connect()

    def _connect(self) -> None:
        for name, hands in self._hands.items():
            self.__dict__.pop(name, None)  # what nobody hears does what every instrument does: nothing
            if hands:
                setattr(self, name, self._only(*hands[0]) if len(hands) == 1 else partial(self._tell, name))
        self.follows = bool(self._hands["delivered"])
        self.explained = any(instrument.explains for instrument, _ in self._hands["waited"])

    def _only(self, instrument: Instrument, tell: Callable[..., None]) -> Callable[..., None]:
        if instrument.essential:
            return tell

        def tell_only(*facts: object) -> None:
            try:
                tell(*facts)
            except Exception:
                self._remove(instrument)

        return tell_only

    def _tell(self, name: str, *facts: object) -> None:
        for instrument, tell in self._hands[name]:
            try:
                tell(*facts)
            except Exception:
                if instrument.essential:
                    raise
                self._remove(instrument)

    def _remove(self, broken: Instrument) -> None:
        log.exception("the instrument %s failed and is removed; the run goes on", type(broken).__name__)
        for name, hands in self._hands.items():
            self._hands[name] = [hand for hand in hands if hand[0] is not broken]
        self._connect()


EVENTS = ("sent", "delivered", "computed", "waited", "noted", "measured", "ended")

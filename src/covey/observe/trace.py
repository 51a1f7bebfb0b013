"""A run as text, one event a line: readable, and the same on every machine."""

from __future__ import annotations

from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.simulate.units import format_bytes

UNTOLD = frozenset({"loss", "samples", "memory"})
"""Notes that depend on the CPU's arithmetic, or say nothing of the order of events."""


class Trace(Instrument):
    """Writes down what happens; times to a tenth of a millisecond."""

    def __init__(self) -> None:
        self._lines: list[tuple[float, str, str]] = []  # when, who, what

    def text(self) -> str:
        """All lines so far, names aligned."""
        width = max((len(who) for _, who, _ in self._lines), default=0)
        return "".join(f"{at:8.4f}  {who:<{width}}  {what}\n" for at, who, what in self._lines)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        what = f"{type(message).__name__} {format_bytes(size)}" if size else type(message).__name__
        self._lines.append((at, f"{sender} -> {to}", what))

    def computed(self, begin: float, end: float, who: Address) -> None:
        self._lines.append((end, str(who), f"computes {end - begin:.4f}"))

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        if f"{end - begin:.4f}" != "0.0000":
            self._lines.append((end, str(who), f"waits {end - begin:.4f} for {what}"))

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if kind not in UNTOLD:
            self._lines.append((at, str(who), f"notes {kind} {value:g}"))

    def ended(self, at: float, who: Address) -> None:
        self._lines.append((at, str(who), "ends"))

"""Descriptions of what roles do while they start, so that a long start can be distinguished from a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from covey.message import Address

FIRST = 5.0  # seconds of a start after which a line says what is being done; then after twice as long, and so on


class Starting:
    """`before` is what a role does until it says something itself."""

    def __init__(self, before: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.before, self.say, self.clock = before, say, clock
        self.begun = clock()
        self.next = FIRST
        self.doing: dict[Address, tuple[str, float]] = {}

    def hear(self, who: Address, what: str) -> None:
        """A role says what it begins to do."""
        self.doing[who] = what, self.clock()

    def tell(self, late: Sequence[Address]) -> None:
        """Say what those do who are not ready, if it is time for that."""
        passed = self.clock() - self.begun
        if late and passed >= self.next:
            self.next = max(2 * self.next, passed)
            told = self.lines(late)
            self.say(f"starting: {told[0]}" if len(told) == 1 else "\n  ".join(["starting:", *told]))

    def lines(self, late: Sequence[Address]) -> list[str]:
        """What each of them does and for how long; those that do the same are named together."""
        groups: dict[str, list[Address]] = {}
        since: dict[str, float] = {}
        for who in late:
            what, begun = self.doing.get(who, (self.before, self.begun))
            groups.setdefault(what, []).append(who)
            since[what] = min(begun, since.get(what, begun))
        now = self.clock()
        return [f"{_named(roles)}: {what}, {now - since[what]:.0f} s so far" for what, roles in groups.items()]


def _named(roles: Sequence[Address]) -> str:
    shown = ", ".join(map(str, roles[:3]))
    return shown if len(roles) <= 3 else f"{shown} and {len(roles) - 3} more"

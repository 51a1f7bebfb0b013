"""What do roles have to say to the person? At once, ever more rarely, or when a start takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from covey.engines.process import control
from covey.engines.transport.refusals import Refusals
from covey.message import Address

FIRST = 5.0  # seconds of a start after which a line says what is being done; then after twice as long, and so on


class Starting:
    """What each role does while it starts, so that a long start can be distinguished from a hang.

    `before` is what a role does until it says something itself.
    """

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
            self.next = max(2 * self.next, passed + FIRST)
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


class RoleNotices:
    """`before` is what roles do until they say something; `say` shows a line to the person."""

    def __init__(self, before: str, say: Callable[[str], None]) -> None:
        self.say, self.starting, self.refused = say, Starting(before, say), Refusals()
        self.cramped = False

    def hear(self, by: Address, word: control.Notice | control.Doing | control.MemoryShort) -> None:
        """Something for the person: at once, or when a start takes long; short memory is reported once."""
        if isinstance(word, control.Doing):
            self.starting.hear(by, word.what)
        elif isinstance(word, control.Notice):
            self.say(f"{by}: {word.text}")
        elif not self.cramped:
            self.cramped = True
            self.say(
                f"{by} can share no more memory ({word.why}): what does not fit goes through sockets, more slowly"
            )

    def hear_refused(self, by: str, counts: Mapping[str, int]) -> None:
        """Say what was refused, the first time and then ever more rarely; the result has it all."""
        for line in self.refused.add(counts, by):
            self.say(line)


def _named(roles: Sequence[Address]) -> str:
    shown = ", ".join(map(str, roles[:3]))
    return shown if len(roles) <= 3 else f"{shown} and {len(roles) - 3} more"

"""Is a process alive? Judged by its CPU time, on a clock that stops when the observer is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from covey.names import option

if TYPE_CHECKING:
    from covey.message import Address

STALL = 30.0  # seconds that a process may be silent, by default
SHORTEST = 1.0  # seconds: an idle role wakes up ten times in it
LOOKS, LOOK = 8, 0.5  # checks of a process while it may be silent, and the most seconds between two
TICK = 0.05  # seconds of CPU that count as a sign in what a process has started: idle helpers wake up now and then
STATES = {
    "T": "was stopped by a signal",
    "t": "was stopped by a debugger",
    "D": "waits for a disk or a network file system",
}
STOPPED = ("T", "t")

K = TypeVar("K", bound=Hashable)


class Silence(Generic[K]):
    """Who has given no sign for how long. Only time counts in which this process itself was awake to see signs.

    A process that was stopped, or that a busy machine has not run, counts the pause between two looks as two looks.
    """

    def __init__(self, stall: float) -> None:
        self.stall = max(stall, SHORTEST)
        self.every = min(LOOK, self.stall / LOOKS)
        self.awake = 0.0  # seconds
        self.looked = time.monotonic()
        self.last: dict[K, tuple[object, float]] = {}  # each one's last sign, and when it came
        self.pause, self.woke = 0.0, 0.0  # how long this process stood still last, and when it woke up

    @property
    def due(self) -> bool:
        return time.monotonic() - self.looked >= self.every

    def look(self, signs: Mapping[K, object]) -> list[K]:
        """Those whose sign has been the same for too long; who is not among the `signs` is forgotten."""
        self.tick()
        for who, sign in signs.items():
            if who not in self.last or self.last[who][0] != sign:
                self.last[who] = sign, self.awake
        for gone in self.last.keys() - signs.keys():
            del self.last[gone]
        return [who for who in signs if self.quiet(who) > self.stall]

    def tick(self) -> None:
        """Count the time since the last look."""
        now = time.monotonic()
        passed, self.looked = now - self.looked, now
        self.awake += min(passed, 2 * self.every)
        if passed > self.stall:
            self.pause, self.woke = passed, self.awake

    def quiet(self, who: K) -> float:
        """For how many seconds there was no sign; none for those that were never looked at."""
        return self.awake - self.last[who][1] if who in self.last else 0.0

    def overslept(self) -> float:
        """For how long this process itself stood still just now, if that was too long; else 0."""
        self.tick()
        return self.pause if self.pause and self.awake - self.woke <= self.stall else 0.0


def sign(pid: int) -> object:
    """What changes while a process works, or what it has started does; a stopped one does nothing."""
    if state(pid) in STOPPED:
        return cpu(pid)
    return cpu(pid), int(sum(cpu(child) for child in descendants(pid)) / (TICK * 1e9))


def cpu(pid: int) -> int:
    """Nanoseconds that a process has computed, on all its threads; -1 if there is none."""
    with suppress(OSError):
        return time.clock_gettime_ns((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) names
    with suppress(OSError):  # a sandbox without such clocks
        user, system = _stat(pid)[11:13]
        return (int(user) + int(system)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return -1


def state(pid: int) -> str:
    """The letter by which Linux says what a process does (proc(5)); none if there is none."""
    with suppress(OSError):
        return _stat(pid)[0]
    return ""


def descendants(pid: int) -> Iterator[int]:
    """What a process has started, and what that has."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """What a process has started, on any of its threads."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def still(who: Address | str, how: str, stall: float) -> str:
    """That a process does nothing, in words; `how` is its state as Linux reports it, if that is known."""
    doing = STATES.get(how, "is unresponsive")
    advice = "" if how in STOPPED else f"; if it may wait for so long, give a longer {option('stall')}"
    return f"{who} {doing}: no report and no CPU use for {stall:g} s{advice}"

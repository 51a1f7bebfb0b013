"""How a role spent its time, and what it sent: one small record for each role, which can travel and be added up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Self, TypeVar

import msgspec

from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.observe.progress import MEASURED

K = TypeVar("K", int, str)
V = TypeVar("V", int, float)
REPEATED = "repeated samples"
MOST = 1 << 53  # of anything that is counted: whole numbers that a float holds exactly


class CountOfRole(int):
    """A number, and the role that it belongs to."""

    of: Address

    def __new__(cls, number: int, of: Address) -> Self:
        made = super().__new__(cls, number)
        made.of = of
        return made


class GradientAge(CountOfRole):
    """How many updates have come since the weights of a worker's gradient were read."""


class AcceptedSamples(CountOfRole):
    """How many samples of a worker that is gone count; the rest of what it did is computed again by others."""


class Tally(msgspec.Struct, kw_only=True):
    """One role's account.

    `compute` is time in which its compute was busy, `waiting` the time in which its main program was held up, it did
    not compute, and what it waited for was not on the wire; `exchange` is all the rest: packing, copying, adding,
    stepping the optimizer, and (where the engine knows it, in virtual time) the part of a wait spent on the wire.
    """

    who: Address
    seconds: float = 0.0
    compute: float = 0.0
    waiting: float = 0.0
    bytes: dict[str, int] = {}  # by peer, as people read it: "server 0"
    messages: dict[str, int] = {}
    staleness: dict[int, int] = {}
    ages: dict[str, int] = {}  # the same as a sum, by the role whose gradients they were
    aged: dict[str, int] = {}  # and their number
    updates: int = 0
    samples: int = 0
    losses: float = 0.0  # their sum since they were read
    batches: int = 0  # and their number
    sums: dict[str, float] = {}  # of what was measured since it was read
    counts: dict[str, int] = {}  # and how often
    memory: int = 0
    notes: dict[str, float] = {}

    def check(self) -> None:
        """Refuse, with a ValueError, what no role can have counted; a sum of losses may well be infinite."""
        counts = [self.updates, self.samples, self.batches, self.memory]
        for several in (self.bytes, self.messages, self.staleness, self.aged, self.counts):
            counts += several.values()
        counts += map(abs, self.ages.values())
        if not all(0 <= count < MOST for count in (*counts, *map(abs, self.staleness))):
            raise ValueError(f"{self.who} cannot have counted that")
        if self.aged.keys() != self.ages.keys():
            raise ValueError(f"{self.who} cannot have counted ages of gradients that it has no sum of")
        if not all(map(isfinite, (self.seconds, self.compute, self.waiting))):
            raise ValueError(f"{self.who} cannot have spent that much time")

    def resume(self, samples: int) -> None:
        """A new incarnation goes on after this number of samples; what its predecessor did beyond, it does again."""
        if self.samples > samples:
            _add(self.notes, {REPEATED: float(self.samples - samples)})
        self.samples = samples

    @property
    def trained(self) -> int:
        """Samples in all, also those that did not count."""
        return self.samples + int(self.notes.get(REPEATED, 0))

    @property
    def exchange(self) -> float:
        return max(0.0, self.seconds - self.compute - max(0.0, self.waiting))

    def merge(self, later: Tally) -> None:
        """Add what the same role did since; times of day and memory are its last and largest."""
        assert self.who == later.who, f"the tally of {later.who} is not of {self.who}"
        self.seconds, self.memory = max(self.seconds, later.seconds), max(self.memory, later.memory)
        for name in ("compute", "waiting", "updates", "samples", "losses", "batches"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        _add(self.bytes, later.bytes)
        _add(self.messages, later.messages)
        _add(self.staleness, later.staleness)
        _add(self.ages, later.ages)
        _add(self.aged, later.aged)
        _add(self.sums, later.sums)
        _add(self.counts, later.counts)
        _add(self.notes, later.notes)


def read_loss(tallies: Iterable[Tally]) -> float:
    """The mean training loss over all roles since this was last asked; nan when there was no batch."""
    total, batches = 0.0, 0
    for tally in tallies:
        total, batches = total + tally.losses, batches + tally.batches
        tally.losses, tally.batches = 0.0, 0
    return total / batches if batches else float("nan")


def read_measured(tallies: Iterable[Tally]) -> dict[str, float]:
    """The means of what roles measured since this was last asked, by the names that a referee takes for covey's own."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for tally in tallies:
        _add(sums, tally.sums)
        _add(counts, tally.counts)
        tally.sums, tally.counts = {}, {}
    found = {kind: total / counts[kind] for kind, total in sums.items() if counts.get(kind)}
    variance, square = found.pop("gradient variance", 0.0), found.pop("squared gradient", 0.0)
    if variance > 0 and square > 0:
        found["noise"] = variance / square
    return {f"{MEASURED}{kind}": value for kind, value in found.items() if isfinite(value)}


def mean_ages(tallies: Iterable[Tally]) -> dict[str, float]:
    """The mean staleness of each role's gradients, whoever has applied them."""
    ages: dict[str, int] = {}
    aged: dict[str, int] = {}
    for tally in tallies:
        _add(ages, tally.ages)
        _add(aged, tally.aged)
    return {who: ages[who] / count for who, count in aged.items() if count}


class Teller(Instrument):
    """Keeps the tallies of all roles that it hears of, and the run's totals."""

    explains = False
    essential = True

    def __init__(self, kept: Sequence[Tally] = ()) -> None:
        self.tallies = {tally.who: tally for tally in kept}
        self.samples = sum(tally.samples for tally in kept)
        self.bytes = sum(sum(tally.bytes.values()) for tally in kept)
        self._clocks = {who: _Clock() for who in self.tallies}
        self._names: dict[Address, str] = {}

    def take(self, who: Address) -> Tally:
        """What the role did since the last take: a launcher merges these."""
        tally = self.of(who)
        self.tallies[who] = Tally(who=who)
        return tally

    def of(self, who: Address) -> Tally:
        """The role's tally."""
        tally = self.tallies.get(who)
        if tally is None:
            tally = self.tallies[who] = Tally(who=who)
            self._clocks.setdefault(who, _Clock())
        return tally

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if not message.counted or sender == to:
            return
        tally = self.tallies.get(sender) or self.of(sender)
        peer, sizes, counts = self._names.get(to) or self._name(to), tally.bytes, tally.messages
        try:
            sizes[peer] += size
        except KeyError:
            sizes[peer] = size
        try:
            counts[peer] += 1
        except KeyError:
            counts[peer] = 1
        self.bytes += size

    def computed(self, begin: float, end: float, who: Address) -> None:
        tally = self.tallies.get(who) or self.of(who)
        tally.compute += end - begin
        if counted := self._clocks[who].computed(begin, end):
            tally.waiting -= counted
        if end > tally.seconds:
            tally.seconds = end

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        tally = self.tallies.get(who) or self.of(who)
        if (waited := end - wire) > begin:
            tally.waiting += self._clocks[who].waited(begin, waited)
        if end > tally.seconds:
            tally.seconds = end

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        tally = self.tallies.get(who) or self.of(who)
        if kind == "samples":
            tally.samples += int(value)
            self.samples += int(value)
        elif kind == "loss":
            tally.losses, tally.batches = tally.losses + value, tally.batches + 1
        elif kind == "staleness":
            age, whose = int(value), self._name(value.of if isinstance(value, GradientAge) else who)
            tally.staleness[age] = tally.staleness.get(age, 0) + 1
            tally.ages[whose] = tally.ages.get(whose, 0) + age
            tally.aged[whose] = tally.aged.get(whose, 0) + 1
        elif kind == "update":
            tally.updates += int(value)
        elif kind == "resumed" or isinstance(value, AcceptedSamples):
            tally = self.of(value.of) if isinstance(value, AcceptedSamples) else tally
            self.samples += int(value) - tally.samples
            tally.resume(int(value))
        elif kind == "memory":
            tally.memory = max(tally.memory, int(value))
        elif kind != "lead":  # how far ahead a reader was is for traces; its sum says nothing
            _add(tally.notes, {kind: value})

    def measured(self, who: Address, kind: str, value: float) -> None:
        """A program has measured something, as it does now and then."""
        tally = self.of(who)
        _add(tally.sums, {kind: value})
        _add(tally.counts, {kind: 1})

    def ended(self, at: float, who: Address) -> None:
        self.of(who).seconds = at

    def _name(self, who: Address) -> str:
        return self._names.get(who) or self._names.setdefault(who, str(who))


class _Clock:
    """Keeps a wait from counting while the role computes: a stream's program waits for its own backward.

    Computes come one after the other and so do waits, so only the latest of each can meet, and if the last does not
    meet what comes now, none does.
    """

    __slots__ = ("computes", "waits")

    def __init__(self) -> None:
        self.computes: deque[tuple[float, float]] = deque(maxlen=16)
        self.waits: deque[tuple[float, float]] = deque(maxlen=256)  # a backward can give hundreds of buckets

    def computed(self, begin: float, end: float) -> float:
        """How much of this time was already counted as waiting."""
        self.computes.append((begin, end))
        if not (waits := self.waits):
            return 0.0
        shared = _overlap(begin, end, waits) if waits[-1][1] > begin else 0.0
        waits.clear()
        return shared

    def waited(self, begin: float, end: float) -> float:
        """How much of this time was not computing, as far as is known now."""
        self.waits.append((begin, end))
        if not (computes := self.computes):
            return end - begin
        shared = _overlap(begin, end, computes) if computes[-1][1] > begin else 0.0
        computes.clear()
        return end - begin - shared


def _overlap(begin: float, end: float, others: Iterable[tuple[float, float]]) -> float:
    shared = 0.0
    for start, stop in others:
        first, last = (begin if begin > start else start), (end if end < stop else stop)
        if last > first:
            shared += last - first
    return shared


def _add(mine: dict[K, V], theirs: dict[K, V]) -> None:
    for key, value in theirs.items():
        mine[key] = mine[key] + value if key in mine else value

"""What does the work of a role cost the machine it lives on?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.simulate.units import AT_ONCE, BytesPerSecond, Seconds

GIGABIT = BytesPerSecond(125_000_000.0)
LAN = Seconds(1e-4)


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTime:
    """CPU time: this much each time, and this much for every byte."""

    each: Seconds = AT_ONCE
    byte: Seconds = AT_ONCE

    def of(self, size: float) -> float:
        return self.each + self.byte * size


FREE = CpuTime()


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What connects a host to the others: one way takes `latency`, each direction carries `bandwidth`."""

    bandwidth: BytesPerSecond = GIGABIT
    latency: Seconds = LAN
    uplink: BytesPerSecond | None = None  # what leaves, where that is less than what comes
    headers: float = 0.0  # what the network adds to every byte
    cpu: CpuTime = FREE  # of a message at either end: system calls, encryption

    @property
    def goodput(self) -> float:
        """Bytes of messages per second."""
        return self.bandwidth / (1 + self.headers)

    @property
    def outward(self) -> float:
        """Bytes of messages per second that leave."""
        return (self.bandwidth if self.uplink is None else self.uplink) / (1 + self.headers)

    def crossing(self, size: int) -> float:
        """How long a message takes that meets no other."""
        return self.latency + size / self.goodput


LINK = Link()


@dataclass(frozen=True, kw_only=True, slots=True)
class Handling:
    """CPU time of covey's own work on the thread that drives a role."""

    send: CpuTime = FREE  # a message; the bytes count where it is copied, not where it is lent
    receive: CpuTime = FREE  # a message
    sums: CpuTime = FREE  # each time that vectors are added, copied or scaled
    step: Seconds = AT_ONCE  # an optimizer step, besides what its bytes take
    report: Seconds = AT_ONCE  # a word to the launcher, at most every 20 ms


EASY = Handling()


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecTime:
    """CPU time of a codec, for a vector of this many bytes of plain numbers."""

    encode: CpuTime = FREE
    decode: CpuTime = FREE


def coding_of(known: Mapping[str, CodecTime], names: Sequence[str]) -> CodecTime | None:
    """What is known of a codec by the first of its names that is known."""
    return next((known[name] for name in names if name in known), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Cores that the roles on it share equally; with a `period` they are a quota, of which a period has its part.

    A role that wakes up while all cores are in use waits `wake` until it has its share.
    """

    cores: float
    period: Seconds = AT_ONCE
    wake: Seconds = AT_ONCE


def machine_name(number: int) -> str:
    """What machines are called, as hosts and in `place`."""
    return f"node{number}"

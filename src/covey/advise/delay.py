"""The least time that exchanging one gradient can take, by pattern (Langer et al. 2020, section 3.4.1 and Figure 14).

No latency, no contention, every link as fast as every other: what no implementation can beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from covey.errors import PlanError

GIB = float(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """What an exchange meets: a model's bytes, and how fast they are sent, added up, and used for an update."""

    bytes: float
    bandwidth: float  # bytes per second
    reduce: float = 10 * GIB  # bytes per second that are added to a sum
    update: float = 2 * GIB  # bytes per second that an optimizer updates

    def __post_init__(self) -> None:
        for name in ("bandwidth", "reduce", "update"):
            if not getattr(self, name) > 0:
                raise PlanError(f"{name} must be more than 0 bytes per second, not {getattr(self, name)}")

    @property
    def transfer(self) -> float:
        return self.bytes / self.bandwidth

    @property
    def reducing(self) -> float:
        return self.bytes / self.reduce

    @property
    def updating(self) -> float:
        return self.bytes / self.update


def rounds(n: int) -> int:
    """How often n must be halved, rounded up."""
    return math.ceil(math.log2(n)) if n > 1 else 0


def star(n: int, net: ExchangeCosts) -> float:
    """One server takes every worker's gradient after the other, and sends each the model."""
    return 2 * n * net.transfer + (n - 1) * net.reducing + net.updating


def binomial(n: int, net: ExchangeCosts) -> float:
    """Gradients climb a tree to the server, the model comes down."""
    return 2 * rounds(n + 1) * net.transfer + rounds(n) * net.reducing + net.updating


def scatter(n: int, net: ExchangeCosts) -> float:
    """Workers reduce a part each, and one server gets the parts, updates, and scatters."""
    return (2 + 2 * (n - 1) / n) * net.transfer + (n - 1) / n * net.reducing + net.updating


def one_asynchronous(n: int, net: ExchangeCosts) -> float:
    """A worker that meets no other at the server."""
    return 2 * net.transfer + net.updating


def all_asynchronous(n: int, net: ExchangeCosts) -> float:
    """All workers at one server, their transfers perfectly overlapped."""
    return n * net.transfer + net.updating


def shards(n: int, net: ExchangeCosts) -> float:
    """As many servers as workers, each with a part of the model."""
    return 2 * (n - 1) / n * net.transfer + (n - 1) / n * net.reducing + net.updating / n


def doubling(n: int, net: ExchangeCosts) -> float:
    """Recursive doubling, every worker updates its own copy."""
    return rounds(n) * (net.transfer + net.reducing) + net.updating


def ring(n: int, net: ExchangeCosts) -> float:
    """A ring all-reduce, every worker updates its own copy."""
    return 2 * (n - 1) / n * net.transfer + (n - 1) / n * net.reducing + net.updating


PATTERNS: Mapping[str, Callable[[int, ExchangeCosts], float]] = {
    "star": star,
    "binomial tree": binomial,
    "scatter to one server": scatter,
    "asynchronous, one worker": one_asynchronous,
    "asynchronous, all workers": all_asynchronous,
    "a server per worker": shards,
    "recursive doubling": doubling,
    "ring": ring,
}


def delay(pattern: str, n: int, net: ExchangeCosts) -> float:
    """The least seconds that one exchange of this pattern takes among n workers."""
    if pattern not in PATTERNS:
        raise PlanError(f"no pattern {pattern!r}; there are: {', '.join(PATTERNS)}")
    if n < 1:
        raise PlanError(f"{n} workers: at least 1 is needed")
    return PATTERNS[pattern](n, net)

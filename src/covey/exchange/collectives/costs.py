"""How long each pattern of a sum takes over a link, as far as formulas know: which is the best one here?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from covey.exchange.collectives.butterfly import radices
from covey.exchange.collectives.ring_slices import count
from covey.exchange.collectives.sums import links
from covey.model.compute_shares import in_backward

BUCKETS = 64  # of a gradient, at most
SLOTS = 8  # pieces that the memory of a switch holds


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Between two neighbours: until a small message is there, between two such ones, and for every byte."""

    latency: float
    gap: float
    byte: float


class Delay(NamedTuple):
    """A pattern on its critical path: rounds that wait for one another, messages, and models that pass a card."""

    rounds: int
    messages: int
    models: float

    def seconds(self, link: LinkTimes, nbytes: float) -> float:
        """For this many bytes: the first message of a round waits for the link, the others only for their turn."""
        return self.fixed(link) + self.models * nbytes * link.byte

    def fixed(self, link: LinkTimes) -> float:
        """What even an empty vector takes."""
        return self.rounds * link.latency + (self.messages - self.rounds) * link.gap


def _ring(n: int, nbytes: float) -> Delay:
    return Delay(2 * (n - 1), 2 * (n - 1), 2 * (n - 1) / n)


def _scatter(n: int, nbytes: float) -> Delay:
    return Delay(2, 2 * (n - 1), 2 * (n - 1) / n)


def _halving(n: int, nbytes: float) -> Delay:
    power, folds = _folded(n)
    rounds = 2 * (power.bit_length() - 1) + folds
    return Delay(rounds, rounds, 2 * (power - 1) / power + folds)


def _doubling(n: int, nbytes: float) -> Delay:
    power, folds = _folded(n)
    rounds = power.bit_length() - 1 + folds
    return Delay(rounds, rounds, rounds)


def _folded(n: int) -> tuple[int, int]:
    """The largest power of two of ranks, and the rounds in which the others hand theirs over and get the sum."""
    power = 1 << (n.bit_length() - 1)
    return power, 2 * (n > power)


def _butterfly(n: int, nbytes: float) -> Delay:
    wings = radices(n)
    others = sum(radix - 1 for radix in wings)
    return Delay(len(wings), others, others)


def _bruck(n: int, nbytes: float) -> Delay:
    rounds = (n - 1).bit_length()
    return Delay(rounds, rounds, n - 1)


def _binomial(n: int, nbytes: float) -> Delay:
    rounds, depth = (n - 1).bit_length(), max(place.bit_count() for place in range(n))
    return Delay(2 * depth, 2 * rounds, 2 * rounds)  # the root hears of each round, but all at once if they are short


def _star(n: int, nbytes: float) -> Delay:
    return Delay(2, 2 * (n - 1), 2 * (n - 1))


def _chain(n: int, nbytes: float) -> Delay:
    pieces = links(round(nbytes), n)
    steps = 2 * (pieces + n - 2)  # a rank in the middle sends each piece twice
    return Delay(2 * (n - 1), steps, steps / pieces)


DELAYS: Mapping[str, Callable[[int, float], Delay]] = {
    "ring": _ring, "halving": _halving, "scatter": _scatter, "doubling": _doubling, "butterfly": _butterfly,
    "bruck": _bruck, "binomial": _binomial, "chain": _chain, "star": _star,
}  # fmt: skip
"""Of n ranks and this many bytes. Of equals the first one is chosen; `hierarchical` needs to be told who is near."""


def switch_pieces(nbytes: int, window: int) -> int:
    """In how many pieces a vector passes a switch with a memory of `window` bytes."""
    return max(1, -(-nbytes * SLOTS // window))


def step_seconds(name: str, link: LinkTimes, n: int, nbytes: float, compute: float, buckets: int) -> float:
    """How long a step is whose gradient leaves in this many equal buckets: the later of two ends.

    Either the last bucket is summed after the end of backward, or all of them one after the other from the moment on
    in which the first was ready (taxonomy E.1).
    """
    each = delay(name, n, nbytes / buckets).seconds(link, nbytes / buckets)
    first = in_backward(1, buckets, compute)
    return max(compute + each, first + buckets * each)


def delay(name: str, n: int, nbytes: float) -> Delay:
    """Of a pattern; machines that are rings of rings are taken for one ring."""
    return DELAYS.get(name, _ring)(n, nbytes)


def most_buckets(name: str, n: int, nbytes: int) -> int:
    """How many buckets are worth trying: in one of less than a row of slices a ring's ranks would have to wait."""
    return min(BUCKETS, count(nbytes, n)) if name in ("ring", "hierarchical") else BUCKETS

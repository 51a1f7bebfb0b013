"""The terms of one sum: who may take part, how many must, and who shares secrets with whom."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from covey.errors import PlanError
from covey.privacy.randomness import SYSTEM, Randomness
from covey.privacy.secagg.fixed_point import RING, FixedPoint, largest_sum
from covey.privacy.secagg.messages import SumTerms

ROUND = 16  # bytes of a round's name
MOST_CLIENTS = 4096
TWO_THIRDS = 0.6666666666666666
MOST_NUMBERS = 1 << 40


def sum_terms(
    clients: Iterable[int], length: int, numbers: FixedPoint, *, threshold: float = TWO_THIRDS, neighbours: int = 0,
    least: int = 2, randomness: Randomness = SYSTEM, about: bytes = b"",
) -> SumTerms:  # fmt: skip
    """The terms of a new sum of `length` numbers per client, which are computed from what has the hash `about`.

    >>> sum_terms([0, 1, 2], 10, FixedPoint()).clients
    (0, 1, 2)
    """
    members = tuple(sorted(clients))
    numbers.check(len(members))
    terms = SumTerms(
        round=randomness.take(ROUND), clients=members, length=length, bits=numbers.bits, largest=numbers.levels,
        threshold=threshold, neighbours=neighbours, least=least, simulated=randomness.seeded,
        about=about,
    )  # fmt: skip
    if wrong := mistake(terms):
        raise PlanError(wrong)
    return terms


def mistake(terms: SumTerms) -> str:
    """What is wrong with terms; nothing of them is believed."""
    count = len(terms.clients)
    if len(terms.round) != ROUND:
        return f"a round is named by {ROUND} bytes, not {len(terms.round)}"
    if not 2 <= count <= MOST_CLIENTS:
        return f"a secure sum of {count} clients: from 2 to {MOST_CLIENTS}"
    if not ascending(terms.clients) or terms.clients[0] < 0:
        return "clients must be listed once each, in ascending order"
    if terms.bits not in RING or not 1 <= terms.largest * count <= largest_sum(terms.bits):
        return f"{count} clients with numbers up to {terms.largest}: their sum could wrap around in {terms.bits} bits"
    if not 1 <= terms.length <= MOST_NUMBERS:
        return f"a sum of {terms.length} numbers"
    if not 0.5 < terms.threshold <= 1:
        return f"secagg(threshold={terms.threshold}): above 1/2, or two halves of the clients could open both secrets"
    if not (terms.neighbours == 0 or terms.neighbours >= 2):
        return f"secagg(neighbours={terms.neighbours}): all, or at least 2"
    if not 2 <= terms.least <= count:
        return f"secagg(least={terms.least}): from 2 to the {count} clients"
    return ""


def ascending(numbers: Sequence[int]) -> bool:
    """Whether each number is larger than the one before."""
    return all(one < other for one, other in pairwise(numbers))


def needed(holders: int, threshold: float) -> int:
    """How many of the holders of a secret open it."""
    return max(2, math.ceil(threshold * holders - 1e-9))


def quorum(terms: SumTerms) -> int:
    """How many clients must sign one list of survivors before any of them helps to open it."""
    return needed(len(terms.clients), terms.threshold)


def fewest(terms: SumTerms) -> int:
    """How many clients a sum must have."""
    return max(terms.least, quorum(terms))


class Neighbourhood:
    """Who shares secrets with whom: all with all, or each with some others (Bell et al. 2020).

    Those who hold a client's secrets are its neighbours and itself. How many must agree follows from those whom the
    terms invite, not from those whose keys the server shows: it may show few.
    """

    def __init__(self, terms: SumTerms, clients: Collection[int], seen: bytes) -> None:
        self.clients = tuple(sorted(clients))
        self.threshold = terms.threshold
        self.quorum = quorum(terms)
        self.least = fewest(terms)
        self.point = {client: place + 1 for place, client in enumerate(self.clients)}  # where its shares are taken
        self.neighbours: Mapping[int, frozenset[int]]
        everybody, reach = frozenset(self.clients), (terms.neighbours + 1) // 2
        self.complete = terms.neighbours == 0 or 2 * reach >= len(self.clients) - 1  # all are neighbours of all
        if self.complete:
            self.neighbours = {client: everybody - {client} for client in self.clients}
        else:
            self.neighbours = _circle(self.clients, reach, seen)

    def holders(self, client: int) -> frozenset[int]:
        return self.neighbours[client] | {client}

    def needed(self, client: int) -> int:
        """How many of its holders open one of a client's secrets."""
        return self.quorum if self.complete else needed(len(self.holders(client)), self.threshold)

    def connected(self, among: Collection[int]) -> bool:
        """Whether masks tie all of these together: else each part could be opened alone."""
        left = set(among)
        edge = {left.pop()} if left else set()
        while edge:
            edge = {near for one in edge for near in self.neighbours[one] & left}
            left -= edge
        return not left


def _circle(clients: tuple[int, ...], reach: int, seen: bytes) -> dict[int, frozenset[int]]:
    """Clients around a circle, in an order that the keys of all decide, each with the nearest on both sides."""
    order = sorted(clients, key=lambda client: hashlib.sha256(seen + client.to_bytes(8, "big")).digest())
    count = len(order)
    return {
        client: frozenset(order[(place + step) % count] for step in range(-reach, reach + 1) if step)
        for place, client in enumerate(order)
    }

"""Shamir's secret sharing (1979): any `threshold` of the shares give the secret, fewer say nothing about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from covey.privacy.randomness import Randomness, below

PRIME = (1 << 521) - 1
SHARE = 66  # bytes of a number below the prime


def split(secret: int, holders: Iterable[int], threshold: int, randomness: Randomness) -> dict[int, int]:
    """One share for each holder, by its number, which is at least 1: a point of a random polynomial."""
    assert 0 <= secret < PRIME and threshold >= 1
    rest = [below(PRIME, randomness) for _ in range(threshold - 1)]
    return {holder: _value([secret, *rest], holder) for holder in holders}


def _value(coefficients: list[int], at: int) -> int:
    assert 0 < at < PRIME, "the value at 0 is the secret itself"
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * at + coefficient) % PRIME
    return total


def recover(shares: Mapping[int, int]) -> int:
    """The secret of which these are shares; with fewer than its threshold it is another, random number."""
    weights = _weights(tuple(shares))
    return sum(weight * share for weight, share in zip(weights, shares.values(), strict=True)) % PRIME


@lru_cache(maxsize=64)
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights for the value at 0; those who hold shares of one client often hold those of others too."""
    over, under = [], []
    for one in holders:
        top = bottom = 1
        for other in holders:
            if other != one:
                top, bottom = top * other % PRIME, bottom * (other - one) % PRIME
        over.append(top)
        under.append(bottom)
    return tuple(top * inverse % PRIME for top, inverse in zip(over, _inverses(under), strict=True))


def _inverses(numbers: list[int]) -> list[int]:
    """All inverses for the price of one (Montgomery's trick)."""
    before, product = [], 1
    for number in numbers:
        before.append(product)
        product = product * number % PRIME
    rest, found = pow(product, -1, PRIME), []
    for number, product in zip(reversed(numbers), reversed(before), strict=True):
        found.append(rest * product % PRIME)
        rest = rest * number % PRIME
    return found[::-1]

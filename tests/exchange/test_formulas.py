"""Bytes and rounds of every pattern against the formulas of taxonomy C, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, floor, log2

import pytest
import torch

from covey.exchange.collectives.butterfly import radices
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.hierarchy import hierarchical
from covey.exchange.collectives.sums import Chunk
from covey.strategy import workers
from covey.vector import Vector
from tests.exchange.summing import reduce_by

NUMBERS = 5040  # which every number of ranks up to 10 divides


def active(n: int) -> int:
    """The largest power of two of ranks, which take part in recursive patterns."""
    return 1 << floor(log2(n))


def folds(n: int) -> int:
    """Rounds in which the others hand theirs over, and get the sum."""
    return 2 * (n > active(n))


ROUNDS: dict[str, Callable[[int], int]] = {
    "star": lambda n: 2,
    "binomial": lambda n: 2 * ceil(log2(n)),
    "ring": lambda n: 2 * (n - 1),
    "doubling": lambda n: floor(log2(n)) + folds(n),
    "halving": lambda n: 2 * floor(log2(n)) + folds(n),
    "scatter": lambda n: 2,
    "butterfly": lambda n: len(radices(n)),
    "bruck": lambda n: ceil(log2(n)),
    "chain": lambda n: 2 * n,  # pieces there, and as many back
}
"""As messages number them."""

MOST: dict[str, Callable[[int], float]] = {
    "star": lambda n: n - 1,
    "binomial": lambda n: ceil(log2(n)),
    "ring": lambda n: 2 * (n - 1) / n,
    "doubling": lambda n: floor(log2(n)) + folds(n) / 2,
    "halving": lambda n: 2 * (active(n) - 1) / active(n) + folds(n) / 2,
    "scatter": lambda n: 2 * (n - 1) / n,
    "butterfly": lambda n: sum(radix - 1 for radix in radices(n)),
    "bruck": lambda n: n - 1,
    "chain": lambda n: 2 if n > 2 else 1,
}
"""Vectors that the busiest rank sends."""

TOTAL: dict[str, Callable[[int], float]] = {
    "doubling": lambda n: active(n) * floor(log2(n)) + 2 * (n - active(n)),
    "butterfly": lambda n: n * sum(radix - 1 for radix in radices(n)),
    "bruck": lambda n: n * (n - 1),
}
"""Vectors that all send; those that add no number twice send the `least`."""


def least(n: int) -> float:
    return 2 * (n - 1)


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "hierarchical"])
def test_bytes_and_rounds(name: str, ranks: int) -> None:
    vectors = [Vector([torch.ones(NUMBERS, dtype=torch.float64)]) for _ in range(ranks)]
    log, _ = reduce_by(PATTERNS[name], vectors)
    assert all(torch.equal(vector.parts[0], torch.full_like(vector.parts[0], ranks)) for vector in vectors)
    steps = {sent.message.step for sent in log.kinds(Chunk)}  # type: ignore[attr-defined]
    sizes = [log.bytes_from(who) / (8 * NUMBERS) for who in workers(ranks)]
    assert len(steps) == ROUNDS[name](ranks)
    assert max(sizes) == pytest.approx(MOST[name](ranks), rel=1e-3)
    assert sum(sizes) == pytest.approx(TOTAL.get(name, least)(ranks))


@pytest.mark.parametrize(("ranks", "local"), [(4, 2), (6, 3), (9, 3)])
def test_two_levels_send_the_bytes_of_one(ranks: int, local: int) -> None:
    """2 (g-1)/g inside a machine and 2 (m-1)/m of a g-th between m of them: 2 (n-1)/n, as a flat ring."""
    vectors = [Vector([torch.ones(NUMBERS, dtype=torch.float64)]) for _ in range(ranks)]
    log, _ = reduce_by(partial(hierarchical, local=local), vectors)
    sizes = [log.bytes_from(who) / (8 * NUMBERS) for who in workers(ranks)]
    assert sizes == pytest.approx([2 * (ranks - 1) / ranks] * ranks)

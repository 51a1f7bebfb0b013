"""Gradient coding: the same gradient whoever is late; quorums drop what is late instead."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import catalog
from covey.central.coded import Coded, code, decode
from covey.errors import PlanError
from tests.worlds import INSTANT, mlp, paced, quadratic, run, slowed, worker

CASES = [(n, s, "cyclic") for n in range(1, 7) for s in range(n)] + [
    (n, s, "fractional") for n in range(1, 7) for s in range(n) if n % (s + 1) == 0
]


@pytest.mark.parametrize(("workers", "stragglers", "scheme"), CASES)
def test_any_n_minus_s_workers_give_the_exact_sum(workers: int, stragglers: int, scheme: str) -> None:
    """Exhaustive: every set of n - s; each worker computes s + 1 parts."""
    matrix = code(workers, stragglers, scheme)  # type: ignore[arg-type]
    assert ((matrix != 0).sum(1) == stragglers + 1).all()
    parts = torch.randn(workers, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for rows in combinations(range(workers), workers - stragglers):
        factors = torch.tensor(decode(matrix, rows), dtype=torch.float64)
        assert torch.allclose(factors @ (matrix[list(rows)] @ parts), parts.sum(0), atol=1e-9)


def test_too_few_codes_are_noticed() -> None:
    with pytest.raises(AssertionError, match="do not give the gradient"):
        decode(code(5, 1, "cyclic"), [0, 1, 2])


@pytest.mark.parametrize("late", range(4))
@pytest.mark.parametrize("scheme", ["cyclic", "fractional"])
def test_whoever_is_late_the_weights_are_those_of_bsp(late: int, scheme: str) -> None:
    """Nine times slower: never waited for, and its samples count all the same."""
    task, name = mlp(), f"gradient_coding(stragglers=1, scheme={scheme})"
    exact = run(task, "bsp", 4, steps=6, cluster=INSTANT)
    coded = run(task, name, 4, steps=6, cluster=slowed(INSTANT, **{f"w{late}": 9}))
    assert all(torch.allclose(exact.scored[key], coded.scored[key], atol=1e-9) for key in exact.scored)
    assert coded.outcome.samples == exact.outcome.samples
    assert len(coded.log.kinds(Coded)) < 4 * 6, "the late one skips what was done without it"
    others = [at for _, at, who in coded.log.computes if who != worker(late)]
    assert max(others) == pytest.approx(6 * 0.02), "two parts a step, and nobody waits"


def test_without_stragglers_it_is_bsp() -> None:
    exact, coded = run(mlp(), "bsp", 3, steps=5), run(mlp(), "gradient_coding(stragglers=0)", 3, steps=5)
    assert all(torch.allclose(exact.scored[key], coded.scored[key], atol=1e-12) for key in exact.scored)


@settings(max_examples=20, deadline=None)
@given(
    slow=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), stragglers=st.integers(0, 4),
    samples=st.integers(9, 60), seed=st.integers(0, 9),
)  # fmt: skip
def test_exact_at_any_speeds_and_with_unequal_shards(
    slow: list[float], stragglers: int, samples: int, seed: int
) -> None:
    task, n = quadratic(samples=samples), len(slow)
    exact = run(task, "bsp", n, epochs=2, seed=seed)
    name = f"gradient_coding(stragglers={min(stragglers, n - 1)})"
    coded = run(task, name, n, epochs=2, seed=seed, cluster=paced(slow, 0.5))
    assert torch.allclose(exact.scored["w"], coded.scored["w"], atol=1e-7)
    assert coded.outcome.samples == 2 * samples


def test_what_cannot_be_grouped_is_refused() -> None:
    with pytest.raises(PlanError, match="groups of 3; use scheme=cyclic, or stragglers=0, 1, 3"):
        catalog.resolve("gradient_coding(stragglers=2, scheme=fractional)", 4)

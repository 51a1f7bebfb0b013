"""Gradient coding: the same gradient whoever is late; quorums drop what is late instead."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covey import catalog
from covey.central.replicated.codes import EXACT, blocks, code, cyclic, decode, error, tolerated
from covey.central.replicated.gradient_coding import Coded
from covey.engines.virtual.effort import Effort
from covey.errors import PlanError
from covey.simulate import Cluster, CpuTime, Handling, Seconds
from tests.worlds import INSTANT, mlp, paced, quadratic, run, slowed, worker

CASES = [(n, s, scheme) for n in range(1, 8) for s in range(n) for scheme in ("cyclic", "blocks")] + [
    (n, s, "fractional") for n in range(1, 7) for s in range(n) if n % (s + 1) == 0
]


@pytest.mark.parametrize(("workers", "stragglers", "scheme"), CASES)
def test_any_n_minus_s_workers_give_the_exact_sum(workers: int, stragglers: int, scheme: str) -> None:
    """Exhaustive: every set of n - s; each worker computes s + 1 parts."""
    if error(workers, stragglers, scheme) > EXACT:  # type: ignore[arg-type]
        pytest.fail("small codes are well-conditioned")
    matrix = code(workers, stragglers, scheme)  # type: ignore[arg-type]
    assert ((matrix != 0).sum(1) == stragglers + 1).all()
    parts = torch.randn(workers, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for rows in combinations(range(workers), workers - stragglers):
        factors = torch.tensor(decode(matrix, rows), dtype=torch.float64)
        assert torch.allclose(factors @ (matrix[list(rows)] @ parts), parts.sum(0), atol=1e-9)


def relative(matrix: torch.Tensor, rows: Sequence[int], parts: torch.Tensor) -> float:
    """How far the decoded sum is from the sum, in float32 as workers and servers compute it, over the parts' sizes."""
    codes = [torch.zeros(parts.shape[1]) for _ in rows]
    for coded, row in zip(codes, rows, strict=True):
        for place in matrix[row].nonzero().view(-1).tolist():
            coded.add_(parts[place], alpha=float(matrix[row, place]))
    total = torch.zeros(parts.shape[1])
    for coded, factor in zip(codes, decode(matrix, rows), strict=True):
        total.add_(coded, alpha=factor)
    return float((total.double() - parts.double().sum(0)).norm() / parts.double().norm(dim=1).sum())


@pytest.mark.parametrize(("workers", "stragglers"), [(32, 4), (31, 4), (16, 3), (24, 7), (9, 4), (100, 6)])
def test_in_float32_the_sum_is_exact_to_1e_5_whoever_is_late(workers: int, stragglers: int) -> None:
    """Neighbours, which are the hardest to do without, and others; every worker still computes s + 1 parts."""
    matrix, chance = code(workers, stragglers, "blocks"), Random(1)
    assert ((matrix != 0).sum(1) == stragglers + 1).all()
    parts = torch.randn(workers, 200, generator=torch.Generator().manual_seed(4))
    lates = [[(first + hop) % workers for hop in range(stragglers)] for first in range(0, workers, 3)]
    for late in [*lates, *(chance.sample(range(workers), stragglers) for _ in range(20))]:
        rows = [row for row in range(workers) if row not in late]
        assert relative(matrix, rows, parts) < error(workers, stragglers, "blocks") <= EXACT


@pytest.mark.parametrize(("workers", "stragglers"), [(7, 2), (8, 2), (8, 3), (9, 3), (9, 4), (10, 6)])
def test_neighbours_are_the_hardest_to_do_without(workers: int, stragglers: int) -> None:
    """Exhaustive: the conditioning that is checked before a run is the worst of all sets of stragglers."""
    matrix = torch.from_numpy(cyclic(workers, stragglers))
    counted = [
        float(torch.tensor(decode(matrix, rows)).double().abs() @ matrix[list(rows)].abs().sum(1)) / workers
        for rows in combinations(range(workers), workers - stragglers)
    ]
    assert error(workers, stragglers, "cyclic") == pytest.approx(max(counted) * (stragglers + 2) * 2.0**-24, rel=1e-6)


def test_virtual_time_costs_the_same_whether_a_code_is_remembered_or_not() -> None:
    """It charges a role for its calls of torch: those of a cached function only in the first run of a process."""
    with Effort(Cluster(handling=Handling(sums=CpuTime(each=Seconds(0.001))))) as effort:
        for cached in (code, cyclic, error):
            cached.cache_clear()
        code(7, 2, "blocks")
        assert tolerated(7, 2, "cyclic") == 2
        assert effort.seconds == 0
        decode(code(7, 2, "blocks"), [0, 1, 2, 3, 4])
        assert effort.seconds > 0


def test_blocks_are_of_more_workers_than_may_be_late() -> None:
    assert blocks(32, 4, "blocks") == [5, 5, 5, 5, 6, 6] and blocks(6, 4, "blocks") == [6]
    assert blocks(32, 4, "cyclic") == [32] and blocks(12, 3, "blocks") == [4, 4, 4]
    for workers in range(1, 40):
        for stragglers in range(workers):
            sizes = blocks(workers, stragglers, "blocks")
            assert sum(sizes) == workers and min(sizes) > stragglers


def test_what_float32_cannot_decode_is_refused_with_what_works() -> None:
    words = "could be wrong by 0.0004, where 1e-05 is allowed; use scheme=blocks with stragglers=4 or scheme=cyclic"
    with pytest.raises(PlanError, match=words):
        catalog.resolve("gradient_coding(stragglers=4, scheme=cyclic)", 32)
    catalog.resolve("gradient_coding(stragglers=4)", 32)
    catalog.resolve("gradient_coding(stragglers=2, scheme=cyclic)", 32)
    with pytest.raises(PlanError, match="scheme=blocks with stragglers=9"):
        catalog.resolve("gradient_coding(stragglers=10)", 21)


def test_where_some_have_ended_fewer_may_be_late() -> None:
    """So that the rest is exact all the same: 3 of 4 workers cannot be put into pairs."""
    assert [tolerated(n, 1, "fractional") for n in (4, 3, 2, 1)] == [1, 0, 1, 0]
    assert [tolerated(n, 10, "blocks") for n in (22, 21, 11, 10)] == [10, 9, 10, 9]
    task = quadratic(samples=11, batch_size=1)  # 3, 3, 3 and 2 steps
    exact = run(task, "bsp", 4, epochs=1)
    for scheme in ("fractional", "blocks", "cyclic"):
        coded = run(task, f"gradient_coding(scheme={scheme})", 4, epochs=1, cluster=slowed(INSTANT, w1=3))
        assert torch.allclose(exact.scored["w"], coded.scored["w"], atol=1e-9)


def test_too_few_codes_are_noticed() -> None:
    with pytest.raises(AssertionError, match="do not give the gradient"):
        decode(code(5, 1, "cyclic"), [0, 1, 2])


@pytest.mark.parametrize("late", range(4))
@pytest.mark.parametrize("scheme", ["blocks", "cyclic", "fractional"])
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


def test_dropout_is_drawn_for_a_part_whoever_computes_it() -> None:
    """Else two codes would hold different gradients of one part, and what is decoded would depend on who is late."""
    model = lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()  # noqa: E731
    found = [
        run(mlp(model=model), "gradient_coding", 4, steps=4, cluster=slowed(INSTANT, **{f"w{late}": 9})).scored
        for late in range(3)
    ]
    assert all(torch.allclose(found[0][key], other[key], atol=1e-9) for other in found[1:] for key in other)


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
    with pytest.raises(PlanError, match="groups of 3; use scheme=blocks, or stragglers=0, 1, 3"):
        catalog.resolve("gradient_coding(stragglers=2, scheme=fractional)", 4)

"""The rules are small values: who may read when, and what a gradient counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.synchronization import Barrier, Bounded, Rule, Unbounded

clocks = st.integers(0, 1000)


@given(slowest=clocks, lead=clocks, bound=st.integers(0, 50))
def test_bounded_admits_up_to_the_bound_and_no_further(slowest: int, lead: int, bound: int) -> None:
    assert Bounded(bound).admits(slowest + lead, slowest) == (lead <= bound)


@given(slowest=clocks, lead=clocks)
def test_barrier_is_bound_0_and_unbounded_admits_all(slowest: int, lead: int) -> None:
    assert Barrier().admits(slowest + lead, slowest) == Bounded(0).admits(slowest + lead, slowest)
    assert Unbounded().admits(slowest + lead, slowest)


@given(slowest=clocks, bound=st.integers(0, 5))
def test_the_slowest_is_always_admitted(slowest: int, bound: int) -> None:
    for rule in (Barrier(), Bounded(bound), Unbounded()):
        assert rule.admits(slowest, slowest)


@pytest.mark.parametrize(
    ("rule", "together", "weight"),
    [(Barrier(), True, 1.0), (Bounded(3), False, 0.25), (Unbounded(), False, 0.25), (Bounded(3, 1.0), False, 1.0),
     (Unbounded(0.5), False, 0.5)],
)  # fmt: skip
def test_what_a_gradient_counts(rule: Rule, together: bool, weight: float) -> None:
    assert rule.together is together
    assert rule.weight(4) == weight

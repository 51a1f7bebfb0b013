"""The survey's lower bounds, against the golden values of its Figure 14."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.advise.delay import PATTERNS, ExchangeCosts, delay
from covey.errors import PlanError

GIGABIT = 125e6
GOLDEN = {
    (132.9e6, 8): (68.64, 34.42, 16.24, 8.75, 34.27, 7.52, 13.15, 7.73),
    (132.9e6, 32): (273.96, 51.53, 17.04, 8.75, 136.34, 8.30, 21.76, 8.54),
    (25.6e6, 8): (13.22, 6.63, 3.13, 1.69, 6.60, 1.45, 2.53, 1.49),
}


@pytest.mark.parametrize(("numbers", "n"), GOLDEN)
def test_the_surveys_figure(numbers: float, n: int) -> None:
    net = ExchangeCosts(bytes=4 * numbers, bandwidth=GIGABIT)
    for pattern, expected in zip(PATTERNS, GOLDEN[numbers, n], strict=True):
        assert delay(pattern, n, net) == pytest.approx(expected, abs=0.01), pattern


@given(st.integers(1, 500), st.floats(1, 1e10), st.floats(1e5, 1e11))
def test_servers_for_all_never_lose_to_a_ring(n: int, size: float, bandwidth: float) -> None:
    net = ExchangeCosts(bytes=size, bandwidth=bandwidth)
    assert delay("a server per worker", n, net) <= delay("ring", n, net) * (1 + 1e-12)


@given(st.sampled_from(list(PATTERNS)), st.integers(1, 300))
def test_more_workers_never_take_less(pattern: str, n: int) -> None:
    net = ExchangeCosts(bytes=1e8, bandwidth=1e8)
    if pattern != "a server per worker":  # whose updates are shared by more
        assert delay(pattern, n + 1, net) >= delay(pattern, n, net) * (1 - 1e-12)


def test_what_cannot_be() -> None:
    with pytest.raises(PlanError, match="no pattern 'circle'"):
        delay("circle", 2, ExchangeCosts(bytes=1, bandwidth=1))
    with pytest.raises(PlanError, match="bandwidth must be more than 0"):
        ExchangeCosts(bytes=1, bandwidth=0)

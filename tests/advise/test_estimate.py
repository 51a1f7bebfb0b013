"""Numbers that are known up to a factor."""

from __future__ import annotations

import math
from random import Random

import pytest

from covey.advise.estimate import Estimate, estimated, spread


def test_nine_of_ten_intervals_hold_the_truth() -> None:
    chance, held, error = Random(0), 0, 0.1
    for _ in range(1000):
        seen = [math.exp(chance.gauss(0.0, error)) for _ in range(3)]
        low, high = estimated(seen, error).interval
        held += low <= 1 <= high
    assert 850 <= held <= 960


def test_errors_of_factors_add_up_and_more_measurements_lessen_them() -> None:
    product = Estimate(2.0, 0.3) * Estimate(3.0, 0.4)
    assert (product.value, product.error) == (6.0, pytest.approx(0.5))
    assert (Estimate(6.0, 0.3) / Estimate(3.0, 0.4)).value == 2.0
    assert estimated([1.0] * 9, 0.1).error < estimated([1.0], 0.1).error / 3
    assert estimated([1.0], 0.1).error == pytest.approx(0.1)


def test_measurements_that_lie_apart_say_so() -> None:
    assert spread([3.0], 0.1) == pytest.approx(0.1)
    assert spread([3.0] * 5, 0.1) < 0.1 < spread([1.0, 2.0], 0.1) < spread([1.0, 2.0] * 9, 0.1)
    chance = Random(0)
    assert spread([math.exp(chance.gauss(0.0, 0.3)) for _ in range(500)], 0.05) == pytest.approx(0.3, rel=0.1)


def test_of_two_estimates_the_surer_counts_more() -> None:
    both = Estimate(1.0, 0.1).joined(Estimate(2.0, 0.2))
    assert 1.0 < both.value < math.sqrt(2) and both.error < 0.1


def test_before_needs_more_than_a_smaller_number() -> None:
    assert Estimate(1.0, 0.05).before(Estimate(1.3, 0.05))
    assert not Estimate(1.0, 0.05).before(Estimate(1.1, 0.05))


def test_a_median_is_less_sure_than_a_mean() -> None:
    assert estimated([1.0] * 2, 0.1).error == pytest.approx(spread([1.0] * 2, 0.1) / math.sqrt(2))
    assert estimated([1.0] * 3, 0.1).error == pytest.approx(1.2 * spread([1.0] * 3, 0.1) / math.sqrt(3))

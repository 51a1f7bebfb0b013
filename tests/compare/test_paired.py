"""Intervals of paired ratios hold what they promise, also where runs missed the target."""

from __future__ import annotations

import math
import random

import pytest

from covey.compare.paired import FINEST, Finish, ratio, student


def finishes(*seconds: float, missed: tuple[int, ...] = ()) -> dict[int, Finish]:
    return {seed: Finish(value, seed not in missed) for seed, value in enumerate(seconds)}


@pytest.mark.parametrize(
    ("error", "freedom", "value"),
    [(0.05, 1, 12.706), (0.05, 2, 4.303), (0.01, 3, 5.841), (0.05, 4, 2.776), (0.01, 9, 3.250), (0.001, 14, 4.140)],
)
def test_student_is_as_printed_in_tables(error: float, freedom: int, value: float) -> None:
    assert student(error, freedom) == pytest.approx(value, abs=6e-4)


def test_a_textbook_interval() -> None:
    """Logarithms 0.1, 0.2, 0.3, 0.4, 0.5: mean 0.3, standard error 0.0707, t(4) 2.776."""
    found = ratio(finishes(*(math.exp(x / 10) for x in range(1, 6))), finishes(*[1.0] * 5), error=0.05)
    assert found.value == pytest.approx(math.exp(0.3)) and found.seeds == 5
    assert math.log(found.low) == pytest.approx(0.3 - 2.776 * 0.0707, abs=1e-3)
    assert found.high is not None and math.log(found.high) == pytest.approx(0.3 + 2.776 * 0.0707, abs=1e-3)


def test_only_equal_seeds_are_compared() -> None:
    """Seeds differ by far more than strategies: unpaired, nothing would be seen."""
    theirs = {0: Finish(1.0), 1: Finish(10.0), 2: Finish(100.0), 3: Finish(3.0), 4: Finish(30.0), 9: Finish(1e-3)}
    mine = {seed: Finish(1.5 * one.seconds) for seed, one in theirs.items() if seed != 9} | {7: Finish(1e6)}
    found = ratio(mine, theirs, error=0.05)
    assert found.seeds == 5 and found.behind and found.value == pytest.approx(1.5)


def test_two_runs_say_nothing() -> None:
    found = ratio(finishes(2.0, 2.0), finishes(1.0, 1.0), error=0.05)
    assert (found.low, found.high) == (0.0, None) and not found.behind


def test_runs_that_are_all_alike_are_not_infinitely_sure() -> None:
    found = ratio(finishes(*[1.001] * 5), finishes(*[1.0] * 5), error=0.05)
    assert not found.behind and found.high is not None
    assert math.log(found.high / found.low) == pytest.approx(2 * 2.776 * FINEST / math.sqrt(5), abs=1e-4)


def test_one_that_always_misses_is_behind_by_at_least_its_budget() -> None:
    """A censored time is a lower bound: it cannot make the other one look slow, and no upper bound is claimed."""
    budget = [20.0, 21.0, 19.0, 20.0, 22.0]
    found = ratio(finishes(*budget, missed=(0, 1, 2, 3, 4)), finishes(1.0, 1.1, 0.9, 1.0, 1.1), error=0.01)
    assert found.behind and found.low > 10 and found.high is None


def test_one_that_misses_sometimes_is_not_the_faster_one_for_sure() -> None:
    """It was faster with 8 seeds and missed with 2, so its median is ahead; of that, 8 of 10 are no proof."""
    fast = finishes(*[1.0] * 8, 9.0, 9.0, missed=(8, 9))
    found = ratio(finishes(*[2.0] * 10), fast, error=0.05)
    assert not found.behind and found.value == pytest.approx(2.0)
    once = finishes(*[1.0] * 14, 9.0, missed=(14,))
    assert ratio(finishes(*[2.0] * 15), once, error=0.05).behind, "with 14 of 15 it is"


@pytest.mark.parametrize(("pairs", "rank"), [(8, 1), (9, 2), (11, 2), (13, 3), (15, 4)])
def test_the_interval_of_a_median_is_as_printed_in_tables(pairs: int, rank: int) -> None:
    """Of sorted pairs the one of this rank is its lower end, with a chance of error of 5 % on both sides together."""
    mine, theirs = finishes(*map(math.exp, range(pairs))), finishes(*[1.0] * pairs, missed=(0,))
    found = ratio(mine, theirs, error=0.05)
    assert found.low == pytest.approx(math.exp(rank - 1) if rank > 1 else 0.0), "the first pair has no lower bound"


def test_runs_that_both_miss_say_nothing_about_the_two() -> None:
    both = finishes(*[9.0] * 10, missed=tuple(range(10)))
    found = ratio(both, both, error=0.05)
    assert (found.value, found.low, found.high) == (None, 0.0, None)


def test_time_zero_is_a_time() -> None:
    found = ratio(finishes(*[0.0] * 5), finishes(*[0.0] * 5), error=0.05)
    assert found.value == 1.0 and found.within(1.05)


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_the_interval_covers_the_truth_as_often_as_it_promises(missing: float) -> None:
    """1,000 series of 10 pairs with a true ratio of 1.2; runs may miss the target, independently of their time."""
    chance = random.Random(5)

    def run(mean: float) -> Finish:
        return Finish(mean * chance.lognormvariate(0, 0.2), chance.random() >= missing)

    outside = 0
    for _ in range(1000):
        theirs = {seed: run(1.0) for seed in range(10)}
        mine = {seed: run(1.2) for seed in range(10)}
        found = ratio(mine, theirs, error=0.05)
        outside += not found.low <= 1.2 <= (found.high or math.inf)
    assert outside <= 70, "50 are expected, 70 are three standard deviations more"

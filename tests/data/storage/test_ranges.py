"""How many requests at once: pure arithmetic, against a store that limits each request and all together."""

from __future__ import annotations

import pytest

from covey.data.storage.ranges import MOST, RequestCount, split


def settled(each: float, all_: float, reads: int = 40) -> tuple[RequestCount, list[int]]:
    """Reads of 64 MB from a store with these limits, in bytes per second."""
    count, used = RequestCount(), []
    for _ in range(reads):
        requests = count.count
        used.append(requests)
        count.measured(requests, 1 << 26, (1 << 26) / min(all_, requests * each))
    return count, used


@pytest.mark.parametrize(("each", "all_"), [(35e6, 570e6), (3.5e6, 57e6), (100e6, 100e6), (1e6, 1e12), (50e6, 120e6)])
def test_nearly_all_that_a_store_gives_is_used(each: float, all_: float) -> None:
    count, used = settled(each, all_)
    reached = min(all_, count.best * each)
    assert reached >= min(all_, MOST * each) / 1.2
    assert count.best <= 2 * all_ / each, "not many more than are needed"
    assert used.count(count.best) > 20, "most reads are made with it"


def test_a_store_that_becomes_slower_or_faster_is_noticed() -> None:
    count, _ = settled(35e6, 70e6)
    assert count.best == 2
    for _ in range(60):
        count.measured(count.count, 1 << 26, (1 << 26) / (count.count * 35e6))
    assert count.best == MOST


def test_reads_that_were_too_small_to_split_say_nothing() -> None:
    count = RequestCount()
    count.measured(1, 1000, 1.0)
    assert count.count == 2
    for _ in range(20):
        count.measured(1, 1000, 1.0)
    assert (count.count, count.best) == (2, 1)


def test_ranges_are_nearly_equal_and_not_tiny() -> None:
    assert split(10, 110, 4, smallest=10) == [(10, 35), (35, 60), (60, 85), (85, 110)]
    assert split(0, 25, 4, smallest=10) == [(0, 12), (12, 25)]
    assert split(0, 5, 4, smallest=10) == [(0, 5)]
    assert split(7, 7, 4) == [(7, 7)]

"""How long a step took: the mean worker's, while all of them train."""

from __future__ import annotations

import pytest

from covey.observe.recording import Recording, TimeSpan
from covey.observe.step_time import WARM, recorded_step


def recorded(**begins: list[float]) -> Recording:
    spans = [TimeSpan(who, "", begin, begin + 0.001) for who, times in begins.items() for begin in times]
    waits = [TimeSpan(who, "a gradient", 0.0, 9.0) for who in begins]
    return Recording(roles=list(begins), spans=[*spans, *waits], arrows=[])


def every(seconds: float, count: int, begin: float = 0.0) -> list[float]:
    return [begin + seconds * number for number in range(count)]


def test_the_mean_worker_is_that_of_the_mean_rate() -> None:
    found = recorded_step(recorded(one=every(0.1, 40), two=every(0.3, 14)))
    assert found == pytest.approx(2 / (1 / 0.1 + 1 / 0.3))


def test_the_first_batches_do_not_count() -> None:
    assert recorded_step(recorded(one=[*every(5.0, WARM), *every(0.1, 20, 5.0 * WARM)])) == pytest.approx(0.1)


def test_what_slow_workers_do_alone_does_not_count() -> None:
    """The fast one ends after 4 s; from then on the slow one has all cores, and is as fast."""
    slow = [*every(0.4, 11), *every(0.1, 30, 4.1)]
    assert recorded_step(recorded(fast=every(0.1, 41), slow=slow)) == pytest.approx(2 / (1 / 0.1 + 1 / 0.4))


def test_few_batches_are_used_as_they_are_and_none_is_no_time() -> None:
    assert recorded_step(recorded(one=[0.0, 0.2])) == pytest.approx(0.2)
    assert recorded_step(recorded(one=[0.5])) == 0 == recorded_step(recorded())

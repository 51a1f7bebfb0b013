"""Training time: what passes while a run is scored or kept is none of it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from covey.engines.process.clock import LostAttempt, Stopwatch
from covey.engines.process.launcher.run_clock import RunClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_it_had_still_to_stand_still_is_owed_after_the_next_stop(clock: list[float]) -> None:
    """Two scores soon after one another: of the first pause of 5 seconds 3 were still to come."""
    watch = Stopwatch()
    watch.start(later=5)
    clock[0] = 12
    watch.stop()
    clock[0] = 20
    watch.start()
    clock[0] = 25
    assert watch.now() == 2


def test_a_pause_is_no_training_time(clock: list[float]) -> None:
    watch = Stopwatch(before=1.0)
    watch.start()
    clock[0] = 14
    watch.skip(3)
    assert watch.now() == 2
    watch.stop()
    clock[0] = 50
    assert watch.now() == 2 and watch.at(3.0) == 2


def test_a_past_moment_is_found_again_unless_the_clock_stood_still(clock: list[float]) -> None:
    watch = Stopwatch(before=1.0)
    assert watch.zero is None and watch.then(10) is None
    watch.start()
    clock[0] = 14
    watch.stop()
    clock[0] = 20
    watch.start()
    clock[0] = 30
    watch.skip(4)
    clock[0] = 32
    assert watch.zero == 9
    found = [watch.then(moment) for moment in (9, 10, 14, 17, 20, 26, 28, 30, 32)]
    assert found == [None, 1, 5, None, 5, 11, None, 11, 13]
    assert watch.then(32) == watch.now()


def test_what_a_restart_costs_is_time_of_the_run(clock: list[float]) -> None:
    """After 3 s of training it failed at 4; until the next attempt trains, at 10, it stands still."""
    processes: Any = SimpleNamespace(paused=0.0)
    again = RunClock(processes)
    again.begin(LostAttempt(moment=4.0, clock=3.0))
    clock[0] = 12
    assert again.stood_still == 6 and again.watch.now() == 3 + 6 + 2

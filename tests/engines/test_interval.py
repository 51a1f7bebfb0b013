"""When checkpoints are due: after the time asked for, or as often as a small share of the time allows."""

from __future__ import annotations

import pytest

from covey.engines.process.launcher.interval import Interval


def hour(pause: float, cpu: float, seconds: float = 3600.0) -> tuple[float, int, Interval]:
    """The share of an hour that checkpoints with these costs take, how many there were, and the interval."""
    interval, now, lost, kept = Interval(None), 0.0, 0.0, 0
    interval.begin(now, size=1e6)
    while now < seconds:
        now += 0.05
        if interval.due(now):
            now += pause
            interval.stood_still(pause, now)
            interval.wrote(cpu)
            lost, kept = lost + pause + cpu / interval.cores, kept + 1
    return lost / now, kept, interval


@pytest.mark.parametrize(("pause", "cpu"), [(0.01, 0.0), (0.2, 0.1), (0.5, 4.0), (20.0, 0.0)])
def test_auto_costs_at_most_its_share_and_says_which_interval_that_is(pause: float, cpu: float) -> None:
    share, kept, interval = hour(pause, cpu)
    assert share <= 0.035 and kept >= 4
    if interval.chosen > 1:
        assert share > 0.02 and kept == pytest.approx(3600 / interval.chosen, rel=0.2)
    assert f"about every {interval.chosen:.2g} s" in interval.news()
    assert not interval.news(), "it is said once"
    interval.stood_still(10 * pause + 1, 4000.0)
    interval.wrote(0.0)
    assert f"about every {interval.chosen:.2g} s" in interval.news()


def test_a_fixed_interval_is_what_was_asked_for() -> None:
    interval = Interval(2.0)
    interval.begin(100.0, 1e12)
    assert not interval.due(101.9) and interval.due(102.1)
    interval.stood_still(5.0, 107.1)
    interval.wrote(5.0)
    assert not interval.due(109.0) and interval.due(109.2) and not interval.news() and str(interval) == "in 2 s"


def test_what_all_have_spent_on_writing_a_checkpoint_is_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 s of pause and 0.8 s of CPU time on two cores: 0.5 s, which are 3 % of 16.7 s."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    interval = Interval(None)
    interval.begin(0.0, size=1e6)
    interval.stood_still(0.1, 2.0)
    for cpu in (0.5, 0.2, 0.1):
        interval.wrote(cpu)
    assert interval.chosen == pytest.approx(0.5 / 0.03)
    assert "about every 17 s, as each costs 0.5 s" in interval.news()

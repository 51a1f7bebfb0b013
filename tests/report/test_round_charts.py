"""The report of a federated run: rounds, reports, drop-outs, and who was there."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from covey.observe.membership import RoundRecord
from covey.observe.result import Result
from covey.report import overlay, render, round_charts
from covey.run import federate
from tests.federated.conftest import regression


@cache
def day() -> Result:
    """A day of a small population, of which three times as many are there at midnight as at noon."""
    return federate(
        regression(), "fedavg", 300, per_round=10, rounds=140, timing_only=True, compute="8m", selection="30m",
        reporting="20m", availability="daily(share=0.4, swing=3)", runs=False,
    )  # fmt: skip


def test_the_charts_hold_the_rounds() -> None:
    told = day().participation
    assert told and day().seconds > 86_000
    drawn = {chart.name: chart for chart in round_charts.all_of([("fedavg", day())])}
    assert list(drawn) == ["reports", "there", "rounds"]
    reports, dropped = drawn["reports"].data
    assert reports["y"] == [one.reports for one in told.rounds if one.state != "not begun"]
    assert sum(dropped["y"]) == sum(one.dropped for one in told.rounds) > 0
    assert drawn["rounds"].data[0]["y"][-1] == told.committed
    assert drawn["rounds"].layout["xaxis"]["title"]["text"] == "hours of the run"


def test_day_and_night_can_be_seen() -> None:
    there = round_charts.all_of([("fedavg", day())])[1].data[0]
    night = [many for at, many in zip(there["x"], there["y"], strict=True) if at % 24 < 3 or at % 24 > 22]
    noon = [many for at, many in zip(there["x"], there["y"], strict=True) if 11 < at < 14]
    assert min(night) > 1.5 * max(noon), (night, noon)


def test_the_page_shows_them_and_speaks_of_clients() -> None:
    page = render(overlay(day()).page)
    assert "300 clients, in virtual time" in page and "Clients that were there" in page
    assert page.count("<svg class='plot'") >= 3


def test_each_try_to_begin_a_round_counts() -> None:
    tried = RoundRecord(number=0, state="not begun", seconds=60.0, took=60.0, tries=4)
    rounds = [tried, RoundRecord(number=0, state="committed", seconds=90.0, took=30.0, reports=5)]
    told = day().participation
    assert told
    seen = msgspec.structs.replace(day(), participation=msgspec.structs.replace(told, rounds=rounds))
    assert [line["y"][-1] for line in round_charts.all_of([("fedavg", seen)])[-1].data] == [1, 4]


def test_other_runs_have_none() -> None:
    assert round_charts.all_of([("bsp", msgspec.structs.replace(day(), participation=msgspec.UNSET))]) == []


def test_many_rounds_make_short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_charts, "POINTS", 20)
    lines = [line for chart in round_charts.all_of([("fedavg", day())]) for line in chart.data]
    assert all(len(line["x"]) == len(line["y"]) <= 30 for line in lines)

"""Every time limit of every phase, and a client that goes in each of them, in runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.observe.membership import RoundRecord
from covey.run import federate
from covey.run.federated import federating
from covey.task import Task

EQUAL: dict[str, Any] = {"speed_spread": 0.0, "link_spread": 0.0, "latency": "1s", "compute": "10s", "runs": False}


def first_round(task: Task, windows: str, folder: Path, **given: Any) -> RoundRecord:
    file = folder / "there.csv"
    file.write_text(windows)
    found = federate(task, "fedavg", 6, per_round=6, **{"rounds": 1, "over": 1.0, **EQUAL, **given}, availability=file)
    assert found.participation
    return found.participation.rounds[0]


@pytest.mark.parametrize(
    ("until", "chosen", "dropped", "takes"),
    [
        ("10s", 5, 0, 60 + 14.5),  # it waits to be selected: the round begins without it when selection ends
        ("21500ms", 6, 1, 35.5),  # the model is on its way
        ("30s", 6, 1, 35.5),  # it trains
        ("35s", 6, 1, 35.5),  # its report is on its way
    ],
)
def test_who_goes_in_any_phase_is_not_waited_for(
    task: Task, tmp_path: Path, until: str, chosen: int, dropped: int, takes: float
) -> None:
    """Client 0 is there from the beginning, the others come after 20 s: they are chosen then, and train for 12.5 s."""
    there = f"0,0s,{until}\n" + "".join(f"{client},20s,1h\n" for client in range(1, 6))
    found = first_round(task, there, tmp_path)
    assert (found.state, found.chosen, found.dropped, found.reports) == ("committed", chosen, dropped, 5)
    assert found.seconds == pytest.approx(takes, abs=0.6)


def test_selection_begins_with_enough_when_its_time_is_over(task: Task, tmp_path: Path) -> None:
    found = first_round(task, "".join(f"{client},0s,1h\n" for client in range(5)), tmp_path, selection="40s")
    assert (found.state, found.chosen) == ("committed", 5)
    assert found.seconds == pytest.approx(40 + 14.5, abs=0.1)


@pytest.mark.parametrize(("least", "state"), [(0.6, "committed"), (0.8, "abandoned")])
def test_reporting_ends_with_what_has_come(task: Task, tmp_path: Path, least: float, state: str) -> None:
    """By these speeds four of six are in time."""
    there = "".join(f"{client},0s,1h\n" for client in range(6))
    how = {"speed_spread": 0.4, "compute": "11s", "reporting": "14s"}
    one = first_round(task, there, tmp_path, least=least, **how)
    assert one.reports == 4 and one.state == state and one.took >= 14


def test_fedbuff_gives_up_a_client_that_does_not_report_in_time(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each needs 12.5 s, and 5 are granted: nobody's report counts, and the run ends all the same."""
    monkeypatch.setattr(federating, "TRIES", 3)
    given: dict[str, Any] = {**EQUAL, "reporting": "5s", "selection": "20s"}
    found = federate(task, "fedbuff(buffer=2)", 6, per_round=2, rounds=3, **given)
    assert found.participation and found.participation.not_begun == 3 and found.updates == 0
    assert found.seconds == pytest.approx(3 * (5 + 20), abs=0.1)
    patient = federate(task, "fedbuff(buffer=2)", 6, per_round=2, rounds=3, **{**given, "reporting": "20s"})
    assert patient.participation and patient.participation.committed == 3


def test_fedbuff_goes_on_without_a_client_that_is_too_slow(task: Task) -> None:
    """Some of these speeds are in time and some are not: whoever is not has its place taken."""
    given: dict[str, Any] = {**EQUAL, "speed_spread": 0.4, "reporting": "13s"}
    found = federate(task, "fedbuff(buffer=2)", 6, per_round=2, rounds=4, **given).participation
    assert found and found.committed == 4 and sum(one.dropped for one in found.rounds) > 0


def test_fedbuff_does_not_wait_for_ever_where_nobody_is_at_work(task: Task, tmp_path: Path) -> None:
    file = tmp_path / "there.csv"
    file.write_text("0,0s,5s\n")
    found = federate(
        task, "fedbuff(buffer=2)", 6, per_round=2, rounds=2, selection="30s", availability=file, **EQUAL
    ).participation
    assert found and [(one.state, one.tries) for one in found.rounds] == [("not begun", federating.TRIES)]

"""Who takes part in federated runs, how often, and how many at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.errors import PlanError
from covey.federated.buffering import Buffering
from covey.federated.messages import ClientReport, Configuration
from covey.federated.pace_steering import PaceSteering
from covey.program import Node
from covey.run import federate
from covey.task import Task

EQUAL: dict[str, Any] = {"speed_spread": 0.0, "link_spread": 0.0, "runs": False}


@pytest.mark.parametrize("more", [{"compute": "10ms"}, {"compute": "100s", "overlap": False}])
def test_every_client_is_chosen_equally_often_however_long_rounds_take(task: Task, more: dict[str, Any]) -> None:
    """2,000 reports of 1,000 clients that are always there: choice by chance alone reaches 865 of them."""
    found = federate(task, "fedavg", 1000, per_round=50, rounds=40, timing_only=True, **EQUAL, **more).participation
    assert found and found.committed == 40
    assert found.took_part >= 840 and max(found.times) <= 8, found.times


def test_many_clients_do_not_wait_for_a_guess_of_how_long_rounds_take(task: Task) -> None:
    """Rounds take as long as clients do, also at first and where most clients never come."""
    found = federate(task, "fedavg", 5000, per_round=20, rounds=10, timing_only=True, **EQUAL).participation
    assert found and max(one.took for one in found.rounds) < 1.0, [one.took for one in found.rounds]
    assert found.took_part >= 190


def test_the_wait_for_check_ins_is_no_part_of_how_long_a_round_takes(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Else clients would be told to come later the fewer of them come."""
    told, ended = list[float](), PaceSteering.round_ended

    def heard(self: PaceSteering, seconds: float) -> None:
        told.append(seconds)
        ended(self, seconds)

    monkeypatch.setattr(PaceSteering, "round_ended", heard)
    given: dict[str, Any] = {"per_round": 10, "rounds": 3, "timing_only": True, "overlap": False, "compute": "1s"}
    found = federate(task, "fedavg", 20, **given, **EQUAL).participation
    assert found and len(told) == 3
    assert all(seconds < one.took for seconds, one in zip(told, found.rounds, strict=True))


def test_fedbuff_chooses_all_equally_often_with_a_buffer_larger_than_its_clients(task: Task) -> None:
    """Each update needs more check-ins than clients work at once; their time does not grow from one to the next."""
    found = federate(
        task, "fedbuff(buffer=50)", 100, per_round=10, rounds=40, timing_only=True, **EQUAL, compute="1s"
    ).participation
    assert found and found.took_part == 100 and max(found.times) <= 32, found.times
    assert found.rounds[-1].took < 2 * found.rounds[0].took, [one.took for one in found.rounds]


def test_fedbuff_lets_no_more_clients_train_at_once_than_per_round_says(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, most = set[int](), 0
    send, take = Node.send, Buffering.take

    def sent(self: Node, to: Any, body: Any, **more: Any) -> Any:
        nonlocal most
        if isinstance(body, Configuration):
            at_work.add(to.rank)
            most = max(most, len(at_work))
        return send(self, to, body, **more)

    async def taken(self: Buffering, report: ClientReport) -> None:
        at_work.discard(report.sender.rank)
        await take(self, report)

    monkeypatch.setattr(Node, "send", sent)
    monkeypatch.setattr(Buffering, "take", taken)
    federate(task, "fedbuff(buffer=4)", 30, per_round=5, rounds=6, **EQUAL, compute="60s")
    assert most == 5


def test_fedbuff_ends_where_nobody_comes_any_more(task: Task, tmp_path: Path) -> None:
    """Of 6 clients one is there for two minutes: what was learned until then is the result."""
    there = tmp_path / "there.csv"
    there.write_text("3,0s,2m\n")
    found = federate(task, "fedbuff(buffer=3)", 6, per_round=6, rounds=20, availability=there, compute="20s", **EQUAL)
    assert found.participation
    states = [one.state for one in found.participation.rounds]
    assert len(states) < 20 and states[-1] == "not begun"
    assert found.updates == found.participation.committed == states.count("committed") > 0


@pytest.mark.parametrize("given", [{"least": 0.5}, {"overlap": False}])
def test_fedbuff_refuses_what_belongs_to_rounds(task: Task, given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="belongs to rounds, and fedbuff has none: omit it"):
        federate(task, "fedbuff", 6, per_round=6, **given, **EQUAL)

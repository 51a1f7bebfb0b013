"""The launcher's list of lost workers: one event for each loss, however fast they follow each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from covey.engines.process.launcher.rebirths import Rebirths, Renewal
from covey.engines.process.launcher.roster import RoleRecord
from covey.membership import Deaths
from covey.message import Address
from covey.observe.membership import MembershipEvent

WHO = Address("worker", 1)
KILLED = "exited with signal 9, SIGKILL"


@pytest.fixture
def told() -> list[MembershipEvent]:
    return []


@pytest.fixture
def rebirths(told: list[MembershipEvent]) -> Rebirths:
    roster: Any = SimpleNamespace(
        trainers=[WHO], roles=[WHO], seen={WHO: RoleRecord(heard=0.0, step=7)},
        tallies={WHO: SimpleNamespace(samples=32)},
    )  # fmt: skip
    renewal = Renewal(Deaths(9), lambda who, lives: "ipc://nowhere", told.append)
    rebirths = Rebirths(roster, cast(Any, None), renewal, print)
    rebirths.begun = True
    return rebirths


def heard(phase: str = "training") -> Any:
    return SimpleNamespace(phase=phase, inbox={}, hear=lambda: None)


@pytest.mark.parametrize("who", ["server", "master", "scorer"])
def test_only_workers_are_replaced(rebirths: Rebirths, who: str) -> None:
    assert not rebirths.lost(Address(who, 0), KILLED, heard()) and not rebirths.seats


def test_a_worker_that_exits_by_itself_or_before_training_begins_is_not_replaced(rebirths: Rebirths) -> None:
    assert not rebirths.lost(WHO, "exited with code 3", heard())
    assert not rebirths.lost(WHO, KILLED, heard("warming"))
    rebirths.begun = False
    assert not rebirths.lost(WHO, KILLED, heard()) and not rebirths.seats


def test_a_worker_that_had_done_all_its_steps_is_neither_missed_nor_replaced(rebirths: Rebirths) -> None:
    rebirths.roster.seen[WHO].ended = True
    assert rebirths.lost(WHO, KILLED, heard())
    assert not rebirths.seats and not rebirths.log.events and rebirths.present([WHO]) == []


def test_a_life_that_dies_before_it_begins_is_an_event_of_its_own(
    rebirths: Rebirths, told: list[MembershipEvent]
) -> None:
    for loss in range(3):
        assert rebirths.lost(WHO, KILLED, heard())
        assert len(rebirths.log.events) == len(told) == loss + 1 and rebirths.seats[WHO].step == 7
    first, second, last = rebirths.log.events
    assert [(event.who, event.view, event.cause) for event in (first, second, last)] == [
        ("worker 1", view, "killed by signal 9") for view in (1, 2, 3)
    ]
    assert first.stalled > 0 and second.stalled > 0 and last.stalled == 0, "the third life has not begun yet"
    assert [event.stalled for event in told] == [0.0, 0.0, 0.0], "it is told at once"

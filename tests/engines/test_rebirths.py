"""The launcher's list of lost workers: one event for each loss, however fast they follow each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from covey.engines.process.launcher.rebirths import Rebirths, Renewal
from covey.engines.process.launcher.roster import RoleRecord
from covey.membership import Deaths
from covey.message import Address
from covey.observe.membership import MembershipEvent

WHO = Address("worker", 1)


def test_a_life_that_dies_before_it_begins_is_an_event_of_its_own() -> None:
    roster: Any = SimpleNamespace(
        trainers=[WHO], roles=[WHO], seen={WHO: RoleRecord(heard=0.0, step=7)},
        tallies={WHO: SimpleNamespace(samples=32)},
    )  # fmt: skip
    heard: Any = SimpleNamespace(phase="training", inbox={}, hear=lambda: None)
    told: list[MembershipEvent] = []
    renewal = Renewal(Deaths(9), lambda who, lives: "ipc://nowhere", told.append)
    rebirths = Rebirths(roster, cast(Any, None), renewal, print)
    rebirths.begun = True
    for loss in range(3):
        assert rebirths.lost(WHO, "exited with signal 9, SIGKILL", heard)
        assert len(rebirths.log.events) == len(told) == loss + 1 and rebirths.seats[WHO].step == 7
    first, second, last = rebirths.log.events
    assert [(event.who, event.view, event.cause) for event in (first, second, last)] == [
        ("worker 1", view, "killed by signal 9") for view in (1, 2, 3)
    ]
    assert first.stalled > 0 and second.stalled > 0 and last.stalled == 0, "the third life has not begun yet"
    assert [event.stalled for event in told] == [0.0, 0.0, 0.0], "it is told at once"

"""The launcher's list of lost workers: one event for each loss, however fast they follow each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from covey.engines.process.launcher.rebirths import Rebirths, Renewal
from covey.engines.process.launcher.roster import RoleRecord
from covey.membership import Deaths
from covey.message import Address

WHO = Address("worker", 1)


def test_a_life_that_dies_before_it_begins_is_an_event_of_its_own() -> None:
    roster: Any = SimpleNamespace(
        trainers=[WHO], roles=[WHO], seen={WHO: RoleRecord(heard=0.0, step=7)},
        tallies={WHO: SimpleNamespace(samples=32)},
    )  # fmt: skip
    heard: Any = SimpleNamespace(phase="training", inbox={}, hear=lambda: None)
    renewal = Renewal(Deaths(9), lambda who, lives: "ipc://nowhere")
    rebirths = Rebirths(roster, cast(Any, None), renewal, print)
    rebirths.begun = True
    for loss in range(3):
        assert rebirths.lost(WHO, "exited with signal 9, SIGKILL", heard)
        assert len(rebirths.events) == loss and rebirths.seats[WHO].step == 7
    assert [(event.who, event.view, event.cause) for event in rebirths.events] == [
        ("worker 1", 1, "killed by signal 9"), ("worker 1", 2, "killed by signal 9"),
    ]  # fmt: skip
    assert all(event.stalled >= 0 for event in rebirths.events)

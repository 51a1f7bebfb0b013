"""Work of a role's compute thread: in a pause nothing begins, and nothing goes on with an answer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from covey.engines.process import control
from covey.engines.process.role.compute_requests import ComputeRequests
from covey.engines.process.role.compute_thread import Question, WorkDone


class Desk:
    """A role's driver that writes down what becomes of its work."""

    def __init__(self) -> None:
        self.told, self.begun, self.replies, self.waits = list[Any](), list[Any](), list[Any](), list[Any]()
        self.still = 0
        self.ended, self.step, self.last = False, 0, 9
        self.metrics = SimpleNamespace(
            computing=lambda: None, computed=lambda: None, watch=SimpleNamespace(stop=lambda: None),
            waited=lambda *wait: self.waits.append(wait),
        )  # fmt: skip
        self.line = SimpleNamespace(tell=self.told.append)
        self.links = SimpleNamespace(waive=lambda: None)
        self.host = SimpleNamespace(
            pace=self, compute_thread=SimpleNamespace(
                put=lambda work, through: self.begun.append(work), reply=lambda *given: self.replies.append(given)
            )
        )  # fmt: skip
        self.programs = SimpleNamespace(ended=False, running=[], launch=lambda running: None)

    def over(self, step: int) -> bool:
        return step >= self.last

    def report(self, now: bool = False) -> None: ...

    def stand_still(self) -> None:
        self.still += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def requests() -> tuple[ComputeRequests, Desk]:
    desk: Any = Desk()
    return ComputeRequests(desk), desk


def waiting() -> Any:
    return SimpleNamespace(effect=None)


def test_who_waits_for_the_end_of_a_pause_that_is_known_is_busy(clock: list[float]) -> None:
    """It will go on by itself, so it is no part of a stall; before the end is known nobody says so."""
    work, desk = requests()
    work.pause.begin()
    work.put(waiting())
    assert not work.busy and desk.begun == []
    work.pause.end(5.0)
    assert work.busy


@pytest.mark.parametrize(
    ("step", "frozen", "pauses"), [(3, False, False), (4, True, True), (5, True, True), (9, True, False)]
)
def test_a_role_pauses_at_its_step_unless_it_is_through(step: int, frozen: bool, pauses: bool) -> None:
    work, desk = requests()
    work.pause_at, desk.step = 4, step
    work.pause_here()
    assert desk.told == ([control.Frozen()] if frozen else []) and work.pause.on == pauses
    assert work.pause_at == (None if frozen else 4)


def test_who_pauses_already_does_so_from_when_it_began(clock: list[float]) -> None:
    work, desk = requests()
    work.begin_pause()
    work.put(waiting())
    clock[0] = 12.0
    work.freeze()
    work.pause.end(5.0)
    assert work.pause.deadline == 15.0 and desk.still == 1


def test_work_that_waits_for_an_answer_can_be_frozen_and_waits_on(clock: list[float]) -> None:
    work, desk = requests()
    work.running = waiting()

    async def answer() -> int:
        return 7

    question = Question(answer(), None)  # type: ignore[arg-type]
    work.take(question)
    clock[0] = 13.0
    work.freeze()
    assert desk.still == 1
    assert work.asking is not None
    with pytest.raises(StopIteration):
        work.asking.coroutine.send(None)
    assert desk.replies == [], "the run stands still"
    work.pause.end(0.0)
    assert work.pause.over()
    work.thaw()
    assert desk.replies == [(question, WorkDone(7, None))]
    assert desk.waits == [(10.0, "an answer for its work")] and work.asking is None

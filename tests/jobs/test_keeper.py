"""The keeper of a job lets workers go, and has others come, until there are as many as the head wants."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.jobs import keeper
from covey.jobs.keeper import AGAIN, WANTED, JobKeeper


class Told:
    """A keeper of three workers, whose processes are 100, 101 and 102; it runs nothing, and notes its signals."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.there, self.sent = 1000.0, {0: 100, 1: 101, 2: 102}, list[tuple[int, signal.Signals]]()
        self.folder = folder
        monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(keeper, "worker_processes", lambda launcher: self.there)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.sent.append((pid, number)))
        self.keeper: Any = object.__new__(JobKeeper)
        self.keeper.folder, self.keeper._ending, self.keeper._training = folder, False, lambda: True
        self.keeper._asked, self.keeper._called = {}, 0.0
        self.keeper.child = SimpleNamespace(pid=1, send_signal=lambda number: self.sent.append((1, number)))

    def signals(self, wanted: int, after: float = 0.2) -> list[tuple[int, signal.Signals]]:
        """Those that a look sends so many seconds later."""
        (self.folder / WANTED).write_text(str(wanted))
        self.now += after
        self.sent.clear()
        self.keeper._resize()
        return list(self.sent)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(tmp_path, monkeypatch)


def test_the_last_workers_go_and_each_is_told_once(told: Told) -> None:
    assert told.signals(1) == [(101, signal.SIGUSR2), (102, signal.SIGUSR2)]
    assert told.signals(1) == []
    del told.there[2]
    assert told.signals(1) == []


def test_a_worker_that_has_not_heard_that_it_is_to_go_is_told_again(told: Told) -> None:
    assert told.signals(2) == [(102, signal.SIGUSR2)]
    assert told.signals(2, after=AGAIN - 1) == []
    assert told.signals(2, after=2) == [(102, signal.SIGUSR2)]


def test_one_worker_at_a_time_is_asked_for_and_again_if_none_comes(told: Told) -> None:
    assert told.signals(5) == [(1, signal.SIGUSR1)]
    assert told.signals(5) == []
    assert told.signals(5, after=AGAIN / 10 + 0.1) == [(1, signal.SIGUSR1)]
    told.there |= {3: 103, 4: 104}
    assert told.signals(5, after=60) == []


def test_a_job_that_ends_or_does_not_train_yet_is_sent_nothing(told: Told) -> None:
    told.keeper._ending = True
    assert told.signals(1) == []
    told.keeper._ending, told.keeper._training = False, lambda: False
    assert told.signals(1) == []

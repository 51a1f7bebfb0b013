"""Who stands still: signs that do not change, by a clock that counts only the time in which the observer was awake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from covey.engines.process import liveness
from covey.engines.process.liveness import Silence, still


class Clock:
    """Time that passes when the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(liveness.time, "monotonic", lambda: self.now)

    def looks(self, silence: Silence[str], seconds: float, signs: dict[str, object]) -> list[str]:
        """Look often enough for so long; who is silent in the end."""
        silent: list[str] = []
        for _ in range(round(seconds / silence.every)):
            self.now += silence.every
            assert silence.due
            silent = silence.look(signs)
        return silent


def test_who_gives_no_sign_for_too_long_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    silence: Silence[str] = Silence(8.0)
    assert clock.looks(silence, 8.0, {"one": 1, "two": 1}) == []
    assert clock.looks(silence, 0.5, {"one": 1, "two": 2}) == []
    assert clock.looks(silence, 0.5, {"one": 1, "two": 2}) == ["one"]
    assert silence.quiet("one") == 8.5 and silence.quiet("two") == 0.5 and silence.quiet("three") == 0


def test_who_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    silence: Silence[str] = Silence(8.0)
    clock.looks(silence, 8.0, {"one": 1})
    clock.looks(silence, 4.0, {})
    assert clock.looks(silence, 8.0, {"one": 1}) == []


def test_the_observers_own_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    silence: Silence[str] = Silence(8.0)
    clock.looks(silence, 4.0, {"one": 1})
    clock.now += 3600
    assert silence.look({"one": 1}) == [] and silence.quiet("one") < 5
    assert silence.overslept() == 3600
    assert clock.looks(silence, 8.5, {"one": 1}) == ["one"]
    assert silence.overslept() == 0, "what happens later has nothing to do with it"


def test_a_busy_machine_that_looks_rarely_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    silence: Silence[str] = Silence(8.0)
    for _ in range(8):
        clock.now += 4.0  # it wanted to look every half second
        assert silence.look({"one": 1}) == []


def test_no_patience_is_shorter_than_what_an_idle_role_needs() -> None:
    assert Silence[str](0.01).stall == liveness.SHORTEST


def family(pid: int) -> list[int]:
    """A process, its children, theirs, and so on."""
    return [pid, *(one for child in liveness.children(pid) for one in family(child))]


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        for one in reversed(family(process.pid)):
            os.kill(one, signal.SIGKILL)
        process.communicate()


SPIN = "print(flush=True)\nwhile True: pass"
IDLE = "import select; print(flush=True); select.select([], [], [])"
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}]).wait()"


def changes(pid: int) -> bool:
    before = liveness.sign(pid)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        time.sleep(0.05)
        if liveness.sign(pid) != before:
            return True
    return False


def test_a_process_that_computes_gives_signs_and_a_stopped_one_does_not() -> None:
    with running(SPIN) as pid:
        assert changes(pid)
        os.kill(pid, signal.SIGSTOP)
        while liveness.state(pid) != "T":
            time.sleep(0.01)
        before = liveness.sign(pid)
        time.sleep(0.3)
        assert liveness.sign(pid) == before


def test_what_a_process_has_started_works_for_it_unless_it_is_stopped_itself() -> None:
    with running(CHILD.format(SPIN)) as pid:
        assert changes(pid)
        os.kill(pid, signal.SIGSTOP)
        while liveness.state(pid) != "T":
            time.sleep(0.01)
        before, (child,) = liveness.sign(pid), liveness.children(pid)
        until = liveness.cpu(child) + 2 * liveness.TICK * 1e9  # on a busy machine that takes its time
        while liveness.cpu(child) < until:
            time.sleep(0.01)
        assert liveness.sign(pid) == before


@pytest.mark.parametrize("generations", [1, 2, 3])
def test_however_far_down_something_computes_it_is_a_sign(generations: int) -> None:
    code = SPIN
    for _ in range(generations):
        code = CHILD.format(code)
    with running(code) as pid:
        assert len(family(pid)) == 1 + generations and list(liveness.descendants(pid)) == family(pid)[1:]
        assert changes(pid)


def test_an_idle_process_gives_no_sign() -> None:
    with running(IDLE) as pid:
        time.sleep(0.2)
        before = liveness.sign(pid)
        time.sleep(0.3)
        assert liveness.sign(pid) == before and liveness.state(pid) == "S"


def test_a_process_that_is_gone_is_nothing_to_stumble_over() -> None:
    with running(IDLE) as pid:
        pass
    assert liveness.cpu(pid) == -1 and liveness.state(pid) == "" and not liveness.children(pid)


def test_a_sandbox_without_clocks_of_others_has_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(clock: int) -> int:
        raise OSError

    monkeypatch.setattr(liveness.time, "clock_gettime_ns", refuse)
    assert liveness.cpu(os.getpid()) > 0


@pytest.mark.parametrize(("how", "words"), [("T", "was stopped by a signal"), ("D", "disk"), ("S", "longer stall=")])
def test_words(how: str, words: str) -> None:
    assert words in still("worker 1", how, 30.0) and "use for 30 s" in still("worker 1", how, 30.0)

"""Faults that were asked for on real processes: kill and stop, by signals, at their time."""

from __future__ import annotations

import signal
import time
from typing import Any

import msgspec
import pytest
import torch

from covey.engines.process.forking.role_processes import describe
from covey.engines.signal_faults import SignalFaults
from covey.errors import PeerLost, PlanError
from covey.message import Address
from covey.simulate.faults import parse_faults
from tests.real.harness import Room, fit

SLOW = "time.sleep(0.01)"
ROLES = [Address("worker", 0), Address("worker", 1)]


def test_a_killed_role_is_lost_and_the_run_restarts(room: Room) -> None:
    task = room.task(before_step=SLOW)
    result = fit(
        task, "bsp", 2, steps=80, checkpoint=room.path / "kept", every="0.2s", on_failure="restart",
        faults="kill worker 1@600ms", save=None,
    )  # fmt: skip
    calm = fit(task, "bsp", 2, steps=80)
    assert all(torch.equal(result.weights[name], calm.weights[name]) for name in calm.weights)
    assert isinstance(result.membership, list) and [event.who for event in result.membership] == ["worker 1"]
    assert not isinstance(result.goodput, msgspec.UnsetType) and result.goodput.accepted == result.samples


def test_without_restart_it_ends_the_run_by_name(room: Room) -> None:
    with pytest.raises(PeerLost, match=r"worker 1 exited with signal 9, SIGKILL, as planned \(kill worker 1@300ms\)"):
        fit(room.task(before_step=SLOW), "bsp", 2, steps=400, faults="kill worker 1@300ms")


def test_a_stopped_role_goes_on(room: Room) -> None:
    result = fit(room.task(before_step=SLOW), "bsp", 2, steps=60, faults="stop worker 1@200ms for 1.5s; kill 0@900s")
    assert result.seconds > 1.5 and result.stopped == "budget"
    assert result.failures == ["kill worker 0@900s: the run ended before it"]


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ("drop worker 0 -> worker 1@1s", "only kill, stop, leave, join are possible, by signals"),
        ("disk full@1s for 1s", "use covey simulate"),
        ("kill worker 1#7", "effects are counted only in virtual time; give a time"),
        ("leave worker 1@5s; join worker 1@2s", "begins with a worker in every seat, and worker 1 would join before"),
        ("kill worker 7@1s", "no such role; this run has worker 0, worker 1"),
    ],
)
def test_what_signals_cannot_do_is_refused(faults: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        SignalFaults(parse_faults(faults), ROLES)


def test_signals_go_to_those_that_live_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, Any]] = []
    now = [100.0]
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    faults = SignalFaults(parse_faults("stop worker 0@1s for 2s; kill worker 1@2s"), ROLES)
    alive = {ROLES[0]: 7, ROLES[1]: 8}
    faults.strike(alive)
    faults.begin()
    for second, expected in [
        (0.5, []), (1.0, [(7, signal.SIGSTOP)]), (1.5, []), (2.0, [(8, signal.SIGKILL)]), (3.0, [(7, signal.SIGCONT)]),
        (9.0, []),
    ]:  # fmt: skip
        now[0] = 100 + second
        sent.clear()
        faults.begin()
        faults.strike(alive if second < 2 else {ROLES[0]: 7} if second > 2 else alive)
        assert sent == expected, second
    assert faults.unmet == []


def test_a_process_that_took_the_place_of_a_stopped_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, Any]] = []
    now = [100.0]
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    faults = SignalFaults(parse_faults("stop worker 0@1s for 2s"), ROLES)
    faults.begin()
    now[0] = 101.0
    faults.strike({ROLES[0]: 7})
    now[0] = 104.0
    faults.strike({ROLES[0]: 9})
    assert sent == [(7, signal.SIGSTOP)]


def test_who_is_to_join_waits_for_one_that_leaves_and_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("os.kill", lambda pid, number: None)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    plan = "leave 1@1s; join 1@2s; join 1@5s; leave 1@6s; leave 1@7s; join 1@8s"
    faults, gone = SignalFaults(parse_faults(plan), ROLES), ROLES[1:]
    faults.begin()
    seen = [(1, [], []), (2, [], []), (3, gone, gone), (5, [], []), (6, [], []), (8, gone, gone)]
    for second, empty, joining in seen:
        now[0] = 100.0 + second
        faults.strike({who: 7 for who in ROLES if who not in empty})
        assert faults.joining(empty) == joining, second
    assert faults.unmet == ["join worker 1@5s: worker 1 was there", "leave worker 1@7s: worker 1 was not there"]


def test_only_a_planned_kill_is_called_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.kill", lambda pid, number: None)
    faults = SignalFaults(parse_faults("kill worker 1@1ms"), ROLES)
    faults.begin()
    time.sleep(0.01)
    faults.strike({ROLES[0]: 7, ROLES[1]: 8})
    how = describe(-signal.SIGKILL)
    assert faults.told(ROLES[0], how) == how and "out of memory" in how
    assert faults.told(ROLES[1], how) == "exited with signal 9, SIGKILL, as planned (kill worker 1@1ms)"
    assert faults.told(ROLES[1], how) == how, "its next incarnation was not killed by the plan"

"""A run that goes on after a loss keeps checkpoints, too, and starts again from them when it cannot go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.engines.process.launcher.keeping import CheckpointKeeper
from covey.engines.process.launcher.quiescence import Quiescence
from tests.real.harness import Room, fit
from tests.real.test_continue import AT_STEP, Killer, weights

DYING = """
class Dying(torch.optim.SGD):
    "One process of the run dies when its state is asked for, once that is armed."
    def state_dict(self):
        if (HERE / "armed").exists() and first("died"):
            os.kill(os.getpid(), 9)
        return super().state_dict()
"""


def same(result: covey.Result, other: covey.Result) -> bool:
    return all(map(torch.equal, weights(result), weights(other))) and result.samples == other.samples


def events(result: covey.Result) -> list[str]:
    return [event.event for event in result.membership] if isinstance(result.membership, list) else []


def once_before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, act: Callable[[], object]) -> None:
    """Do this before the second call of a method."""
    method, calls = getattr(owner, name), [0]

    def called(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            act()
        return method(*given, **named)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize(("owner", "name"), [
    (Quiescence, "hold"), (Quiescence, "drain"), (CheckpointKeeper, "stood_still"),
])  # fmt: skip
@pytest.mark.parametrize("strategy", ["bsp", pytest.param("allreduce", marks=pytest.mark.full)])
def test_a_worker_that_is_killed_while_the_run_is_being_kept_is_restarted(
    room: Room, strategy: str, owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before all are held, when they are, and just after they have copied their state."""
    kept, task = room.path / "kept", room.task(before_step=AT_STEP)
    plain = fit(task, strategy, 2, steps=90)
    once_before(monkeypatch, owner, name, lambda: room.kill("worker 1"))
    result = fit(task, strategy, 2, steps=90, on_failure="continue", checkpoint=kept, every="100ms")
    assert events(result) == ["rebirth"] and same(result, plain)
    assert same(fit(task, strategy, 2, steps=90, on_failure="continue", resume=kept), plain)


def test_a_worker_that_dies_while_it_copies_its_state_drops_that_checkpoint(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, more = room.path / "kept", {"more": DYING, "optimizer": "Dying(params, lr=0.05, momentum=0.9)"}
    task = room.task(before_step=AT_STEP, **more)
    plain, killer = fit(task, "allreduce", 2, steps=90), Killer(room)
    once_before(monkeypatch, CheckpointKeeper, "copy", (room.path / "armed").touch)
    result = fit(task, "allreduce", 2, steps=90, on_failure="continue", checkpoint=kept, every="100ms", watcher=killer)
    assert events(result) == ["rebirth"] and same(result, plain)
    told = [line for line in killer.said if line.startswith("could not write a checkpoint")]
    assert len(told) == 1 and "was lost before it had written its state; training goes on" in told[0]
    assert sum(line.startswith("wrote checkpoint") for line in killer.said) > 1
    assert same(fit(task, "allreduce", 2, steps=90, resume=kept), plain)


def test_what_cannot_go_on_starts_again_from_the_newest_checkpoint(room: Room) -> None:
    """First a worker is lost, then the server; the new attempt loses a worker, too."""
    kept, task, victims = room.path / "kept", room.task(before_step=AT_STEP), ["worker 1", "server 0", "worker 0"]

    class Patient(Killer):
        def update(self, now: Any) -> None:
            if any(kept.glob("checkpoint-*")):
                super().update(now)

    killer = Patient(room, *victims)
    result = fit(task, "bsp", 2, steps=150, on_failure="continue", checkpoint=kept, every="100ms", watcher=killer)
    assert events(result) == ["rebirth", "restart", "rebirth"] and same(result, fit(task, "bsp", 2, steps=150))
    assert isinstance(result.membership, list)
    assert [event.who for event in result.membership] == victims
    assert [event.view for event in result.membership] == [1, 2, 3]
    assert all(0 < event.stalled < 30 for event in result.membership)
    seconds = [event.seconds for event in result.membership]
    assert seconds == sorted(seconds) and seconds[-1] < result.seconds


def test_all_workers_lost_at_once_start_again(room: Room) -> None:
    kept, task = room.path / "kept", room.task(before_step=AT_STEP)

    class Both(Killer):
        def update(self, now: Any) -> None:
            if self.victims and now.phase == "training" and any(kept.glob("checkpoint-*")):
                pids = [self.room.find(who) for who in self.victims]
                self.victims.clear()
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)  # so that none of them hears of the other
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)

    killer = Both(room, "worker 0", "worker 1")
    result = fit(task, "allreduce", 2, steps=150, on_failure="continue", checkpoint=kept, every="100ms", watcher=killer)
    assert events(result)[-1] == "restart" and same(result, fit(task, "allreduce", 2, steps=150))
    told = "was lost, and no other worker had the model; the run starts again"
    assert any(told in line for line in killer.said)


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "ssp", "dpsgd", "gosgd", "local_sgd"])
def test_many_losses_between_many_checkpoints(room: Room, strategy: str) -> None:
    kept: Path = room.path / "kept"
    killer = Killer(room, *(f"worker {number % 2}" for number in range(12)), every=40)
    task, goes_on = room.task(before_step=AT_STEP), {"on_failure": "continue", "max_failures": 20}
    result = fit(task, strategy, 3, steps=240, checkpoint=kept, every="30ms", watcher=killer, **goes_on)
    assert events(result) == ["rebirth"] * 12, f"{result.membership}"
    assert sum(line.startswith("kept") for line in killer.said) > 12
    again = fit(task, strategy, 3, steps=240, resume=kept)
    assert again.samples == result.samples == fit(task, strategy, 3, steps=240).samples

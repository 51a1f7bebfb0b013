"""Checkpoints are written while training goes on: it stands still for a copy only, and nothing half is left."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.observe.progress import Progress
from tests.real.harness import Room, Watch, differing, fit, interrupt, trained

PACE = "time.sleep(0.004)"
SLOW = 0.7  # seconds for which a commit takes


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Commits take long; when each began and ended."""
    commit, times = CheckpointDirectory.commit, list[tuple[float, float]]()

    def slowly(self: CheckpointDirectory, partial: Path, run: RunRecord) -> Path:
        begun = time.monotonic()
        time.sleep(SLOW)
        try:
            return commit(self, partial, run)
        finally:
            times.append((begun, time.monotonic()))

    monkeypatch.setattr(CheckpointDirectory, "commit", slowly)
    return times


class Steps(Watch):
    """When how many samples had been seen."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[tuple[float, int]] = []

    def update(self, progress: Progress) -> None:
        super().update(progress)
        self.seen.append((time.monotonic(), progress.samples))

    def within(self, begun: float, ended: float) -> int:
        inside = [samples for moment, samples in self.seen if begun <= moment <= ended]
        return inside[-1] - inside[0] if inside else 0


def test_training_goes_on_while_a_checkpoint_is_written(room: Room, slow: list[tuple[float, float]]) -> None:
    watch, kept = Steps(), room.path / "kept"
    result = fit(room.task(before_step=PACE), "bsp", 2, steps=250, checkpoint=kept, every="100ms", watcher=watch)
    assert result.stopped == "budget" and len(slow) >= 2
    assert all(watch.within(*times) > 40 for times in slow[:-1]), "at least ten steps of two workers"
    assert all(after > before for (_, before), (after, _) in pairwise(slow)), "one at a time"
    told = [line for line in watch.said if "wrote checkpoint" in line]
    assert len(told) == len(slow), "the last one was completed before the run ended"
    assert CheckpointDirectory(kept).newest()[0].name in told[-1]


def test_an_interrupted_run_completes_its_newest(room: Room, slow: list[tuple[float, float]]) -> None:
    task, kept = room.task(before_step=PACE), room.path / "kept"
    whole = fit(task, "bsp", 2, steps=300)
    asked: dict[str, Any] = {"steps": 300, "checkpoint": kept}
    broken = fit(task, "bsp", 2, **asked, every="50ms", watcher=Watch(trained(200), interrupt))
    run = CheckpointDirectory(kept).newest()[1]
    assert broken.stopped == "interrupted"
    assert broken.samples == sum(tally["samples"] for tally in run.progress["tallies"]) < whole.samples
    assert not list(kept.glob(".partial-*"))
    assert not differing(whole.weights, fit(task, "bsp", 2, steps=300, resume=kept).weights)


BIG = "nn.Sequential(nn.Linear(6, 3), nn.ParameterList([nn.Parameter(torch.zeros(8_000_000))]))"


def test_a_run_killed_while_it_writes_leaves_the_checkpoint_before(room: Room) -> None:
    """With 64 MB in each role writing takes far longer than the pauses between."""
    task, kept = room.task(model=BIG, before_step=PACE), room.path / "kept"
    Path(task).write_text(Path(task).read_text().replace("model(batch[0])", "model[0](batch[0])"))
    flags = ["--strategy", "allreduce", "--workers", "2", "--steps", "5000", "--threads", "1", "--every", "10ms"]
    run = room.start("-m", "covey", "run", task, *flags, "--checkpoint", kept)
    room.appears("kept/checkpoint-000002")
    before = len(CheckpointDirectory(kept).all())
    room.appears("kept/.partial-*/worker-1.safetensors")
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    room.wait_empty()
    record = CheckpointDirectory(kept).newest()[1]
    assert before and not record.torn and record.strategy == "allreduce"
    steps = 1 + max(tally["samples"] for tally in record.progress["tallies"]) // 4
    assert fit(task, "allreduce", 2, steps=steps, resume=kept).samples == 8 * steps


def test_auto_says_which_interval_it_chose(room: Room) -> None:
    watch, kept = Watch(), room.path / "kept"
    fit(room.task(before_step=PACE), "bsp", 2, steps=500, checkpoint=kept, every="auto", watcher=watch)
    told = [line for line in watch.said if line.startswith('every="auto": a checkpoint about every')]
    assert told and any("wrote checkpoint" in line for line in watch.said)

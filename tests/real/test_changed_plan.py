"""A run with other workers, servers or another strategy goes on from a checkpoint, and says what became of what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from covey.checkpoint import CheckpointDirectory
from covey.errors import CheckpointError
from tests.real.harness import BATCH_NORM, Room, Watch, differing, fit, interrupt, trained

PACE = "time.sleep(0.004)"
EPOCHS = 12
SGD = "torch.optim.SGD(params, lr=0.01)"
ADAM = "torch.optim.Adam(params, lr=0.01)"


def task_of(room: Room, name: str = "task.py", **given: Any) -> str:
    return room.task(name, **{"samples": 96, "before_step": PACE, "optimizer": ADAM, **given})


def broken(room: Room, task: str, strategy: str, workers: int = 2, **given: Any) -> tuple[Path, Any]:
    """A run that was interrupted, and where it is kept."""
    kept = room.path / "kept"
    watch = Watch(trained(150), interrupt)
    result = fit(task, strategy, workers, epochs=EPOCHS, checkpoint=kept, watcher=watch, **given)
    assert result.stopped == "interrupted"
    return kept, result


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], within: float = 1e-5) -> bool:
    """Apart from counters of batches, of which the largest goes on."""
    floats = [name for name, value in other.items() if value.is_floating_point()]
    return bool(floats) and all(torch.allclose(one[name], other[name], atol=within) for name in floats)


CHANGES = [
    ("bsp", "bsp", 3, {}), ("allreduce", "allreduce", 3, {}), ("local_sgd(period=3)", "local_sgd(period=3)", 3, {}),
    ("easgd(period=2)", "easgd(period=2)", 3, {}), ("bsp", "bsp", 1, {}), ("bsp", "bsp", 2, {"servers": 3}),
    ("bsp", "allreduce", 3, {}), ("allreduce", "ssp(bound=2)", 3, {"servers": 2}), ("easgd(period=2)", "bsp", 2, {}),
    ("gosgd", "local_sgd", 3, {}), ("diloco(period=1)", "allreduce", 3, {}), ("crossbow", "bsp", 3, {}),
    ("bsp + topk(density=0.1) + pull", "bsp", 3, {}), ("sliced", "allreduce", 3, {}),
    ("bmuf(period=1)", "dpsgd", 3, {}),
    ("petuum(bound=2)", "asynchronous", 3, {}), ("allreduce", "sliced", 3, {}), ("p3(slice=50)", "bsp", 3, {}),
    ("asynchronous", "downpour(push=3, fetch=2)", 3, {}), ("allreduce", "adpsgd", 4, {}), ("bsp", "malt", 3, {}),
]  # fmt: skip
QUICK = {("bsp", "bsp", 3), ("easgd(period=2)", "easgd(period=2)", 3)}


@pytest.mark.parametrize(
    ("before", "now", "workers", "more"),
    [pytest.param(*case, marks=() if case[:3] in QUICK else pytest.mark.full) for case in CHANGES],
)
def test_it_begins_with_the_model_that_was_kept_and_ends_when_all_is_seen(
    room: Room, before: str, now: str, workers: int, more: dict[str, Any]
) -> None:
    task = task_of(room, model=BATCH_NORM)
    kept, past = broken(room, task, before)
    watch = Watch()
    still = fit(task, now, workers, steps=1, resume=kept, watcher=watch, **more)  # more than that was done
    assert still.samples == past.samples and close(still.weights, past.weights)
    assert any(line.startswith("this run has ") and "by name" in line for line in watch.said), watch.said
    assert any(line.startswith(f"positions: after {past.samples} samples") for line in watch.said)
    again = fit(task, now, workers, epochs=EPOCHS, resume=kept, checkpoint=kept, every="50ms", **more)
    assert again.stopped == "budget" and abs(again.samples - EPOCHS * 96) <= 4 * workers
    newest = CheckpointDirectory(kept).newest()[1]
    assert newest.workers == workers and sum(newest.skipped) > 0
    assert fit(task, now, workers, epochs=EPOCHS, resume=kept, **more).samples == again.samples


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("bsp", {"servers": 2}), pytest.param("allreduce", {}, marks=pytest.mark.full)],
)
def test_as_if_nothing_had_changed(room: Room, strategy: str, more: dict[str, Any]) -> None:
    """Momentum, counts of steps, the schedule and the order of the samples go on; only who holds them is new."""
    rate = "rate=lambda progress: 1 - 0.9 * progress"
    task = task_of(room, model=BATCH_NORM.replace("nn.Dropout(0.3)", "nn.Identity()"), options=rate)
    whole = fit(task, "bsp", 2, epochs=EPOCHS, engine="simulated")
    kept, _ = broken(room, task, "bsp")
    resumed = fit(task, strategy, 2, epochs=EPOCHS, resume=kept, **more)
    assert resumed.samples == whole.samples
    assert close(resumed.weights, whole.weights, 1e-4)


def test_what_is_averaged_and_dropped_is_said(room: Room) -> None:
    task = task_of(room)
    kept, _ = broken(room, task, "local_sgd(period=3) + error_feedback + topk(density=0.1)")
    watch = Watch()
    fit(task, "local_sgd(period=3)", 3, steps=1, resume=kept, watcher=watch)
    (mean,) = [line for line in watch.said if line.startswith("averaged over worker 0 and worker 1: ")]
    assert "exp_avg" in mean and "exp_avg_sq" in mean
    (gone,) = [line for line in watch.said if line.startswith("dropped: ")]
    assert "workers' 'codec of means'" in gone


def test_what_cannot_be_is_refused(room: Room) -> None:
    task = task_of(room)
    kept, _ = broken(room, task, "bsp")

    def refused(reason: str, task: str, strategy: str = "allreduce", workers: int = 3) -> None:
        with pytest.raises(CheckpointError, match=reason):
            fit(task, strategy, workers, epochs=EPOCHS, resume=kept)

    other = task_of(room, name="other.py", model="nn.Sequential(nn.Linear(6, 3))")
    refused(r"another model: it has weight \(3, 6\) float32 where this has 0.weight", other)
    refused("optimizer is Adam, this one has SGD", task_of(room, name="other.py", optimizer=SGD))
    refused("batch_size 4, this one has 5", task_of(room, name="other.py", batch_size=5))
    refused("hold parts of the model: go on with the same strategy", task, "one_weird_trick")
    whole = fit(task, "bsp", 2, epochs=EPOCHS, engine="simulated")
    resumed = fit(task, "bsp", 2, epochs=EPOCHS, resume=kept)
    assert not differing(resumed.weights, whole.weights), "nothing was changed"

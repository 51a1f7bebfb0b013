"""Checkpoints of runs on a disk that is full, in a folder that is taken, and from a newest one that is torn."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.checkpoint import CheckpointDirectory
from covey.errors import CheckpointError
from tests.real.harness import Room, Watch, fit

PACE = "time.sleep(0.02)"


@pytest.fixture
def small(room: Room) -> Iterator[Path]:
    """A file system with room for nothing."""
    place = room.path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "covey", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system can be mounted only by root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_told_and_tried_again(room: Room, small: Path) -> None:
    def more() -> None:
        subprocess.run(["mount", "-o", "remount,size=8m", small], check=True)

    def full(now: object) -> bool:
        return any("No space left" in line for line in watch.said)

    watch = Watch(full, more)
    result = fit(room.task(before_step=PACE), "bsp", 2, epochs=20, checkpoint=small, every="100ms", watcher=watch)
    assert result.stopped == "budget" and watch.acted is not None
    first, *_, last = [line for line in watch.said if "checkpoint" in line]
    assert "could not write a checkpoint to" in first and "the next attempt is in 0.1 s" in first
    assert last.startswith("wrote checkpoint"), watch.said
    assert CheckpointDirectory(small).newest()[1].strategy == "bsp" and not list(small.glob(".partial-*"))


def test_a_folder_serves_one_run(room: Room) -> None:
    kept = room.path / "kept"
    with CheckpointDirectory(kept), pytest.raises(CheckpointError, match="another run keeps its checkpoints in"):
        fit(room.task(), "bsp", 2, epochs=1, checkpoint=kept)
    fit(room.task(), "bsp", 2, epochs=1, checkpoint=kept)
    fit(room.task(), "bsp", 2, epochs=1, checkpoint=kept)  # the run before has let go of it


def test_a_torn_checkpoint_gives_way_to_the_one_before(room: Room) -> None:
    task, kept = room.task(before_step=PACE), room.path / "kept"
    fit(task, "bsp", 2, epochs=12, checkpoint=kept, every="100ms")
    older, newer = CheckpointDirectory(kept).all()[-2:]
    os.truncate(newer / "worker-0.safetensors", 100)
    watch = Watch()
    assert fit(task, "bsp", 2, epochs=12, resume=kept, watcher=watch).stopped == "budget"
    told = [line for line in watch.said if "is torn" in line]
    assert f"{newer}/worker-0.safetensors" in told[0] and "from the checkpoint before" in told[0] and older.exists()

"""Readers that are killed at any batch: others, in any number, go on where the last whole batch ended."""

from __future__ import annotations

import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest
import torch

import covey
from covey.data.storage.stored import StoredData
from tests.data.stripe_cache.far_shards import assert_children, forked

BATCHES, BATCH = 40, 8  # of 50 samples: batches cross the ends of epochs


def reader(data: StoredData, place: Path, start: int, number: int, readers: int, pause: float = 0.0) -> None:
    """Write down the part of each batch that this reader gets, as a loop that keeps a checkpoint does."""
    parts = data.batches(BATCH, start=start, reader=number, readers=readers, seed=3)
    for batch, part in enumerate(islice(parts, BATCHES - start), start=start):
        text = " ".join(str(int(sample[0])) for sample in part)
        written = place / f"{batch:03}.{number}"
        written.with_suffix(".new").write_text(text)
        written.with_suffix(".new").rename(written)
        time.sleep(pause)


def order(place: Path, until: int = BATCHES) -> list[int]:
    """What all readers have read, batch by batch."""
    files = sorted(path for path in place.iterdir() if path.suffix != ".new" and int(path.name[:3]) < until)
    return [int(word) for path in files for word in path.read_text().split()]


@pytest.mark.parametrize("after", [1, 2, 4])
def test_who_goes_on_after_a_kill_reads_in_the_same_order(tmp_path: Path, after: int) -> None:
    covey.data.pack((torch.arange(50),), tmp_path / "set", columns=("x",), shard_bytes=200)
    data = covey.data.remote(tmp_path / "set", columns=("x",), cache=tmp_path / "cache")
    places = [tmp_path / name for name in ("unbroken", "killed")]
    for place in places:
        place.mkdir()
    assert_children(lambda: reader(data, places[0], 0, 0, 1))
    children = [forked(lambda number=number: reader(data, places[1], 0, number, 2, 0.003)) for number in range(2)]  # type: ignore[misc]
    while not (places[1] / f"{3 * after:03}.0").exists():
        time.sleep(0.001)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    whole = min(sum((places[1] / f"{batch:03}.{number}").exists() for batch in range(BATCHES)) for number in range(2))
    assert 0 < whole < BATCHES
    seen = order(places[1], whole)
    for path in places[1].iterdir():
        path.unlink()
    assert_children(*[lambda number=number: reader(data, places[1], whole, number, after) for number in range(after)])  # type: ignore[misc]
    assert seen + order(places[1]) == order(places[0])

"""Runs on far data say what they have read, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey.data.stripe_cache.read_counts import notes


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.full)])
def test_a_second_job_reads_nothing_from_the_source(tmp_path: Path, engine: str) -> None:
    x = torch.randn(64, 8)
    index = covey.data.pack((x, (x.sum(1) > 0).long()), tmp_path / "shards", columns=("x", "y"))
    size = sum(entry.size for entry in index.shards)

    def run(epochs: int) -> dict[str, float | None]:
        data = covey.data.remote(tmp_path / "shards", columns=("x", "y"), cache=tmp_path / "cache")
        task = covey.Task(
            model=lambda: nn.Linear(8, 2), data=data, loss=nn.functional.cross_entropy, batch_size=8,
            optimizer=lambda pairs: torch.optim.SGD([parameter for _, parameter in pairs], lr=0.1),
        )  # fmt: skip
        return covey.fit(task, "bsp", workers=2, engine=engine, epochs=epochs, runs=False).notes

    notes()  # of earlier tests
    first = run(epochs=2)
    if engine == "simulated":  # else the launcher may have read it, to look at a sample
        assert first["backend bytes"] == size
    assert first["peer bytes"] == 0
    second = run(epochs=1)
    assert second["backend bytes"] == 0 and (second["cached bytes"] or 0) > 0


def test_a_run_tells_nothing_of_what_was_read_before_it(tmp_path: Path) -> None:
    x = torch.randn(16, 8)
    covey.data.pack((x, x.sum(1)), tmp_path / "shards", columns=("x", "y"))
    data = covey.data.remote(tmp_path / "shards", columns=("x", "y"), cache=tmp_path / "cache")
    assert len(data[3]) == 2
    task = covey.Task(
        model=lambda: nn.Linear(8, 1), data=(x, x.sum(1, keepdim=True)), loss=nn.functional.mse_loss, batch_size=4,
        optimizer=lambda pairs: torch.optim.SGD([parameter for _, parameter in pairs], lr=0.1),
    )  # fmt: skip
    assert "backend bytes" not in covey.fit(task, "bsp", workers=2, engine="simulated", steps=2, runs=False).notes

"""Runs on far data say what they have read, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


SEEN: list[int] = []


def noted(sample: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    SEEN.append(int(sample[0][0]))
    return sample


def test_a_resumed_run_whose_workers_come_and_go_sees_each_sample_of_far_data_once(tmp_path: Path) -> None:
    x = torch.arange(48.0).repeat(8, 1).T.contiguous()
    covey.data.pack((x, x[:, :1]), tmp_path / "shards", columns=("x", "y"), shard_bytes=500)
    data = covey.data.remote(tmp_path / "shards", columns=("x", "y"), cache=tmp_path / "cache")
    task = covey.Task(
        model=lambda: nn.Linear(8, 1), data=data, loss=nn.functional.mse_loss, batch_size=4, transform=noted,
        optimizer=lambda pairs: torch.optim.SGD([parameter for _, parameter in pairs], lr=1e-6),
    )  # fmt: skip

    def run(workers: str, **given: Any) -> list[int]:
        SEEN.clear()
        covey.fit(task, "bsp", workers, engine="simulated", runs=False, scores=0, **given)
        return list(SEEN)

    before = run("1:2", steps=3, checkpoint=tmp_path / "kept", every="1ms")
    after = run("1:2", epochs=1, resume=tmp_path / "kept")
    assert len(set(before)) == 24
    assert set(before) | set(after) == set(range(48)) and not set(before) & set(after)


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

"""Models that ask for a strategy of their own are measured like others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from covey.calibrate import calibrate
from covey.task import load_task


def test_synchronized_batch_norm_is_measured_as_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are measured take no step together."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.SyncBatchNorm(16), nn.Linear(16, 10))

    monkeypatch.setattr("covey.calibrate.prices", lambda codecs: {})
    monkeypatch.setattr("covey.calibrate.rehearsed", lambda cluster, *_: cluster)
    assert 0 < calibrate(replace(load_task("examples/digits.py"), model=model), batches=5, threads=1).compute < 1

"""Preparers as processes of their own."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from tests.real.harness import differing, fit
from tests.worlds import mlp

CALLS = [0]


def noisy(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    x, y = sample
    return x * random.uniform(0.9, 1.1) + 0.1 * torch.randn(x.shape, dtype=x.dtype), y


def dying(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """Kill the process that transforms more than a batch: workers with preparers do not."""
    CALLS[0] += 1
    if CALLS[0] > 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_processes_prepare_the_same_samples() -> None:
    """Two workers: no sum has more than two members, so bits do not depend on the engine either."""
    task = {"samples": 50, "transform": noisy, "accumulate": 2, "batch_size": 4}
    real = fit(mlp(**task, preparers=3), "allreduce", 2, epochs=2)
    virtual = fit(mlp(**task), "allreduce", 2, epochs=2, engine="simulated")
    assert not differing(real.weights, virtual.weights)
    assert {"preparer 0", "preparer 1", "preparer 2"} <= set(real.roles)


def test_roles_that_import_the_task_have_the_number_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "noisy_task.py").write_text(
        "from tests.real.test_preparers import noisy\nfrom tests.worlds import mlp\n"
        "task = mlp(samples=50, transform=noisy)"
    )
    found = [fit(f"{tmp_path}/noisy_task.py:task", "allreduce", 2, epochs=1, preparers=count) for count in (0, 2)]
    assert not differing(found[0].weights, found[1].weights)
    assert [sum(name.startswith("preparer ") for name in one.roles) for one in found] == [0, 2]


LOSES_ONE = """
import os, signal
from pathlib import Path
from tests.real.test_preparers import noisy
from tests.worlds import mlp

LOST, CALLS = Path(__file__).with_name("lost"), [0]

def once(sample):
    CALLS[0] += 1
    if CALLS[0] > 60 and not LOST.exists():
        LOST.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return noisy(sample)

def task(preparers=0):
    return mlp(samples=100, transform=once, preparers=preparers, warm=False)
"""


@pytest.mark.full
def test_a_run_that_loses_a_preparer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "loses_one.py"
    file.write_text(LOSES_ONE)
    given = {"epochs": 6, "checkpoint": tmp_path / "kept", "every": "100ms", "on_failure": "restart"}
    found = fit(f"{file}:task(preparers=2)", "allreduce", 2, **given)
    assert (tmp_path / "lost").exists() and {"preparer 0", "preparer 1"} <= set(found.roles)
    assert any(event.event == "restart" for event in found.membership or ())
    whole = fit(f"{file}:task", "allreduce", 2, epochs=6)
    assert not differing(found.weights, whole.weights) and found.samples == whole.samples


def test_a_preparer_that_dies_is_named() -> None:
    with pytest.raises(covey.CoveyError, match="preparer 0"):
        fit(mlp(transform=dying, preparers=1, warm=False), "allreduce", 2, epochs=20)

"""A step that accumulates k batches is one with a batch k times as large, in any strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import covey
from covey.task import Task
from tests.worlds import mlp, sgd

MOMENTUM = sgd(0.1, momentum=0.9)


class Samples(Dataset[Any]):
    """The same samples one by one, as a loader's processes fetch them."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> Any:
        return tuple(column[index] for column in self.columns)


def largest(task: Task) -> tuple[Task, list[int]]:
    """The task, and how many samples each forward pass of this process has seen."""
    seen: list[int] = []
    assert task.loss is not None
    loss = task.loss

    def watched(output: Any, y: Any) -> torch.Tensor:
        seen.append(len(y))
        return loss(output, y)

    return replace(task, loss=watched), seen


def weights(task: Task, strategy: str, engine: str = "simulated") -> dict[str, torch.Tensor]:
    return covey.fit(task, strategy, 2, engine=engine, epochs=4, seed=3).weights


@pytest.mark.parametrize(
    "strategy",
    [
        "bsp", "allreduce", "local_sgd(period=2)", "easgd(period=2)", "gradient_coding(stragglers=1)",
        "allreduce(bucket=100)", "p3(slice=7)", "tictac(order=tac)", "staggered", "poseidon",
        "bytescheduler(partition=64, credit=200)", "bytescheduler(partition=64, credit=200, exchange=allreduce)",
    ],
)  # fmt: skip
def test_k_batches_are_one_k_times_as_large(strategy: str) -> None:
    """101 samples: the last step of an epoch has two whole batches and a short one, or less."""
    task = mlp(MOMENTUM, samples=101)
    small, seen = largest(replace(task, batch_size=6, accumulate=4))
    found, expected = weights(small, strategy), weights(replace(task, batch_size=24), strategy)
    assert max(seen) == 6, "no more samples are in memory at a time"
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-12, rtol=0)


@pytest.mark.parametrize("loaders", [0, 1])
def test_samples_that_are_loaded_one_by_one(loaders: int) -> None:
    task = mlp(MOMENTUM, samples=52)
    one_by_one = replace(task, data=Samples(task.data), batch_size=5, accumulate=3, loaders=loaders)
    found, expected = weights(one_by_one, "bsp"), weights(replace(task, batch_size=15), "bsp")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-12, rtol=0)


def test_on_processes_and_in_the_result() -> None:
    task = replace(mlp(MOMENTUM, samples=64), batch_size=4, accumulate=4)
    result = covey.fit(task, "allreduce", 2, epochs=2)
    expected = weights_of_large = covey.fit(replace(task, batch_size=16, accumulate=1), "allreduce", 2, epochs=2)
    assert result.settings["accumulate"] == 4 and "accumulate" not in expected.settings
    assert result.updates == expected.updates and result.samples == expected.samples
    for name, value in weights_of_large.weights.items():
        torch.testing.assert_close(result.weights[name], value, atol=1e-12, rtol=0)


def test_the_loss_told_is_the_mean_over_all_samples() -> None:
    task = mlp(sgd(0.0), samples=40)
    few, large = (
        covey.fit(replace(task, **sizes), "bsp", 1, engine="simulated", epochs=1).history[-1]["loss"]
        for sizes in ({"batch_size": 3, "accumulate": 4}, {"batch_size": 12})
    )
    assert few == pytest.approx(large, abs=1e-12)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(covey.PlanError, match="accumulate must be"):
        replace(mlp(), accumulate=0)
    with pytest.raises(covey.PlanError, match=r"use batch_size=32 and mesh\(microbatches=4\)"):
        covey.fit(replace(mlp(), accumulate=4), "allreduce with mesh(stage=2)", 2, engine="simulated", steps=1)

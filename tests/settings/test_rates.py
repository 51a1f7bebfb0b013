"""A learning rate that is NaN, infinite or negative is refused by name; it is not called divergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import covey
from covey import fit
from covey.errors import PlanError
from tests.run.loops import rate, train
from tests.worlds import mlp

WRONG = [float("nan"), float("inf"), -0.1]


def refused(words: str, run: Callable[[], Any]) -> None:
    with pytest.raises(PlanError, match=f"{words}.* a number from 0 up is needed"):
        run()


@pytest.mark.parametrize("wrong", WRONG[:2])  # torch itself refuses a negative one
@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "easgd"])
def test_of_a_tasks_optimizer(strategy: str, wrong: float) -> None:
    task = mlp(lambda params: torch.optim.SGD(params, lr=wrong))
    refused("learning rate of parameter group 0 is", lambda: fit(task, strategy, 2, engine="simulated", steps=2))


@pytest.mark.parametrize("wrong", WRONG)
def test_of_a_tasks_schedules(wrong: float) -> None:
    half: Any = lambda share: wrong if share >= 0.5 else 1.0  # noqa: E731
    for name, given in {r"Task: rate\(0\.5\)": {"rate": half}, "learning rate of parameter group 0": {
        "scheduler": lambda optimizer: LambdaLR(optimizer, lambda step: wrong if step > 2 else 1.0),
        "schedule_by": "batch",
    }}.items():  # fmt: skip
        refused(name, lambda given=given: fit(mlp(**given), "bsp", 2, engine="simulated", steps=4))  # type: ignore[misc]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "easgd"])
def test_of_a_loop(strategy: str, wrong: float) -> None:
    with pytest.raises(PlanError, match="parameter group 0 is"):
        train(strategy, rate(lambda step: wrong if step == 2 else 0.1))


@pytest.mark.parametrize("wrong", WRONG)
def test_of_a_loop_alone(wrong: float) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with covey.join(model, optimizer) as member:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.param_groups[0]["lr"] = wrong
        refused("learning rate of parameter group 0", member.step)


def test_a_schedule_that_ends_at_0_but_for_rounding_is_none_of_these() -> None:
    fit(mlp(rate=lambda share: -1e-16), "bsp", 2, engine="simulated", steps=2)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("samples", [128, 100])
def test_a_cycle_of_all_steps_of_the_run_has_its_last_rate_unused(workers: int, samples: int) -> None:
    """As in a plain loop, the scheduler is stepped once more after the last update: below 0, where nobody looks."""
    made: list[OneCycleLR] = []

    def cycle(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
        made.append(OneCycleLR(optimizer, 0.5, total_steps=steps, anneal_strategy="linear", cycle_momentum=False))
        return made[-1]

    fit(mlp(samples=samples, scheduler=cycle, schedule_by="batch"), "bsp", workers, engine="simulated", epochs=2)
    assert made[-1].last_epoch == made[-1].total_steps and made[-1].get_last_lr()[0] < 0

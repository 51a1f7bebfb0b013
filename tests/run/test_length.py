"""A schedule that follows the length of a run, where nobody said how long it is."""

from __future__ import annotations

from typing import Any

import pytest
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import covey
from covey.observe.progress import Progress
from tests.worlds import CLUSTER, mlp, sgd

SCHEDULES: dict[str, dict[str, Any]] = {
    "steps": {"scheduler": lambda optimizer, steps: CosineAnnealingLR(optimizer, steps + 1)},
    "progress": {"rate": lambda progress: 1 - progress / 2},
}


class Watcher:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, progress: Progress) -> None:
        pass

    def say(self, line: str) -> None:
        self.lines.append(line)


def said(settings: dict[str, Any], **given: Any) -> str:
    watcher = Watcher()
    task = mlp(sgd(0.1), samples=64, **settings)
    covey.fit(task, "bsp", 2, engine="simulated", cluster=CLUSTER, runs=False, watcher=watcher, **given)
    return "\n".join(watcher.lines)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_with_only_a_target_says_over_how_many_passes_its_schedule_is_spread(name: str) -> None:
    line = said(SCHEDULES[name], until="loss<=100")
    assert line.startswith("the learning-rate schedule is spread over 100 passes, as only until=")
    assert line.endswith("give epochs=… too, and it is spread over that many")


LENGTHS: list[dict[str, Any]] = [{"epochs": 2, "until": "loss<=100"}, {"steps": 3, "until": "loss<=100"}, {"steps": 2}]


@pytest.mark.parametrize("given", LENGTHS)
def test_nothing_is_said_where_the_length_is_known(given: dict[str, Any]) -> None:
    assert said(SCHEDULES["steps"], **given) == ""


@pytest.mark.parametrize("settings", [{}, {"scheduler": lambda optimizer: StepLR(optimizer, 2)}])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_nothing_is_said_of_other_schedules(settings: dict[str, Any], rate: float) -> None:
    assert said(settings, until="loss<=100", rate=rate) == ""

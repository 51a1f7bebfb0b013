"""A stopped run goes on with its schedule, its average, its stream and its loss scale, to the very same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.errors import PeerLost
from covey.observe.result import Result
from tests.real.harness import BATCH_NORM, Room, Watch, differing, fit, interrupt, trained

MORE = """
import random
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

def warmed_up(optimizer, steps):
    parts = [LinearLR(optimizer, 0.1, total_iters=9), CosineAnnealingLR(optimizer, steps - 9)]
    return SequentialLR(optimizer, parts, [9])

class Shuffled(torch.utils.data.IterableDataset):
    "Its order is drawn anew in each pass, from the generator of Python."

    def __iter__(self):
        return iter([(x[number], y[number]) for number in random.sample(range(len(x)), len(x))])

    def __len__(self):
        return len(x)
"""
CYCLE = "scheduler=lambda optimizer, steps: OneCycleLR(optimizer, 0.3, total_steps=steps + 1), schedule_by='batch'"
PLATEAU = (
    "scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode='max', patience=0, factor=0.7), "
    "schedule_by='accuracy', evaluate=score"
)
SETTINGS: dict[str, dict[str, Any]] = {
    "one cycle": {"options": CYCLE},
    "sequential": {"options": "scheduler=warmed_up, schedule_by='batch'"},
    "by passes": {"options": "scheduler=lambda optimizer: CosineAnnealingLR(optimizer, 7)"},
    "plateau": {"options": PLATEAU},
    "average": {"options": "ema=0.9"},
    "stream": {"data": "Shuffled()"},
    "fp16": {"options": "precision='fp16'"},
    "all of them": {"data": "Shuffled()", "options": f"{CYCLE}, ema=0.9, precision='fp16'"},
    "plateau and average": {"options": f"{PLATEAU}, ema=0.9"},
}
CASES = [(name, strategy, servers) for name in SETTINGS for strategy, servers in (("bsp", 2), ("allreduce", None))]
QUICK = [("all of them", "bsp", 2), ("plateau and average", "allreduce", None)]
ASKED: dict[str, Any] = {"epochs": 12}


def stopped(room: Room, task: str, strategy: str, servers: int | None, kept: Path) -> None:
    broken = fit(task, strategy, 2, servers=servers, **ASKED, checkpoint=kept, watcher=Watch(trained(150), interrupt))
    assert broken.stopped == "interrupted"


def killed(room: Room, task: str, strategy: str, servers: int | None, kept: Path) -> None:
    watch = Watch(lambda now: (kept / "checkpoint-000002").exists(), lambda: room.kill("worker 1"))
    with pytest.raises(PeerLost):
        fit(task, strategy, 2, servers=servers, **ASKED, checkpoint=kept, every="100ms", watcher=watch)


def check_same(whole: Result, resumed: Result) -> None:
    assert not differing(whole.weights, resumed.weights) and not differing(whole.ema, resumed.ema)
    assert (resumed.stopped, resumed.samples, resumed.updates) == ("budget", whole.samples, whole.updates)
    scores = [[row.get("accuracy") for row in result.history] for result in (whole, resumed)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("name", "strategy", "servers"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.full) for case in CASES],
)
@pytest.mark.parametrize("end", [stopped, pytest.param(killed, marks=pytest.mark.full)])
def test_it_goes_on_as_if_nothing_had_happened(
    room: Room, name: str, strategy: str, servers: int | None, end: Any
) -> None:
    kept = room.path / "kept"
    task = room.task(**{
        "more": MORE, "model": BATCH_NORM, "samples": 70, "batch_size": 8, "before_step": "time.sleep(0.01)",
        **SETTINGS[name],
    })  # fmt: skip
    whole = fit(task, strategy, 2, servers=servers, **ASKED)
    end(room, task, strategy, servers, kept)
    check_same(whole, fit(task, strategy, 2, servers=servers, **ASKED, resume=kept))

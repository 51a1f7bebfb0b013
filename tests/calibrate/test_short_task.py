"""The task of short runs: its processes get a few samples, and do not make it anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import covey
from covey.advise.real_steps import RealSteps
from covey.calibrate.rehearsal import foreseen
from covey.calibrate.short_task import FEWEST, ROOM, STEPS, shortened
from covey.simulate import Cluster
from covey.task import Task, load_task

DIGITS = "examples/digits.py"
COUNTED = """
import os
from dataclasses import replace
from pathlib import Path
from covey.task import load_task

with Path(__file__).with_suffix(".log").open("a") as log:
    log.write(f"{os.getpid()}\\n")
task = replace(load_task("examples/digits.py"), batch_size=8)
"""


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> Any:
        return torch.ones(64), number % 10


@pytest.fixture(scope="module")
def task() -> Task:
    return replace(load_task(DIGITS), batch_size=4)


def test_it_has_a_few_samples_of_its_own(task: Task) -> None:
    short = shortened(replace(task, callbacks=[covey.Callback()]), DIGITS, workers=2)
    assert isinstance(short, Task) and short.evaluate is None and not short.callbacks
    assert isinstance(short.data, TensorDataset) and isinstance(task.data, TensorDataset)
    for few, all_of_them in zip(short.data.tensors, task.data.tensors, strict=True):
        assert torch.equal(few, all_of_them[: 2 * STEPS * 4])
        assert few.untyped_storage().nbytes() == few.nbytes, "a view would be handed over with all that it is a part of"
    pair = shortened(replace(task, data=task.data.tensors), DIGITS, 2)
    assert isinstance(pair, Task) and isinstance(pair.data, tuple) and len(pair.data[0]) == 2 * STEPS * 4


def test_of_large_samples_it_has_fewer(task: Task) -> None:
    large = torch.zeros(4 * STEPS * 2, ROOM // 4 // 32)  # a step of two workers takes a quarter of the room
    for samples, steps in ((large, FEWEST), (large[:, : large.shape[1] // 4], 16)):
        short = shortened(replace(task, data=(samples, torch.zeros(len(samples)))), DIGITS, workers=2)
        assert isinstance(short, Task) and isinstance(short.data, tuple)
        assert 2 * 4 * (steps - 1) <= len(short.data[0]) <= 2 * 4 * steps, "the labels take a little of the room"


def test_what_processes_must_make_themselves_keeps_its_name(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock()
    assert isinstance(task.data, TensorDataset)
    for other in (
        replace(task, data=Squares()), replace(task, data=DataLoader(task.data, batch_size=4)),
        replace(task, sampler=range(10)), replace(task, model=lambda: lock and task.model()),
    ):  # fmt: skip
        assert shortened(other, DIGITS, 2) == DIGITS
    monkeypatch.setattr("covey.calibrate.short_task.LARGEST", 10_000)
    assert shortened(task, DIGITS, 2) == DIGITS


def test_a_file_that_changes_torch_is_imported_by_every_process(task: Task) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert shortened(task, DIGITS, 2) == DIGITS
    finally:
        torch.set_default_dtype(torch.float32)


def test_short_runs_do_not_read_the_data_again(tmp_path: Path) -> None:
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    task = load_task(str(file))
    short = shortened(task, str(file), 2)
    assert RealSteps(task=short, engine="local", workers=2).measure("allreduce", 2, 4, 0) > 0
    assert foreseen(task, "bsp", Cluster())
    assert len((tmp_path / "counted.log").read_text().splitlines()) == 1, "by this process only"

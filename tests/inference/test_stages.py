"""Models that are cut into stages and served by a row of processes."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from covey.cli import app
from covey.inference import cut_model
from covey.inference.cut_model import best_places, cut_at
from covey.inference.planning import measure_stages
from covey.inference.request_desk import FrontSettings
from covey.inference.served_model import ServedModel
from covey.inference.virtual_service import VirtualAnswer, VirtualService
from covey.model import build
from covey.parallelism.plan.measure import measure
from covey.parallelism.plan.profile import Profile
from covey.task import load_task
from tests.inference.running import PICKY, RunningEndpoint, asked, serving, until

TASK = (
    PICKY
    + '''
class Adding(Picky):
    def answer(self, rows):
        return rows + self.scale

class Doubling(Picky):
    def forward(self, rows):
        return rows * (1 + self.scale)

class Whole(nn.Module):
    """What it does depends on the data, and no part of it is a module."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, rows):
        return rows if rows.sum() > 0 else -rows

task = made(lambda: nn.Sequential(Doubling(), Adding(), Doubling()))
whole = made(Whole)
'''
)


@pytest.mark.parametrize(
    ("file", "stages"),
    [("digits", 2), *(pytest.param(file, 3, marks=pytest.mark.full) for file in ("fashion", "unbalanced"))],
)
def test_a_cut_model_answers_as_the_whole_one_does_to_the_bit(file: str, stages: int) -> None:
    task = load_task(f"examples/{file}.py")
    served = ServedModel(file, build.model(task, 0).eval(), task)
    cut = cut_at(served, best_places(served, stages))
    for count in (1, 5, 8):
        rows = torch.rand(count, *served.example().shape[1:])
        assert torch.equal(cut(rows), served(rows))
    assert [list(times.sizes) for times in measure_stages(cut, served.example(), 4)] == [[1, 2, 4]] * stages


def test_only_forwards_say_where_a_served_model_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer's backward, which serving never computes, would take as long as all the others."""
    task = load_task("examples/digits.py")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 4), nn.Linear(4, 4)).eval()

    def costs(*given: Any, **more: Any) -> Profile:
        found = measure(*given, **more)
        layers = [replace(one, forward=1.0, backward=9.0 * (not place)) for place, one in enumerate(found.layers)]
        return replace(found, layers=tuple(layers))

    monkeypatch.setattr(cut_model, "measure", costs)
    assert best_places(ServedModel("four", model, task), 2) == (1,)


def started(folder: Path, more: str) -> Any:
    save_file({f"{layer}.scale": torch.ones(1) for layer in range(3)}, folder / "three.safetensors")
    return serving(folder, deadline="100s", replicas="2", more=more, task=TASK, model="three.safetensors")


def test_a_stage_that_is_killed_under_load_costs_no_answer(tmp_path: Path) -> None:
    """An answer is 2 (2 x + 1); two replicas of three stages are six processes."""
    with started(tmp_path, "--stages 3 --threads 1") as endpoint:
        assert endpoint.predict(1, 2.5)[1]["output"] == [6.0, 12.0]
        with asked(endpoint, lambda number: [4.0 * number + 2, 6.0]) as found:
            for victim in (0, 1, 2):
                before, processes = sum(found.values()), endpoint.replicas()
                until(lambda before=before: sum(found.values()) > before + 100)  # type: ignore[misc]
                assert len(processes) == 6
                os.kill(processes[victim], signal.SIGKILL)
                until(lambda lost=victim + 1: endpoint.standing() == (2, lost))  # type: ignore[misc]
                assert len(set(endpoint.replicas()) - set(processes)) == 3, "the whole row is replaced"
        assert set(found) == {(200, True)}
        check_poison(endpoint)


def check_poison(endpoint: RunningEndpoint) -> None:
    """Inputs that raise in the second stage, or end it, spoil no others."""
    told: dict[float, tuple[int, Any]] = {}

    def ask(number: float) -> None:
        told[number] = endpoint.predict(number, 1)

    clients = [threading.Thread(target=ask, args=(number,)) for number in (*range(10), -5.0, 1e6, *range(10, 20))]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert told.pop(-5.0) == (500, {"error": "ValueError: a negative number"})
    assert told.pop(1e6) == (500, {"error": "2 replicas ended while they computed it"})
    assert told == {one: (200, {"output": [4.0 * one + 2, 6.0], "model": "three.safetensors"}) for one in range(20)}


@pytest.mark.parametrize(
    ("task", "stages", "why"),
    [
        ("task", 4, "the model can be cut into 3 parts at most, not 4"),
        pytest.param("whole", 2, "Whole cannot be cut: parts.py:", marks=pytest.mark.full),  # torch.export is slow
    ],
)
def test_what_cannot_be_cut_is_refused_in_the_words_of_covey_cut(
    task: str, stages: int, why: str, tmp_path: Path
) -> None:
    (tmp_path / "parts.py").write_text(TASK)
    names = ["scale"] if task == "whole" else [f"{layer}.scale" for layer in range(3)]
    save_file({name: torch.ones(1) for name in names}, tmp_path / "m.safetensors")
    where = f"{tmp_path / 'parts.py'}:{task}"
    shown = CliRunner().invoke(
        app, ["serve", str(tmp_path / "m.safetensors"), "--task", where, "--stages", str(stages), "--port", "0"]
    )
    cut = CliRunner().invoke(app, ["cut", where, "--stages", str(stages), "--microbatches", "1"])
    flat, other = (" ".join(one.output.split()) for one in (shown, cut))
    assert shown.exit_code == cut.exit_code == 2 and why in flat and why in other, (flat, other)


def test_a_range_of_replicas_in_stages_is_refused(tmp_path: Path) -> None:
    save_file({"scale": torch.ones(1)}, tmp_path / "m.safetensors")
    words = ["--task", "examples/digits.py", "--stages", "2", "--replicas", "1:3"]
    shown = CliRunner().invoke(app, ["serve", str(tmp_path / "m.safetensors"), *words])
    assert shown.exit_code == 2 and "write --replicas 1" in " ".join(shown.output.split())


def flooded(stages: int, requests: int = 300) -> tuple[VirtualService, list[VirtualAnswer]]:
    """Each batch takes 30 ms, divided among the stages."""
    settings = FrontSettings(objective=1.0, largest=1, in_flight=stages)
    service = VirtualService(settings, 1, [lambda n: 0.03 / stages] * stages)
    for _ in range(requests):
        service.request(0.1)
    return service, service.run()


def test_several_batches_are_in_flight() -> None:
    whole, cut = (flooded(stages)[1] for stages in (1, 3))
    assert {one.answer.status for one in (*whole, *cut)} == {200}
    assert max(one.answered for one in whole) == pytest.approx(0.1 + 300 * 0.03)
    assert max(one.answered for one in cut) == pytest.approx(0.1 + 302 * 0.01), "one each 10 ms, as the row is full"


def test_a_row_that_is_lost_again_costs_only_what_it_had_alone() -> None:
    """Three batches are in the row when it is lost first; then each goes alone, and the first is lost again."""
    settings = FrontSettings(objective=1.0, largest=4, in_flight=3)
    service = VirtualService(settings, 1, [lambda n: 0.1] * 3, link=0.001)
    for number in range(12):
        service.request(1 + number / 100)
    for lost in (1.15, 2.65):
        service.lose(lost, 0)
        service.join(lost + 1, 0)
    answers = service.run()
    assert [one.answer.status for one in answers].count(500) == 1
    assert sorted(one.answer.status for one in answers) == [200] * 11 + [500]


def test_a_row_that_is_lost_at_any_time_costs_no_answer() -> None:
    for seed in range(20):
        rng = Random(seed)
        service = VirtualService(FrontSettings(objective=1.0, largest=8, in_flight=3), 2, [lambda n: 0.01] * 3)
        for number in range(300):
            service.request(1 + number / 150, torch.tensor([float(number)]))
        rank, lost = rng.randrange(2), 1 + 2 * rng.random()
        service.lose(lost, rank)
        service.join(lost + 0.2, rank)
        for number, one in enumerate(service.run()):
            assert one.answer.status == 200 and one.answer.row.parts[0].item() == number


@pytest.mark.full
def test_the_plan_counts_a_machine_for_each_stage(tmp_path: Path) -> None:
    sizes = {"1.weight": (64, 64), "1.bias": (64,), "3.weight": (10, 64), "3.bias": (10,)}
    save_file({name: torch.zeros(*size) for name, size in sizes.items()}, tmp_path / "model.safetensors")
    words = ["serve", str(tmp_path / "model.safetensors"), "--task", "examples/digits.py", "--slo", "p90:1s"]
    files = ["--plan", "examples/arrivals.csv", "--prices", "examples/prices.toml", "--largest-batch", "8"]
    shown = CliRunner().invoke(app, [*words, *files, "--stages", "2", "--json", str(tmp_path / "plan.json"), "--quiet"])
    assert (shown.exit_code, shown.stdout) == (0, ""), shown.output
    first = json.loads((tmp_path / "plan.json").read_text())[0]
    assert (first["machine"], first["replicas"], first["price"]) == ("small", 1, pytest.approx(0.1))


def test_tied_weights_are_copied() -> None:
    """Nothing is trained, so that each stage may have them."""
    first = nn.Linear(4, 4)
    last = nn.Linear(4, 4)
    last.weight = first.weight
    task = load_task("examples/digits.py")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), first, last).eval()
    served = ServedModel("tied", model, task)
    rows = torch.rand(3, 8, 8)
    assert torch.equal(cut_at(served, [2])(rows), served(rows))

"""`covey cut` from the outside, and the picture it draws."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.parallelism import Schedule, Times, chain_of, inputs_of, loss_of, optimizer_state, simulate, timetable
from covey.report import gantt

TASK = """
import torch, covey
from torch import nn

def model():
    return nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), *(nn.Linear(4, 4) for _ in ()),
                         nn.Linear(512, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

x = torch.randn(256, 16)
task = covey.Task(model=model, data=(x, (x.sum(1) > 0).long()), batch_size=64,
                  optimizer=lambda params: torch.optim.Adam(params), loss=nn.functional.cross_entropy)
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "unbalanced.py"
    path.write_text(TASK)
    return str(path)


def test_cut_prints_writes_and_draws(task: str, tmp_path: Path) -> None:
    picture, answer = tmp_path / "cut.svg", tmp_path / "cut.json"
    flags = ["--stages", "2", "--microbatches", "4", "--memory", "100MB", "--bandwidth", "10gbit"]
    shown = CliRunner().invoke(app, ["cut", task, *flags, "--picture", str(picture), "--json", str(answer)])
    assert shown.exit_code == 0, shown.output
    for word in ("stage", "memory", "bubble", "traffic", "why", "equal", "100 MB"):
        assert word in shown.stdout
    found = json.loads(answer.read_text())
    assert found["schema"] == "covey.cut/1" and found["way"] == "sequential"
    best, equal = found["best"], found["equal"]
    assert len(best["stages"]) == 2 and best["after"] in (["0"], ["1"], ["2"], ["3"])  # around the one large layer
    assert equal["after"] != best["after"] or equal["step"] == best["step"]
    assert [stage["in_flight"] for stage in best["stages"]] == [2, 1]
    trained = sum(stage["weights"] for stage in best["stages"])
    assert trained == 4 * (16 * 512 + 512 + 512 * 512 + 512 + 512 * 8 + 8 + 72 + 18)
    assert best["stages"][1]["memory"] >= 4 * best["stages"][1]["weights"], "weights, gradient and Adam's two"
    ElementTree.fromstring(picture.read_text())
    assert "unbalanced.py · 1f1b · 2 stages" in picture.read_text()


@pytest.mark.parametrize(("flags", "bubble"), [("1f1b", "20.0%"), ("interleaved --chunks 2", "11.1%")])
def test_the_bubble_of_stages_that_are_alike_is_said_beside_what_is_foreseen(
    task: str, flags: str, bubble: str
) -> None:
    """Narayanan et al. (2021): of p stages, v chunks and m micro-batches (p - 1) / (v m + p - 1)."""
    asked = ["cut", task, "--stages", "2", "--microbatches", "4", "--timetable", *flags.split()]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert f"; {bubble} if all stages were alike" in " ".join(shown.stdout.split())


def test_micro_batches_divide_the_batch_and_one_machine_computes_it_whole(tmp_path: Path) -> None:
    """Of a batch of 8 in 8 parts each has one sample, although two are looked at; of 5 in 2 the larger has three."""
    found = {}
    for batch, parts in ((8, 8), (5, 2), (8, 1)):
        path = tmp_path / "small.py"
        path.write_text(TASK.replace("batch_size=64", f"batch_size={batch}"))
        shown = CliRunner().invoke(app, ["cut", str(path), "--microbatches", str(parts), "--json", "-", "--quiet"])
        assert shown.exit_code == 0, shown.output
        found[batch, parts] = json.loads(shown.stdout)
    first = {key: one["layers"][0]["sends"] for key, one in found.items()}
    assert first == {(8, 8): 1 * 512 * 4, (5, 2): 3 * 512 * 4, (8, 1): 8 * 512 * 4}
    assert {key: one["batch"] for key, one in found.items()} == {(8, 8): 8, (5, 2): 5, (8, 1): 8}
    eighth = [layer["sends"] + layer["returns"] for layer in found[5, 2]["layers"] if layer["name"] in ("0", "1", "2")]
    assert found[5, 2]["best"]["traffic"] == pytest.approx(eighth[0] / 3 * 5, rel=1e-6)
    step = {key: sum(layer["forward"] + layer["backward"] for layer in one["layers"]) for key, one in found.items()}
    assert found[8, 8]["alone"] < 0.7 * 8 * step[8, 8], "a batch at once takes less than its samples one by one"
    assert found[8, 1]["alone"] == pytest.approx(step[8, 1], rel=0.5), "layers together take what the model takes"
    said = CliRunner().invoke(app, ["cut", str(path), "--microbatches", "8"]).stdout
    assert "for a batch of 8 in 8 micro-batches" in " ".join(said.split())
    assert "one machine computes the batch of 8, uncut, in" in " ".join(said.split())


def test_micro_batches_of_one_sample_that_the_model_refuses_are_named(tmp_path: Path) -> None:
    path = tmp_path / "normed.py"
    path.write_text(TASK.replace("nn.Linear(512, 512)", "nn.BatchNorm1d(512)").replace("batch_size=64", "batch_size=8"))
    shown = CliRunner().invoke(app, ["cut", str(path), "--microbatches", "8"])
    assert shown.exit_code == 2 and "use 4 micro-batches or fewer" in " ".join(shown.stderr.split()), shown.output
    assert CliRunner().invoke(app, ["cut", str(path), "--microbatches", "4"]).exit_code == 0


def test_divided_layers_are_listed_with_what_stays_whole(task: str, tmp_path: Path) -> None:
    answer = tmp_path / "split.json"
    shown = CliRunner().invoke(app, ["cut", task, "--tensor", "3", "--json", str(answer)])
    assert shown.exit_code == 0, shown.output
    for word in ("column", "row", "stays whole", "2 units cannot be divided among 3 members", "covey run"):
        assert word in " ".join(shown.stdout.split()), shown.stdout
    found = json.loads(answer.read_text())
    assert found["schema"] == "covey.split/1" and found["tensor"] == 3
    assert {layer["name"]: layer["kind"] for layer in found["layers"]} == {
        "0": "column", "2": "row", "4": "column", "6": "row"
    }
    assert found["divided"] < found["bytes"] and "mesh(tensor=3)" in found["command"]
    refused = CliRunner().invoke(app, ["cut", task, "--tensor", "2", "--split", "9:column"])
    assert refused.exit_code == 2 and "there is no layer '9'" in refused.output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--stages 2 --memory 1kB", "no cut into 2 stages fits in 1 kB under 1f1b"),
        ("--stages 20", "into 9 parts at most, not 20"),
        ("--stages 4 --timetable 2bw --microbatches 2", "at least 4 micro-batches"),
        ("--timetable 3f1b", "there are plain, gpipe"),
        ("--microbatches 100", "a batch of 64 cannot be cut into 100"),
        ("--tied maybe", "write refuse or sum"),
        ("--after nowhere", "no module 'nowhere'"),
        ("--memory lots", "cannot read the size"),
    ],
)
def test_what_cannot_be_is_refused(task: str, flags: str, said: str) -> None:
    shown = CliRunner().invoke(app, ["cut", task, *flags.split()])
    assert shown.exit_code == 2
    assert said in " ".join(shown.stderr.split())


def test_the_planner_may_choose_stages_and_machines(task: str) -> None:
    shown = CliRunner().invoke(app, ["cut", task, "--machines", "3", "--timetable", "pipedream", "--json", "-"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert sum(stage["machines"] for stage in found["best"]["stages"]) <= 3
    assert len(found["equal"]["stages"]) == 3


def test_the_picture_has_a_block_for_every_move_and_the_bubble() -> None:
    plan = timetable(Schedule(microbatches=3), (1, 2))
    run = simulate(plan, Times(forward=[1, 1], backward=[2, 2], update=[0.5, 0.5]))
    drawn = gantt.draw(run, "<two> stages")
    ElementTree.fromstring(drawn)
    assert drawn.count("class='block F' x='") - 1 == 6 and drawn.count("class='block U' x='") - 1 == 3  # and a legend
    assert drawn.count("class='gap'") == len(run.gaps()) > 0
    assert "&lt;two&gt;" in drawn and "stage 1.1" in drawn and f"bubble, {run.bubble():.1%}" in drawn


def test_the_two_ends_of_a_task() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
            return self.layer(x) * (1 if mask is None else mask) * scale

    def make(**given: object) -> covey.Task:
        return covey.Task(
            model=Masked, data=(torch.ones(4, 3),), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            step=lambda model, batch: model(batch[0], **given).sum(),
        )  # fmt: skip

    model, batch = Masked(), (torch.randn(4, 3),)
    ones = torch.ones(4, 3)
    inputs = inputs_of(make(mask=ones), model, batch)
    assert [x is y for x, y in zip(inputs, (batch[0], ones), strict=True)] == [True, True]
    assert not model._forward_pre_hooks
    chain = chain_of(model, inputs)
    (stage,) = chain.stages([])
    assert torch.equal(loss_of(make(mask=ones), batch, chain.rebuild(stage(inputs))), model(*inputs).sum())
    with pytest.raises(covey.PlanError, match="x: Tensor, scale: float"):
        inputs_of(make(scale=2.0), model, batch)
    twice = covey.Task(
        model=Masked, data=(torch.ones(4, 3),), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        step=lambda model, batch: (model(batch[0]) + model(batch[0])).sum(),
    )  # fmt: skip
    with pytest.raises(covey.PlanError, match="more than once"):
        loss_of(twice, batch, ones)


def test_what_an_optimizer_keeps() -> None:
    def kept(make: object) -> float:
        return optimizer_state(make, nn.Linear(50, 20))  # type: ignore[arg-type]

    assert kept(lambda p: torch.optim.SGD(p, lr=0.1)) == 0
    assert kept(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) == 1
    assert kept(torch.optim.AdamW) == pytest.approx(2, abs=0.01)  # and a count for each

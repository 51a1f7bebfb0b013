"""Searches: trials pause and go on bit-equal, failures are rows, and the study can be interrupted and continued."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import covey
from covey.errors import PlanError
from covey.observe.records import recorded_runs
from covey.task.file import import_file
from covey.tune import StudyResult, studying, tune
from covey.tune.fused import train_together
from covey.tune.segment import Segment, SegmentOutcome, train_segment
from covey.tune.storage import NAME

pytest.importorskip("optuna")

FILE = """
import os, covey, torch
from torch import nn
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
def task(rate=0.1, width=8, fault=""):
    if fault == "raises":
        raise ValueError("a trial that crashes")
    if fault == "dies":
        os.kill(os.getpid(), 9)
    return covey.Task(
        model=lambda: nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)), data=(x, y),
        optimizer=lambda params: torch.optim.SGD(params, lr=rate, momentum=0.9), loss=nn.functional.cross_entropy,
        batch_size=16, evaluate=covey.accuracy((x, y)),
    )
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    place = tmp_path / "task.py"
    place.write_text(FILE)
    return str(place)


class TrialsHere:
    """Trains trials in this process, at once."""

    def __enter__(self) -> TrialsHere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prepare(self, task: str) -> None:
        self.module, self.done = import_file(Path(task)), []

    def start(self, segments: Sequence[Segment]) -> None:
        self.done += train_together(segments, self.module, "task")

    def finished(self, patience: float) -> list[SegmentOutcome]:
        found, self.done = self.done, []
        return found


class PowerCut(TrialsHere):
    """Everything ends while the third process is at work."""

    begun = 0

    def start(self, segments: Sequence[Segment]) -> None:
        self.begun += 1
        if self.begun == 3:
            raise SystemError("the power is cut")
        super().start(segments)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studying, "pool_of", lambda engine: TrialsHere())


def search(file: str, space: str = "rate=log(0.001, 0.1)", **given: object) -> StudyResult:
    usual = {"trials": 6, "epochs": 4, "slots": 2, "runs": False, "fuse": "never"}
    return tune(file, space, **{**usual, **given})


@pytest.mark.parametrize(("engine", "strategy", "workers"), [
    ("simulated", "bsp", 1), ("simulated", "allreduce", 2), pytest.param("local", "bsp", 2, marks=pytest.mark.full),
])  # fmt: skip
def test_trials_that_pause_and_go_on_are_bit_equal(
    file: str, tmp_path: Path, engine: str, strategy: str, workers: int
) -> None:
    """Three segments of a trial give the weights of one; on both engines of a search."""
    first = Segment(
        trial=0, task=f"{file}:task(rate=0.05)", strategy=strategy, metric="accuracy", folder=str(tmp_path), epochs=4,
        until=1, workers=workers, engine=engine,
    )  # fmt: skip
    found = []
    for until in (1, 2, 4):
        found.append(train_segment(Segment(**{**_fields(first), "until": until, "resumes": until > 1})))
        assert not found[-1].failure, found[-1].failure
        assert [epochs for epochs, _ in found[-1].curve] == list(range(1, until + 1))
    whole = covey.fit(first.task, strategy, workers, engine=engine, epochs=4, runs=False)
    kept = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in whole.weights.items())
    assert found[-1].curve[-1][1] == whole.history[-1]["accuracy"]


def _fields(segment: Segment) -> dict[str, object]:
    return {name: getattr(segment, name) for name in segment.__struct_fields__}


def test_asha_promotes_and_the_best_is_named(here: None, file: str, tmp_path: Path) -> None:
    found = search(file, trials=8, policy="asha(factor=2)", save=str(tmp_path / "best.safetensors"))
    reached = sorted(row.reached for row in found.trials)
    assert reached[0] == 1 and reached[-1] == 4 and {row.status for row in found.trials} <= {"paused", "finished"}
    best = found.trials[found.best]
    assert best.curve[-1][1] == max(row.curve[-1][1] for row in found.trials) and str(best.reached) in found.verdict
    words = shlex.split(found.train)
    assert words[:3] == ["covey", "run", best.task] and f"rate={best.point['rate']!r}" in best.task
    again = covey.fit(words[2], words[4], workers=int(words[6]), epochs=int(words[8]), engine="simulated", runs=False)
    if best.reached == 4:
        assert again.history[-1]["accuracy"] == best.curve[-1][1]
        assert torch.equal(load_file(tmp_path / "best.safetensors")["0.weight"], again.weights["0.weight"])


def test_what_crashes_or_dies_is_a_row(file: str) -> None:
    found = search(file, "fault=''|raises|dies, rate=0.05", policy="random", trials=3, epochs=1)
    told = {row.point["fault"]: row for row in found.trials}
    assert "ValueError: a trial that crashes" in told["raises"].why and told["raises"].status == "failed"
    assert "SIGKILL" in told["dies"].why and told["dies"].status == "failed"
    assert found.best == told[""].number and found.stopped == "trials"


def test_what_diverges_is_a_row(here: None, file: str) -> None:
    found = search(file, "rate=1e30|0.05", policy="asha(factor=2)", trials=2)
    lost = next(row for row in found.trials if row.point["rate"] == 1e30)
    assert lost.status == "failed" and "diverged" in lost.why
    assert found.trials[found.best].point["rate"] == 0.05


def test_workers_whose_numbers_are_not_finite_are_a_row_in_short_words(here: None, file: str) -> None:
    """The error of the run names the message in which they were sent, and to whom."""
    found = search(file, "rate=1e30|0.05", trials=2, policy="random", workers=2, epochs=1, strategy="bsp")
    lost = next(row for row in found.trials if row.point["rate"] == 1e30)
    assert lost.status == "failed" and re.fullmatch("diverged: its numbers were not finite at step [0-9]+", lost.why)


def test_a_strategy_that_refuses_the_task_is_a_row(here: None, file: str) -> None:
    found = search(file, "strategy=bsp|hogwild, rate=0.05", policy="random", trials=2, workers=2, epochs=1)
    told = {row.strategy: row for row in found.trials}
    assert told["hogwild"].status == "failed" and "momentum" in told["hogwild"].why and told["bsp"].status == "finished"


def test_when_nothing_can_be_scored_there_is_no_best(here: None, file: str) -> None:
    found = search(file, "fault=raises", trials=4)
    assert found.best is None and found.train == "" and "a trial that crashes" in found.verdict
    assert len(found.trials) == 1, "there is only one point"


def test_a_finite_space_is_tried_once_each(here: None, file: str) -> None:
    found = search(file, "rate=0.01|0.05, width=4|8", policy="random", trials=64, epochs=1)
    assert len({tuple(row.point.values()) for row in found.trials}) == len(found.trials) == 4


def test_the_same_seed_tries_the_same(here: None, file: str) -> None:
    one, other = (search(file, trials=4, slots=1, epochs=2) for _ in range(2))
    assert [(row.point, row.curve) for row in one.trials] == [(row.point, row.curve) for row in other.trials]
    third = search(file, trials=4, slots=1, epochs=2, seed=1)
    assert [row.point for row in third.trials] != [row.point for row in one.trials]


def test_a_study_goes_on_where_it_stopped(
    here: None, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cut of the power, then the rest: as many trials, none of them begun twice, and Optuna has them."""
    import optuna

    with monkeypatch.context() as patch:
        patch.setattr(studying, "pool_of", lambda engine: PowerCut())
        with pytest.raises(SystemError):
            search(file, trials=6, folder=tmp_path / "kept")
    whole = search(file, trials=6, folder=tmp_path / "kept")
    assert len(whole.trials) == 6 and whole.stopped == "trials" and all(row.curve for row in whole.trials)
    assert {row.status for row in whole.trials} == {"paused", "finished"}
    assert len({row.point["rate"] for row in whole.trials}) == 6, "what was drawn before is not drawn again"
    again = search(file, trials=6, folder=tmp_path / "kept")
    assert again.earlier == again.samples == whole.samples > whole.earlier
    assert [(row.point, row.curve) for row in again.trials] == [(row.point, row.curve) for row in whole.trials]
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "kept" / "optuna.log"))
    )
    kept = optuna.load_study(study_name=NAME, storage=storage)
    finished = [row.curve[-1][1] for row in whole.trials if row.status == "finished"]
    assert len([one for one in kept.trials if one.state.name != "FAIL"]) == 6 and kept.best_value == max(finished)
    with pytest.raises(PlanError, match="holds another study .*epochs 4, now 5"):
        search(file, trials=6, epochs=5, folder=tmp_path / "kept")


@pytest.mark.parametrize(("trials", "slots", "groups"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (18, 1, [16, 2])])
def test_trials_that_may_be_fused_are_divided_among_the_slots(
    file: str, monkeypatch: pytest.MonkeyPatch, trials: int, slots: int, groups: list[int]
) -> None:
    class Watched(TrialsHere):
        def start(self, segments: Sequence[Segment]) -> None:
            together.append(len(segments))
            self.done += [SegmentOutcome(trial=one.trial, curve=[(1, 0.5)], samples=1, seconds=1.0) for one in segments]

    together: list[int] = []
    monkeypatch.setattr(studying, "pool_of", lambda engine: Watched())
    search(file, policy="random", trials=trials, slots=slots, epochs=1, fuse="always")
    assert together == groups


def test_two_studies_do_not_share_a_folder(file: str, tmp_path: Path) -> None:
    from covey.tune.storage import StudyFolder

    with StudyFolder(tmp_path / "kept", {"a": 1}), pytest.raises(PlanError, match="another study uses"):
        search(file, folder=tmp_path / "kept")


def test_the_record_shows_the_study_and_its_trials(here: None, file: str, tmp_path: Path) -> None:
    found = search(file, trials=2, epochs=2, runs=tmp_path / "runs")
    (record,), unreadable = recorded_runs(tmp_path / "runs")
    assert not unreadable and record.facts.kind == "study" and record.status == "searched"
    assert record.verdict == found.verdict and record.history[-1]["accuracy"] == found.trials[found.best].curve[-1][1]
    assert {run.facts.run.task.partition("(")[0] for run in record.inside()} == {f"{file}:task"}
    assert json.loads((record.path / "result.json").read_text())["best"] == found.best


def test_of_a_loss_less_is_better_also_to_the_sampler(here: None, file: str, tmp_path: Path) -> None:
    import optuna

    found = search(file, metric="loss", policy="random", trials=2, epochs=1, folder=tmp_path / "kept", sampler="tpe")
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "kept" / "optuna.log"))
    )
    kept = optuna.load_study(study_name=NAME, storage=storage)
    assert kept.direction.name == "MINIMIZE" and kept.best_trial.number == found.best


def test_pbt_goes_on_from_the_weights_of_the_best(here: None, file: str) -> None:
    found = search(file, "rate=log(0.00001, 0.1)", policy="pbt(population=4, quantile=0.25)", trials=12, epochs=4)
    copies = [row for row in found.trials if row.parent is not None]
    assert copies, "somebody was among the worst quarter"
    for row in copies:
        parent = found.trials[row.parent]
        assert row.point["rate"] != parent.point["rate"] and row.reached > 1
        shared = [score for score in row.curve if score in parent.curve]
        assert shared[0] == parent.curve[0], "its curve begins as the parent's"
    assert any(row.status == "ended" for row in found.trials)


def test_pbt_in_a_space_of_all_kinds(here: None, file: str) -> None:
    """Copies keep what a checkpoint fixes: shapes, strategies and their settings; so none of them fails."""
    space = "rate=log(0.00001, 0.1), width=int(4, 16), strategy=bsp|ssp(bound=int(1, 4))"
    found = search(file, space, policy="pbt(population=4)", trials=10, epochs=3, workers=2)
    copies = [row for row in found.trials if row.parent is not None]
    assert copies and not [row.why for row in found.trials if row.why]
    for row in copies:
        parent = found.trials[row.parent]
        assert row.strategy == parent.strategy and row.point["width"] == parent.point["width"]


@pytest.mark.full
def test_pbt_on_real_processes(file: str) -> None:
    found = search(
        file, "rate=log(0.00001, 0.1)", policy="pbt(population=4)", trials=6, epochs=3, workers=2, engine="local"
    )
    copies = [row for row in found.trials if row.parent is not None]
    assert copies and not [row.why for row in found.trials if row.why] and found.best is not None
    for row in copies:
        parent = found.trials[row.parent]
        assert row.point["rate"] != parent.point["rate"] and row.curve[0] == parent.curve[0]


@pytest.mark.parametrize(("engine", "workers"), [("simulated", 1), pytest.param("local", 2, marks=pytest.mark.full)])
def test_a_copy_begins_with_the_same_bits_and_trains_with_its_own_rate(
    file: str, tmp_path: Path, engine: str, workers: int
) -> None:
    """A checkpoint has the settings of its optimizer; a copy of a trial uses its own instead (here almost 0)."""
    weights = {}
    for own in (True, False):
        usual = {
            "trial": 0, "strategy": "bsp", "metric": "accuracy", "epochs": 3, "folder": str(tmp_path / str(own)),
            "engine": engine, "workers": workers,
        }  # fmt: skip
        (tmp_path / str(own)).mkdir()
        train_segment(Segment(**usual, task=f"{file}:task(rate=0.05)", until=1))
        place = tmp_path / str(own) / "kept"
        kept = load_file(place / (place / "latest").read_text() / "server-0.safetensors")["replica/params/0"]
        later = Segment(**usual, task=f"{file}:task(rate=1e-30)", until=3, resumes=True, own_settings=own)
        assert not train_segment(later).failure
        model = load_file(tmp_path / str(own) / "model.safetensors")
        weights[own] = torch.cat([model[name].flatten() for name in ("0.weight", "0.bias", "2.weight", "2.bias")])
        assert torch.equal(weights[own], kept) == own, (weights[own] - kept).abs().max()


@pytest.mark.full
def test_ctrl_c_gives_the_best_so_far(file: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "covey", "tune", file, "--space", "rate=log(0.001, 0.1)", "--trials", "100000",
        "--epochs", "2", "--no-record", "--json", str(tmp_path / "study.json"), "--continue", str(tmp_path / "kept"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while len(list((tmp_path / "kept").glob("trials/*/outcome.json"))) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "is the best of" in out and "covey run" in out and "--continue" in err
    assert json.loads((tmp_path / "study.json").read_text())["stopped"] == "interrupted"
    alive = subprocess.run(["ps", "-eo", "args"], check=False, capture_output=True, text=True).stdout
    assert str(tmp_path) not in alive, "nothing is left behind"


@pytest.mark.parametrize(("given", "why"), [
    ({"policy": "ahsa"}, "no policy 'ahsa'"),
    ({"policy": "asha(factor=1)"}, "at least 2"),
    ({"engine": "ray"}, "trials run in virtual time"),
    ({"policy": "pbt", "space": "width=4|8"}, "with a range of uniform or log, and the space has none"),
    ({"policy": "pbt", "space": "width=int(4, 8)"}, "with a range of uniform or log, and the space has none"),
    ({"policy": "pbt", "trials": 8}, "there are at most 8: ask for more trials"),
    ({"within": "0s"}, "a search takes time"),
    ({"metric": "perplexity"}, "the task has no such metric; there are: accuracy, loss"),
    ({"until": "loss:0.1"}, "compares trials by accuracy"),
    ({"until": "accuracy:1.5"}, "lies between 0 and 1"),
    ({"trials": 0}, "at least 1"),
])  # fmt: skip
def test_what_cannot_be_searched_is_refused(file: str, given: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        search(file, **given)


def test_a_target_ends_the_search(here: None, file: str) -> None:
    found = search(file, "rate=log(0.01, 0.1)", trials=50, epochs=2, until="accuracy:0.6", slots=1)
    assert found.stopped == "target" and len(found.trials) < 50

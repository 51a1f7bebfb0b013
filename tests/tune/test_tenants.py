"""Several tasks share the slots: ease.ml decides whose model is trained next, really and in rehearsals."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import PlanError
from covey.policy.easeml import EaseMl
from covey.policy.search import WORST
from covey.tune import TenantsResult, tune_tenants
from covey.tune.outcomes import StudyResult, TrialRow
from covey.tune.space_reader import parse_space
from covey.tune.tenants import searching
from covey.tune.tenants.candidates import candidates, likeness
from covey.tune.tenants.model_choice import ModelChoice, TenantTrials
from covey.tune.tenants.rehearsing import rehearsed_tenants
from tests.tune.test_study import FILE, PowerCut, TrialsHere

pytest.importorskip("optuna")

WIDTHS = "width=2|4|8|16"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in ("north", "south"):
        (tmp_path / f"{name}.py").write_text(FILE)
    return [str(tmp_path / f"{name}.py") for name in ("north", "south")]


def recorded(*tops: float, trials: int = 12) -> TenantsResult:
    """Tasks whose trials 0, 1, … come ever nearer to their best, which takes as many seconds as its number + 1."""
    space = "rate=uniform(0, 1)"
    return TenantsResult(
        policy="easeml", metric="accuracy", better="higher",
        tenants=[
            StudyResult(
                task=f"{number}.py", space=space, policy="easeml", metric="accuracy", better="higher", workers=1,
                engine="simulated", epochs=1,
                trials=[
                    TrialRow(
                        number=at, asked=at, point={"rate": at / trials}, task="", strategy="bsp", status="finished",
                        curve=[(1, top - 0.5 * ((at - trials // 3) / trials) ** 2)], seconds=10.0,
                    )
                    for at in range(trials)
                ],
            )
            for number, top in enumerate(tops)
        ],
    )  # fmt: skip


def test_candidates_are_all_points_or_as_many_as_wanted_and_the_same_with_one_seed() -> None:
    few = parse_space("strategy=bsp|easgd(period=4|16), width=16|64")
    assert len(candidates(few, 64, 0)) == 6 and candidates(few, 64, 0) == candidates(few, 64, 0)
    many = parse_space("rate=log(1e-4, 1), size=int(1, 9), part=uniform(0, 1), deep=logint(1, 64), width=16|64")
    found = candidates(many, 50, 1)
    assert len(found) == 50 and found[:20] == candidates(many, 20, 1) != candidates(many, 20, 2)
    for point in found:
        assert 1e-4 <= point["rate"] <= 1 and point["size"] in range(1, 10) and point["deep"] in range(1, 65)
    assert 15 < sum(point["rate"] < 1e-2 for point in found) < 35, "equal chances for equal ratios"
    ends = parse_space("deep=logint(1, 2), rate=uniform(0, 1)")
    assert {point["deep"] for point in candidates(ends, 20, 0)} == {1, 2}, "also the highest number"
    with pytest.raises(PlanError, match="at most 1000 points for each task, not 1001"):
        candidates(many, 1001, 0)


def test_points_are_alike_that_are_near() -> None:
    space = parse_space("rate=log(1e-4, 1), strategy=bsp|easgd(period=int(1, 9))")
    points = [
        {"rate": 1e-2, "strategy": "bsp"}, {"rate": 2e-2, "strategy": "bsp"}, {"rate": 1.0, "strategy": "bsp"},
        {"rate": 1e-2, "strategy": "easgd", "strategy.easgd.period": 1},
    ]  # fmt: skip
    found = likeness(space, points)
    assert np.allclose(np.diag(found), 1) and np.allclose(found, found.T) and np.linalg.eigvalsh(found).min() > -1e-9
    assert found[0, 1] > 0.9 > found[0, 2] and found[0, 1] > found[0, 3]


def test_likeness_falls_as_a_normal_curve_that_is_half_a_range_wide() -> None:
    points = [{"rate": 1e-4, "strategy": "bsp"}, {"rate": 1e-2, "strategy": "bsp"}, {"rate": 1e-4, "strategy": "ssp"}]
    found = likeness(parse_space("rate=log(1e-4, 1), strategy=bsp|ssp"), points)
    assert found[0, 1] == pytest.approx(math.exp(-1 / 2)), "half a range apart"
    assert found[0, 2] == pytest.approx(math.exp(-2)), "another choice is as far as a whole range"


def test_every_task_has_a_first_trial_then_the_one_that_may_gain_most() -> None:
    space = parse_space("rate=uniform(0, 1)")
    points = [{"rate": at / 8} for at in range(9)]
    choice = ModelChoice([TenantTrials(space, points) for _ in range(3)], EaseMl())
    begun = [choice.next() for _ in range(3)]
    assert [number for number, _ in begun] == [0, 1, 2]  # type: ignore[misc]
    for (number, model), score in zip(begun, (0.9, 0.5, WORST), strict=True):  # type: ignore[misc]
        choice.ended(number, model, score, 1.0)
    assert choice.stalled == 1, "two have a better model than before, and one has failed"
    well_known, hardly_known = choice.tenants[:2]
    well_known.scores |= dict.fromkeys((0, 2, 4, 6, 8), 0.9)
    choice.tenants[2].open = False
    assert choice.next()[0] == 1, "of the first, each candidate lies between two that were tried"  # type: ignore[index]
    hardly_known.open = False
    assert choice.next()[0] == 0  # type: ignore[index]
    well_known.open = False
    assert choice.next() is None


def test_the_unit_of_scores_decides_nothing() -> None:
    """Whether a task may gain by what is expected, or by what is not known, is compared in shares of their spread."""
    space, flat = parse_space("rate=uniform(0, 1)"), dict.fromkeys((0, 1, 2, 6, 7, 8), 0.0)

    def chosen(unit: float) -> tuple[int, int] | None:
        choice = ModelChoice([TenantTrials(space, [{"rate": at / 8} for at in range(9)]) for _ in range(2)], EaseMl())
        choice.tenants[0].scores = {at: unit * score for at, score in (flat | {3: 1.0, 5: 1.0}).items()}
        choice.tenants[1].scores = {4: unit}
        return choice.next()

    assert chosen(1e-4) == chosen(1.0) == chosen(1e4)


def test_a_score_that_no_float_can_square_is_as_a_trial_that_failed() -> None:
    space = parse_space("rate=uniform(0, 1)")
    choice = ModelChoice([TenantTrials(space, [{"rate": at / 8} for at in range(9)]) for _ in range(2)], EaseMl())
    choice.tenants[0].scores = {0: -1e308, 1: 0.5, 2: 0.25, 3: WORST, 4: 1e160}
    choice.tenants[1].scores = {0: -1e308, 1: 1e308}
    assert choice.tenants[0].qualities == {0: 0.25, 1: 0.5, 2: 0.25, 3: 0.25, 4: 0.5}
    assert choice._spread() < 1 and choice.next() is not None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"point": {"rate": "x"}}, "trial 0 of 0.py has rate='x', which is not in uniform"),
        ({"point": {"rate": 1e308}}, "has rate=1e.308, which is not in uniform"),
        ({"seconds": -1.0}, "took -1 s: seconds are 0 to"),
        ({"seconds": 1e308}, "took 1e.308 s: seconds are 0 to"),
        ({"curve": [(1, 1e160)]}, ""),
    ],
)
def test_a_file_that_no_search_has_written_is_refused(change: dict[str, object], why: str) -> None:
    whole = recorded(0.9, 0.8)
    for name, value in change.items():
        setattr(whole.tenants[0].trials[0], name, value)
    with pytest.raises(PlanError, match=why) if why else nullcontext():
        rehearsed_tenants(whole, slots=1)


def test_a_file_with_no_task_or_too_many_trials_is_refused() -> None:
    with pytest.raises(PlanError, match="has no task: record one"):
        rehearsed_tenants(recorded(), slots=1)
    with pytest.raises(PlanError, match="0.py has 1001 trials; at most 1000"):
        rehearsed_tenants(recorded(0.9, trials=1001), slots=1)


def test_what_candidates_cost_is_predicted_from_those_that_are_alike() -> None:
    space = parse_space("rate=uniform(0, 1), width=1|2|3")
    one = TenantTrials(space, [{"rate": rate, "width": width} for rate, width in ((0, 1), (0, 2), (0, 3), (0.01, 1))])
    assert one.costs(usual=0.0) == [1.0] * 4
    one.scores, one.seconds = {0: 0.5, 1: 0.5}, {0: 100.0, 1: 1.0}
    costs = one.costs(usual=10.0)
    assert costs[0] == pytest.approx(10, rel=0.9) and costs[1] < 0.3
    assert costs[2] == pytest.approx(1.0), "like neither of them: their geometric mean"
    assert costs[3] == pytest.approx(costs[0], rel=0.1)


def test_a_rehearsal_finds_the_best_of_each_sooner_than_taking_turns() -> None:
    found = rehearsed_tenants(recorded(0.9, 0.8, 0.95), slots=1)
    assert set(found.seconds) == {"easeml", "turns", "queue"} and found.best == "easeml"
    assert found.seconds["easeml"] < 0.7 * found.seconds["turns"] < found.seconds["queue"]
    assert rehearsed_tenants(recorded(0.9, 0.8, 0.95), slots=3).seconds["easeml"] < found.seconds["easeml"]


@pytest.mark.usefixtures("here")
def test_slots_go_round_and_all_is_tried(files: list[str]) -> None:
    found = tune_tenants(files, WIDTHS, epochs=2, slots=2, runs=False)
    assert [len(study.trials) for study in found.tenants] == [4, 4] and found.stopped == "trials"
    assert found.order[:2] == [(0, 0), (1, 0)] and len(found.order) == 8
    for study in found.tenants:
        assert sorted(row.point["width"] for row in study.trials) == [2, 4, 8, 16]
        assert study.best is not None and f"width={study.trials[study.best].point['width']}" in study.train
    few = tune_tenants(files, WIDTHS, epochs=2, slots=2, trials=3, runs=False)
    assert sum(len(study.trials) for study in few.tenants) == 3, "of all tasks together"
    easy = tune_tenants(files, WIDTHS, epochs=2, slots=1, until="accuracy>=0.1", runs=False)
    assert easy.stopped == "target" and len(easy.order) == 2, "each has its own"


@pytest.mark.usefixtures("here")
def test_a_search_goes_on_where_it_was_cut_off(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    kept = tmp_path / "kept"

    def search() -> TenantsResult:
        return tune_tenants(files, "rate=log(1e-3, 1)", epochs=1, slots=1, trials=6, folder=kept, runs=False)

    with monkeypatch.context() as patch:
        patch.setattr(searching, "pool_of", lambda engine: PowerCut())
        with pytest.raises(SystemError):
            search()
    points = [json.loads(file.read_text())["point"] for file in sorted(kept.glob("*/trials/*/trial.json"))]
    found = search()
    assert sum(len(study.trials) for study in found.tenants) == len(found.order) == 6
    assert points and all(point in [row.point for study in found.tenants for row in study.trials] for point in points)
    for study in found.tenants:
        assert len({row.point["rate"] for row in study.trials}) == len(study.trials), "nothing is tried twice"
    with pytest.raises(PlanError, match="holds another study"):
        tune_tenants([*files[::-1]], "rate=log(1e-3, 1)", epochs=1, trials=6, folder=kept, runs=False)


def test_the_command_trains_for_both_and_rehearses_what_it_wrote(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "both.json"
    asked = ["tune", *files, "--space", "width=2|8", "--policy", "easeml", "--epochs", "1", "--slots", "2"]
    shown = CliRunner().invoke(app, [*asked, "--json", str(out), "--runs", str(tmp_path / "runs")])
    assert shown.exit_code == 0, shown.output
    assert "4 trials of 2 tasks; with a best model: 2" in shown.stdout
    assert shown.stdout.count("covey run") == 2 and len(list((tmp_path / "runs").iterdir())) == 2
    whole = json.loads(out.read_text())
    assert whole["schema"] == "covey.tenants/1" and [one["task"] for one in whole["tenants"]] == files
    again = CliRunner().invoke(app, ["tune", str(out), "--rehearse"])
    assert again.exit_code == 0 and "is the best for these tasks" in again.stdout and "turns" in again.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a.py --policy easeml", "name two files or more"),
        ("a.py b.py", "asha searches for one task: several share the slots by --policy easeml"),
        ("a.py b.py --policy easyml", "did you mean 'easeml'"),
        ("a.py b.py --policy easeml(stalled=0)", "at least 1 is needed"),
        ("a.py a.py --policy easeml", "a.py is there twice"),
        ("a.py b.py --policy easeml --save m.safetensors", "--save writes one model, and each task has one"),
        ("a.py b.py --policy easeml --fuse always", "--fuse always: easeml begins one trial at a time"),
        ("a.py b.py --policy easeml --sampler tpe", "--sampler tpe: easeml chooses among points"),
        ("a.py loss.py --policy easeml", "loss.py is scored by loss, and a.py by accuracy"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.py").write_text(FILE)
    Path("loss.py").write_text(FILE.replace("evaluate=covey.accuracy((x, y)),", ""))
    shown = CliRunner().invoke(app, ["tune", *words.split(), "--space", "width=2|8"])
    assert shown.exit_code == 2 and said in " ".join(shown.stderr.split()), shown.output


def test_two_files_are_not_rehearsed(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["tune", "a.json", "b.json", "--rehearse"])
    assert shown.exit_code == 2 and "--rehearse reads one file" in shown.stderr
    bad = recorded(0.9, 0.8)
    bad.tenants[1].trials = []
    with pytest.raises(PlanError, match="no trial that was scored to its end"):
        rehearsed_tenants(bad, 1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "pool_of", lambda engine: TrialsHere())

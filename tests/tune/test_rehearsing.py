"""Rehearsals: recorded curves under every policy, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import PlanError
from covey.policy.curves import outlook
from covey.policy.halving import Asha, RandomSearch
from covey.policy.rehearsal import Recorded, rehearse
from covey.policy.search import SearchLimits
from covey.tune.outcomes import StudyResult, TrialRow
from covey.tune.rehearsing import rehearsal_of, rehearsed
from covey.tune.storage import StudyFolder


def study(trials: int = 16, epochs: int = 8, better: str = "higher") -> StudyResult:
    """Whole curves, of which trial 5 is the best, and one that failed."""
    rows = []
    for number in range(trials):
        top = 1.0 if number == 5 else 0.3 + 0.5 * ((number * 7) % trials) / trials
        curve = [(epoch, top * (1 - 0.4 / epoch)) for epoch in range(1, epochs + 1)]
        curve = curve if better == "higher" else [(epoch, 2 - value) for epoch, value in curve]
        rows.append(TrialRow(
            number=number, asked=number, point={}, task="f.py", strategy="bsp", status="finished", curve=curve,
            seconds=epochs * 2.0,
        ))  # fmt: skip
    rows.append(TrialRow(number=trials, asked=trials, point={}, task="f.py", strategy="bsp", status="failed", why="x"))
    return StudyResult(
        task="f.py", space="", policy="random", metric="accuracy", better=better, workers=1, engine="simulated",
        epochs=epochs, trials=rows,
    )  # fmt: skip


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_the_best_policy_is_named(better: str) -> None:
    found = rehearsed(study(better=better), slots=2)
    told = {one.policy: one for one in found.policies}
    top = 0.95 if better == "higher" else 1.05
    assert set(told) == {"random", "asha", "hyperband", "pop", "tupaq"} and told["random"].best == pytest.approx(top)
    assert told["random"].epochs == 16 * 8 + 1 and told["asha"].epochs < 64 and told["asha"].best == pytest.approx(top)
    assert told[found.best].best == pytest.approx(top) and found.best != "random" and found.best in found.verdict
    assert told["random"].seconds == pytest.approx(8 * 16.0, rel=0.1), "two slots, 16 s each"


def test_curves_that_end_early_are_continued_as_expected() -> None:
    short = Recorded(tuple((epoch, 0.9 - 0.4 / epoch) for epoch in range(1, 5)))
    assert short.scores(8, 8)[0][1] == pytest.approx(0.85, abs=0.02)
    whole = study()
    whole.trials[3].curve = whole.trials[3].curve[:2]
    assert rehearsed(whole, 2).expected == 1
    assert outlook([(1, 0.5)], 8).deviation > outlook([(1, 0.5), (2, 0.6), (3, 0.65), (4, 0.67)], 8).deviation


def test_the_best_is_the_best_last_score_as_in_a_study() -> None:
    curves = [Recorded(((1, 0.2), (2, 0.9), (3, 0.5))), Recorded(((1, 0.3), (2, 0.5), (3, 0.6)), seconds=2.0)]
    found = rehearse(RandomSearch(), curves, SearchLimits(epochs=3, trials=2, slots=2))
    assert (found.best, found.found) == (0.6, 6.0)


def test_slots_are_used_and_never_exceeded() -> None:
    curves = [Recorded(((1, 0.1), (2, 0.2)), seconds=3.0) for _ in range(6)]
    for slots, seconds in ((1, 36.0), (2, 18.0), (4, 12.0)):
        found = rehearse(RandomSearch(), curves, SearchLimits(epochs=2, trials=6, slots=slots))
        assert found.seconds == seconds and found.epochs == 12


def test_hundreds_of_trials_are_rehearsed() -> None:
    curves = [Recorded(tuple((e, (n * 7919 % 1000) / 1000 * (1 - 0.5 / e)) for e in (1, 4, 16))) for n in range(500)]
    found = rehearse(Asha(), curves, SearchLimits(epochs=16, trials=500, slots=8))
    assert found.trials == 500 and found.epochs < 0.3 * 500 * 16


def test_the_command_prints_the_policies_and_names_the_best(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(study().to_json())
    shown = CliRunner().invoke(app, ["tune", str(file), "--rehearse", "--slots", "2"])
    assert shown.exit_code == 0, shown.output
    assert all(name in shown.stdout for name in ("random", "hyperband", "tupaq")) and "is the best for" in shown.stdout


def test_the_folder_of_a_study_is_rehearsed(tmp_path: Path) -> None:
    """What --continue keeps: what was asked, and a file for each trial."""
    whole = study(better="lower")
    asked = {name: getattr(whole, name) for name in ("task", "space", "policy", "metric", "better", "workers")}
    asked |= {"engine": "simulated", "epochs": whole.epochs, "seed": 0, "strategy": "bsp", "source": "0"}
    with StudyFolder(tmp_path / "kept", asked) as folder:
        for row in whole.trials:
            folder.write(row)
    assert rehearsal_of(tmp_path / "kept", 2) == rehearsed(whole, 2)
    (tmp_path / "kept" / "study.json").write_text('{"a": 1}')
    with pytest.raises(PlanError, match="is no study that covey tune wrote"):
        rehearsal_of(tmp_path / "kept", 2)


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no study"):
        rehearsal_of(tmp_path / "none.json", 1)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(PlanError, match="is no study that covey tune wrote"):
        rehearsal_of(tmp_path / "x.json", 1)
    empty = study()
    for rows in ([], empty.trials[-1:]):
        empty.trials = rows
        with pytest.raises(PlanError, match="no curves"):
            rehearsed(empty, 1)


def test_a_curve_of_many_epochs_is_continued() -> None:
    long = [(epoch, 0.9 - 0.4 / epoch) for epoch in range(1, 2001)]
    assert outlook(long, 4000).mean == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(("given", "why"), [
    ({"epochs": 10**15}, r"`\$.epochs` is 1000000000000000, and a search writes 1 to 10,000 there"),
    ({"epochs": 0}, r"`\$.epochs` is 0"),
    ({"epochs": -5}, r"`\$.epochs` is -5"),
    ({"curve": [(1, 0.5), (10**15, 0.5)]}, r"`\$.trials\[1\].curve` is not scored after rising epochs from 1 to 8"),
    ({"curve": [(-4, 0.5), (1, 0.5)]}, "rising epochs"),
    ({"curve": [(2, 0.5), (1, 0.5)]}, "rising epochs"),
    ({"curve": [(1, -1e308)]}, r"`\$.trials\[1\].curve` has a score beyond 1e\+100"),
    ({"seconds": -5.0}, r"`\$.trials\[1\].seconds` is -5, and a search writes 0 to 1e\+09 there"),
    ({"seconds": 1e308}, "seconds` is 1e"),
])  # fmt: skip
def test_numbers_that_no_search_writes_are_refused(tmp_path: Path, given: dict[str, object], why: str) -> None:
    whole = study()
    for name, value in given.items():
        setattr(whole if name == "epochs" else whole.trials[1], name, value)
    (tmp_path / "x.json").write_text(whole.to_json())
    with pytest.raises(PlanError, match=why):
        rehearsal_of(tmp_path / "x.json", 1)

"""Every run leaves a record: what was asked, what happened, what came of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.compare import compare
from covey.observe.journal import JournalLine, JournalMoment, JournalScore
from covey.observe.records import RunRecordFolder, named, recorded_runs, remove
from covey.run.record import recording
from tests.warm import Warm

DIGITS = "examples/digits.py"



class Watch:
    """Hears what a person would see."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def update(self, progress: object) -> None:
        pass

    def say(self, line: str) -> None:
        self.said.append(line)


def records(runs: Path) -> list[RunRecordFolder]:
    found, unreadable = recorded_runs(runs)
    assert unreadable == []
    return found


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_record_has_facts_journal_and_result(tmp_path: Path, engine: str) -> None:
    result = covey.fit(DIGITS, "bsp", 2, engine=engine, epochs=3, scores=2, runs=tmp_path / "runs")
    (record,) = records(tmp_path / "runs")
    assert result.record == record.path and record.status == "budget"
    assert record.facts.run.strategy == result.strategy and record.facts.run.workers == 2
    assert record.facts.source == hashlib.sha256(Path(DIGITS).read_bytes()).hexdigest()
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    assert record.facts.commit == head
    assert (record.path / "result.json").read_text() == result.to_json()
    rows = {event.row["samples"]: event.row for event in record.events if isinstance(event, JournalScore)}
    assert list(rows.values()) == json.loads(result.to_json())["history"]
    assert any(isinstance(event, JournalMoment) and event.roles for event in record.events)


def test_a_record_of_this_process_has_no_source(tmp_path: Path) -> None:
    task = covey.task.load_task(DIGITS)
    covey.fit(task, "bsp", 2, engine="simulated", steps=2, runs=tmp_path)
    (record,) = records(tmp_path)
    assert (record.facts.source, record.facts.commit) == ("", "")


def test_where_records_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = str(Path(DIGITS).resolve())
    monkeypatch.chdir(tmp_path)

    def run(**where: object) -> list[str]:
        covey.fit(digits, "bsp", 2, engine="simulated", steps=1, **where)  # type: ignore[arg-type]
        return sorted(os.listdir(tmp_path))

    assert run(runs=False) == [] and run() == []  # tests set COVEY_RUNS to nothing
    monkeypatch.setenv("COVEY_RUNS", "mine")
    assert run() == ["mine"]
    monkeypatch.delenv("COVEY_RUNS")
    assert run() == ["mine", "runs"]
    (tmp_path / "file").write_text("")
    with pytest.raises(covey.PlanError, match='runs="file" is a file; name a folder'):
        run(runs="file")


def test_a_folder_that_cannot_be_written_costs_a_line_and_not_the_run(tmp_path: Path) -> None:
    watch = Watch()
    (tmp_path / "file").write_text("")
    result = covey.fit(
        DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path / "file" / "runs", watcher=watch
    )  # fmt: skip
    assert result.samples == 64 and result.record is None
    assert len(watch.said) == 1 and watch.said[0].startswith("this run is not recorded: ")


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(Path(DIGITS).read_text() + "\ndef broken(*_):\n    raise ValueError('no such luck')\n")
    file.write_text(file.read_text() + "import dataclasses\ntask = dataclasses.replace(task, loss=broken)\n")
    with pytest.raises(covey.CoveyError, match="no such luck"):
        covey.fit(str(file), "bsp", 2, engine="simulated", steps=3, runs=tmp_path / "runs")
    (record,) = records(tmp_path / "runs")
    assert record.status == "failed" and "no such luck" in record.why and record.result is None


def test_a_model_that_cannot_be_saved_leaves_its_result(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(covey.SaveError):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=2, save=tmp_path / "full", runs=tmp_path / "runs")
    (record,) = records(tmp_path / "runs")
    assert record.status == "failed" and record.result is not None and record.result.samples == 128


def test_a_killed_run_is_lost_and_what_it_had_is_there(tmp_path: Path, warm: Warm) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, covey\n"
        "class Watch:\n"
        "    def update(self, progress):\n"
        "        if progress.metrics: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    def say(self, line): pass\n"
        f"task = {str(Path(DIGITS).resolve())!r}\n"
        "covey.fit(task, 'bsp', 2, engine='simulated', epochs=50, runs='runs', watcher=Watch())\n"
    )
    assert warm.run([script], cwd=tmp_path).returncode == -9
    (record,) = records(tmp_path / "runs")
    assert record.status == "lost" and record.history and record.moment is not None


def test_a_comparison_is_one_record_with_many_runs(tmp_path: Path) -> None:
    found = compare(
        DIGITS, "bsp,local_sgd", 2, engine="simulated", until="accuracy>=0.9", repeat=2, runs=tmp_path / "runs"
    )
    (record,) = records(tmp_path / "runs")
    assert record.facts.kind == "comparison" and record.verdict == found.verdict and record.status == "compared"
    inside = record.inside()
    assert sorted(run.facts.run.seed for run in inside) == [0, 0, 1, 1]
    assert {run.facts.run.strategy.partition("(")[0] for run in inside} == {"bsp", "local_sgd"}
    assert "-comparison-" in record.facts.id
    assert named(tmp_path / "runs", inside[0].facts.id).path == inside[0].path


def test_names_and_removal(tmp_path: Path) -> None:
    for strategy in ("bsp", "easgd"):
        covey.fit(DIGITS, strategy, 2, engine="simulated", steps=1, runs=tmp_path / "runs")
    outside = tmp_path / "facts.json"
    outside.write_text("{}")
    record = named(tmp_path / "runs", "easgd")
    assert record.facts.run.strategy.startswith("easgd")
    with pytest.raises(covey.PlanError, match="is a part of 2 names"):
        named(tmp_path / "runs", "20")
    for name in ("..", "../runs", "", "nothing"):
        with pytest.raises(covey.PlanError, match="no record|part of"):
            named(tmp_path / "runs", name)
    remove(record)
    assert [one.facts.run.strategy.partition("(")[0] for one in records(tmp_path / "runs")] == ["bsp"]


def test_a_record_of_another_version_is_told_and_the_others_are_listed(tmp_path: Path) -> None:
    for _ in range(2):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path)
    first, second = records(tmp_path)
    facts = first.path / "facts.json"
    facts.write_text(facts.read_text().replace("covey.run/1", "covey.run/9"))
    found, unreadable = recorded_runs(tmp_path)
    assert [one.path for one in found] == [second.path]
    assert len(unreadable) == 1 and "another version of covey (covey.run/9, not covey.run/1)" in unreadable[0]


def test_a_refused_run_leaves_no_record(warm: Warm, tmp_path: Path) -> None:
    digits = Path(DIGITS).resolve()
    refused = [
        ["--resume", "nothing"], ["--faults", "kill server 9@1s"], ["--faults", "disk full@1s for 1s"],
    ]  # fmt: skip
    for words in refused:
        done = warm.run(["-m", "covey", "simulate", digits, "--steps", "1", "--runs", "runs", *words], tmp_path)
        assert done.returncode == 2 and done.stderr.count("Error:") == 1, done.stderr
        assert not list((tmp_path / "runs").glob("*")), words


def test_a_run_that_is_refused_after_it_trained_keeps_its_record(tmp_path: Path) -> None:
    known = covey.observe.result.RunFacts(task="", strategy="bsp", taxonomy={}, engine="local", workers=1)

    def failing(trained: bool) -> None:
        with recording(tmp_path, known, "", print) as made:
            assert made is not None
            if trained:
                made.journal.score({"samples": 32, "accuracy": 0.5})
            raise covey.PlanError("the loops differ")

    for trained in (False, True):
        with pytest.raises(covey.PlanError):
            failing(trained)
    (record,) = records(tmp_path)
    assert (record.status, len(record.history)) == ("failed", 1)


def test_a_record_that_cannot_be_written_is_not_shown_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = covey.run.record.atomic_file.write

    def full(path: Path, text: str, **how: bool) -> None:
        if path.name == "result.json":
            raise OSError(28, "No space left on device")
        whole(path, text, **how)

    monkeypatch.setattr("covey.atomic_file.write", full)
    with pytest.warns(UserWarning, match="the result is not in the record .*: No space left on device"):
        result = covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path)
    assert result.record is None


def test_a_record_that_cannot_be_written_is_told_also_to_who_wants_quiet(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["simulate", DIGITS, "--steps", "1", "--quiet", "--runs", str(tmp_path / "file" / "runs")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0 and told.stdout == "", told.output
    assert told.stderr.startswith("this run is not recorded: ") and told.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_written_gets_no_half_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str, **how: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("covey.atomic_file.write", full)
    with pytest.warns(UserWarning, match="this run is not recorded: .*: No space left on device"):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path)
    assert os.listdir(tmp_path) == []


class Failing(covey.Callback):
    def scored(self, row: object) -> None:
        raise ValueError("no such table")


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_what_is_said_is_kept(tmp_path: Path, engine: str) -> None:
    """A checkpoint, a callback that was dropped: the journal has every line that a person saw, and no other."""
    watch = Watch()
    kept = {"checkpoint": tmp_path / "kept", "every": "50ms"} if engine == "local" else {}
    covey.fit(
        DIGITS, "bsp", 2, engine=engine, epochs=3, callbacks=[Failing()], watcher=watch, runs=tmp_path / "runs",
        **kept,  # type: ignore[arg-type]
    )  # fmt: skip
    (record,) = records(tmp_path / "runs")
    assert [event.line for event in record.events if isinstance(event, JournalLine)] == watch.said
    assert sum("Failing failed in scored" in line for line in watch.said) == 1

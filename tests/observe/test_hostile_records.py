"""A folder of records in which somebody has put something else: each is told by name, nothing waits, nothing leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import pytest
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.errors import PlanError
from covey.observe.records import named, recorded_runs, remove

SECONDS = 20  # after which a command hangs
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A wait for a pipe ends the test, and not the suite."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"no answer after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("records")
    covey.fit("examples/digits.py", "bsp", 2, engine="simulated", steps=2, runs=runs)
    return next(runs.iterdir())


def asked(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["runs", *map(str, words)])
    assert "Traceback" not in done.stderr and "mistake in covey" not in done.stderr, done.stderr
    return done.exit_code, done.stdout + done.stderr


def pipe(place: Path) -> None:
    os.mkfifo(place)


def folder(place: Path) -> None:
    place.mkdir()


def zeros(place: Path) -> None:
    place.symlink_to("/dev/zero")


def elsewhere(place: Path) -> None:
    place.symlink_to(place.parent.parent / "outside")  # where the whole file lies


def large(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(2 << 30)


def deep(place: Path) -> None:
    place.write_text("[" * 100_000 + "]" * 100_000 + "\n")


@pytest.mark.parametrize("put", [pipe, folder, zeros, elsewhere, large, deep])
@pytest.mark.parametrize("name", ["facts.json", "journal.jsonl", "result.json"])
def test_what_is_no_file_of_a_record_is_named(
    good: Path, tmp_path: Path, put: Callable[[Path], None], name: str
) -> None:
    shutil.copytree(good, tmp_path / "a")
    (tmp_path / "a" / name).rename(tmp_path / "outside")
    put(tmp_path / "a" / name)
    found, unreadable = recorded_runs(tmp_path)
    assert not found
    assert [str(tmp_path / "a" / name) in line for line in unreadable] == [True] or name == "facts.json"
    for words in (["list"], ["show", "a"], ["compare", "a", "a"]):
        code, told = asked(*words, "--runs", tmp_path)
        assert code in (0, 1, 2) and ("a/" + name in told or name == "facts.json"), told
    if name != "facts.json":
        assert asked("rm", "a", "--runs", tmp_path)[0] == 0 and os.listdir(tmp_path) == ["outside"]


def test_a_link_inside_a_record_leads_nowhere(good: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copytree(good, tmp_path / "other" / "stranger")
    shutil.copytree(good, tmp_path / "runs" / "one")
    (tmp_path / "runs" / "one" / "runs").symlink_to(tmp_path / "other")
    assert named(tmp_path / "runs", "one").inside() == []
    assert asked("show", "stranger", "--runs", tmp_path / "runs")[0] == 2
    assert asked("rm", "one", "--runs", tmp_path / "runs")[0] == 0
    assert (tmp_path / "other" / "stranger" / "facts.json").is_file()


def test_a_lost_run_shows_its_scores_and_nothing_that_moves_the_terminal(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "lost")
    (tmp_path / "lost" / "result.json").unlink()
    rows = [
        {"samples": 32, "seconds": 1.5, "accuracy": 0.25}, {"samples": 64, "seconds": 3.0, "accuracy": 0.5},
        {"odd" + ESCAPE: 1.0}, {"samples": None, "accuracy": None},
    ]  # fmt: skip
    events = [{"event": "score", "at": 1.0, "row": row} for row in rows]
    events += [{"event": "said", "at": 1.0, "line": "a line" + ESCAPE}]
    (tmp_path / "lost" / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for words in (["show", "lost"], ["list"], ["compare", "lost", "lost"]):
        code, told = asked(*words, "--runs", tmp_path)
        assert code == 0 and "lost" in told and "\x1b]" not in told and "\x1b[2J" not in told and "\x07" not in told
    shown = asked("show", "lost", "--runs", tmp_path)[1]
    assert "0.25" in shown and "0.5" in shown and "64" in shown


def test_a_record_whose_journal_could_not_be_ended_has_its_result(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "one")
    journal = tmp_path / "one" / "journal.jsonl"
    journal.write_text("".join(line for line in journal.open() if '"ended"' not in line))
    assert named(tmp_path, "one").status == "budget"


HUGE = "1" + "0" * 400  # an integer that is no float
LINES = {
    "score": f'{{"event":"score","at":1,"row":{{"samples":1,"seconds":1,"accuracy":{HUGE}}}}}',
    "moment": f'{{"event":"moment","at":1,"phase":"training","bytes":{HUGE}}}',
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_an_integer_that_is_too_large_is_named(good: Path, tmp_path: Path, line: str) -> None:
    shutil.copytree(good, tmp_path / "bad")
    shutil.copytree(good, tmp_path / "good")
    (tmp_path / "bad" / "result.json").unlink()
    (tmp_path / "bad" / "journal.jsonl").write_text(line + "\n")
    code, told = asked("list", "--runs", tmp_path)
    assert code == 0 and "Unreadable" in told and "bad/journal.jsonl" in told and good.name in told
    for words in (["show", "bad"], ["compare", "bad", "good"]):
        code, told = asked(*words, "--runs", tmp_path)
        assert code == 1 and "bad/journal.jsonl" in told


def test_an_integer_of_a_result_that_is_too_large_is_named(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "bad")
    place = tmp_path / "bad" / "result.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"samples": int(HUGE)}))
    code, told = asked("list", "--runs", tmp_path)
    assert code == 0 and "bad/result.json" in told


def test_names_are_no_markup(good: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(good, tmp_path / name)
        place = tmp_path / name / "facts.json"
        facts = json.loads(place.read_text())
        facts["id"] = facts["run"]["strategy"] = f"[/{name}]"
        facts["run"]["settings"] = {"[/setting]": name}
        place.write_text(json.dumps(facts))
    code, told = asked("compare", "one", "two", "--runs", tmp_path)
    assert code == 0 and "[/setting]" in told and "[/one]" in told
    assert asked("list", "--runs", tmp_path)[0] == asked("show", "one", "--runs", tmp_path)[0] == 0


def test_rm_removes_nothing_but_records(good: Path, tmp_path: Path) -> None:
    for name, text in {"notes": '{"mine": 1}', "other": '{"schema": "another.tool/1"}', "damaged": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "facts.json").write_text(text)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "facts.json").symlink_to(good / "facts.json")
    for name in ("notes", "other", "damaged", "linked"):
        code, told = asked("rm", name, "--runs", tmp_path)
        assert code == 2 and "not a record of covey" in told and os.path.lexists(tmp_path / name / "facts.json")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "facts.json").write_text('{"schema": "covey.run/0"}')
    assert asked("rm", "old", "old", "--runs", tmp_path)[0] == 0 and not (tmp_path / "old").exists()


def test_rm_prints_nothing_that_moves_the_terminal(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "runs" / ("a" + ESCAPE))
    shutil.copytree(good, tmp_path / "runs" / os.fsdecode(b"b\xff"))
    for name in "ab":
        code, told = asked("rm", name, "--runs", tmp_path / "runs")
        assert code == 0 and "removed" in told and "\x1b" not in told and "\x07" not in told
    assert os.listdir(tmp_path / "runs") == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_another_user_may_not_read_is_passed_over(good: Path) -> None:
    with TemporaryDirectory() as name:
        runs = Path(name)
        runs.chmod(0o755)
        for record in ("good", "locked"):
            shutil.copytree(good, runs / record)
        (runs / "locked").chmod(0)
        (runs / "closed").mkdir(mode=0)
        os.seteuid(65534)
        try:
            assert [record.path.name for record in recorded_runs(runs)[0]] == ["good"]
            with pytest.raises(PlanError, match="cannot be removed"):
                remove(named(runs, "good"))
            with pytest.raises(PlanError, match="cannot be read"):
                recorded_runs(runs / "closed")
        finally:
            os.seteuid(0)
        assert (runs / "good" / "facts.json").is_file()

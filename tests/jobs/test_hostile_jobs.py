"""What jobs leave behind, and what others have written into the folder of a queue, does not stop the head."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import PlanError
from covey.jobs import head as heads
from covey.jobs.attempts import Attempts, last_sentence
from covey.jobs.head import Head
from covey.jobs.job_command import JobRequest, job_request, refusal
from covey.jobs.job_folder import JobFolder, ServedCluster
from covey.jobs.job_log import KnownJob, known_jobs

RUN = ["run", "examples/digits.py", "--strategy", "bsp", "--workers", "2"]
FORKS = """
import os, pathlib, time
for name in ("left", "away"):
    pid = os.fork()
    if not pid:
        if name == "away":
            os.setsid()
        time.sleep(60)
        os._exit(0)
    pathlib.Path(__file__).with_name(name).write_text(str(pid))
"""


def written(folder: JobFolder, name: str = "0001", **values: Any) -> Path:
    """A job that nobody has submitted: its job.json is there."""
    place = folder.made().path / name
    place.mkdir()
    usual = {"words": RUN, "cwd": str(Path.cwd()), "submitted": time.time(), "least": 2, "most": 2, "kept": True}
    (place / "job.json").write_bytes(msgspec.json.encode(usual | values))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "jobs")


def head_of(folder: JobFolder, told: list[str] | None = None) -> Head:
    return Head(folder.made(), ServedCluster(2, "fair"), (told if told is not None else []).append)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_job_forks_holds_neither_its_lock_nor_its_slot(folder: JobFolder, tmp_path: Path) -> None:
    plugin = tmp_path / "forks.py"
    plugin.write_text(FORKS)
    words = ["strategies", "--plugin", str(plugin)]
    job = KnownJob("0001", JobRequest(words=words, cwd=str(tmp_path), submitted=0.0), attempt=1)
    (folder.made().path / "0001").mkdir()
    attempts = Attempts(folder.path)
    try:
        with attempts.reserved(job, 1, 1):
            attempts.start(job, 1, 1)
        end = time.monotonic() + 50
        while attempts.lives(job):
            assert time.monotonic() < end, "its lock is held by what it forked"
            time.sleep(0.05)
        assert attempts.code(job) == 2, "a file that registers nothing"
        pids = {name: int((tmp_path / name).read_text()) for name in ("left", "away")}
        assert {name: is_alive(pid) for name, pid in pids.items()} == {"left": False, "away": True}
    finally:
        for name in ("left", "away"):
            with suppress(OSError, ValueError):
                os.kill(int((tmp_path / name).read_text()), signal.SIGKILL)


def test_a_job_whose_keeper_is_halted_is_killed_when_it_is_stopped(
    folder: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "ANSWER", 0.2)
    plugin = tmp_path / "forks.py"
    plugin.write_text(f"{FORKS}\ntime.sleep(60)\n")
    written(folder)
    told = list[str]()
    head = head_of(folder, told)
    monkeypatch.setattr("covey.jobs.attempts.attempt_words", lambda *_: ["strategies", "--plugin", str(plugin)])
    head.look()
    keeper, end = 0, time.monotonic() + 50
    try:
        while not keeper or not (tmp_path / "away").exists():
            assert time.monotonic() < end
            keeper = head.attempts._keeper(head.jobs["0001"])
            time.sleep(0.05)
        os.kill(keeper, signal.SIGSTOP)
        folder.ask_to_stop("0001")
        while not head.idle:
            assert time.monotonic() < end
            head.look()
            time.sleep(0.05)
        assert head.jobs["0001"].status == "stopped" and not is_alive(int((tmp_path / "left").read_text()))
        assert next(line for line in told if "halted" in line).startswith("0001 has a keeper that was halted")
    finally:
        for file in (folder.path / "0001/attempt-1", tmp_path / "left", tmp_path / "away"):
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"words": []}, "nothing is no job"),
        ({"words": ["doctor"]}, "covey doctor is no job"),
        ({"words": [*RUN, "--checkpoint", "/elsewhere"]}, "--checkpoint: the head keeps"),
        ({"words": [*RUN, "--workers", "9"]}, "asks for 2 to 2 workers, its command for 9"),
        ({"words": [*RUN, "--workers", "9" * 70_000]}, "workers="),
        ({"words": [*RUN, "a\0b"]}, "zero byte"),
        ({"cwd": "a\0b"}, "zero byte"),
        ({"stages": "x"}, "--stages 'x'"),
        ({"words": ["simulate", "x.py"], "least": 1, "most": 1}, "its job.json"),
    ],
)
@pytest.mark.parametrize("status", ["new", "running"])
def test_a_job_that_submit_refuses_is_refused_by_the_head(
    folder: JobFolder, values: dict[str, Any], said: str, status: str
) -> None:
    written(folder, **values)
    if status == "running":  # as the log of a head that it has killed says
        (folder.path / "log.jsonl").write_text('{"at":1.0,"job":"0001","status":"running","attempt":1,"workers":2}\n')
    head = head_of(folder)
    head.look()
    job = known_jobs(folder)["0001"]
    assert job.status == "refused" and said in job.why and head.idle and len(job.why) <= 500


@pytest.mark.parametrize(("words", "cwd"), [([*RUN, "--save", "q\udcff"], "/"), (RUN, "/q\udcff")])
def test_what_is_not_utf_8_is_refused_before_anything_is_made(folder: JobFolder, words: list[str], cwd: str) -> None:
    with pytest.raises(PlanError, match=r"q\\udcff' is not UTF-8.*rename it") as refused:
        folder.submit(words, Path(cwd))
    assert str(refused.value).isascii() and not folder.path.exists()


def test_what_submit_takes_is_taken(tmp_path: Path) -> None:
    for words in (RUN, [*RUN[:-1], "1:4"], ["tune", "x.py"], ["simulate", "x.py"], ["launch", "x.py"]):
        assert refusal(job_request(words, tmp_path, 0.0)) == ""
    assert refusal(job_request([*RUN[:-1], "1:4"], tmp_path, 0.0, "1@30%, 4")) == ""


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_in_the_place_of_a_job_is_not_followed(folder: JobFolder, tmp_path: Path, kind: str) -> None:
    elsewhere = written(JobFolder(tmp_path / "other"))
    place = folder.made().path / "0001"
    place.symlink_to(elsewhere) if kind == "link" else place.write_text("")
    told: list[str] = []
    head = head_of(folder, told)
    head.look()
    head.look()
    assert not head.jobs and len(told) == 1 and "0001 is not a folder: links are not followed" in told[0]
    for command in ("logs", "stop"):
        said = CliRunner().invoke(app, ["jobs", command, "--jobs", str(folder.path), "1"])
        assert said.exit_code == 2 and "links are not followed" in said.stderr
    assert [path.name for path in elsewhere.iterdir()] == ["job.json"]
    assert folder.submit(RUN) == "0002"


def test_a_job_whose_folder_became_a_link_is_not_started(folder: JobFolder, tmp_path: Path) -> None:
    place = written(folder)
    head = head_of(folder)
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    head.look()
    assert head.jobs["0001"].status == "failed" and "links are not followed" in head.jobs["0001"].why
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["job.json"]


def test_a_job_that_cannot_be_read_is_not_stopped(folder: JobFolder) -> None:
    (written(folder) / "job.json").write_text("{")
    said = CliRunner().invoke(app, ["jobs", "stop", "--jobs", str(folder.path), "1"])
    assert said.exit_code == 2 and "job 1 cannot be read" in said.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "missing.py", "--workers", "2"], "there is no file missing.py in"),
        (["launch", "missing.py", "--workers", "2"], "there is no file missing.py in"),
        (["run", "missing.py:task", "--workers", "2"], "there is no file missing.py in"),
        ([*RUN, "--epoch", "2"], "--epoch"),
        ([*RUN, "--epochs", "many"], "--epochs"),
        (["run", "--workers", "2"], "Missing argument"),
        (["run", "--help"], "shows help"),
    ],
)
def test_a_missing_file_and_options_that_are_none_are_refused_at_once(
    folder: JobFolder, words: list[str], said: str
) -> None:
    refused = CliRunner().invoke(app, ["jobs", "submit", "--jobs", str(folder.path), "--", *words])
    assert refused.exit_code == 2 and said in refused.stderr and folder.names() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("one\nError: two\n\n", "Error: two"),
        ("one\n  ────────\n", "one"),
        (
            "Usage: covey run\n╭─ Error ────╮\n│ No such option: --worker; did │\n│ you mean --workers?  │\n╰────╯\n",
            "No such option: --worker; did you mean --workers?",
        ),
        ("Usage: covey run\n+- Error ----+\n| No such option |\n+------------+\n", "No such option"),
    ],
)
def test_the_reason_of_a_failure_is_a_sentence(text: str, said: str) -> None:
    assert last_sentence(text) == said


def test_what_a_job_printed_is_not_waited_for(folder: JobFolder) -> None:
    place = written(folder)
    os.mkfifo(place / "output.txt")
    job = known_jobs(folder)["0001"]
    assert Attempts(folder.path).last_line(job) == ""

"""Searches and queues on the page: trials with their curves and the best, jobs with their state, slots over time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from covey.observe.facts import FACTS, SCHEMA, RecordFacts, RunFacts
from covey.observe.journal import Journal
from covey.page.folder import WatchedFolder
from covey.page.queue import LoggedStatus, slot_times
from covey.page.study import study
from tests.page.browser import Browser
from tests.page.conftest import record, serving, trained
from tests.page.test_browser import EVIL, NAMES, click

ROWS = "[...document.querySelectorAll('#study tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"


def status(at: float, job: str, what: str, workers: int = 0, **more: Any) -> dict[str, Any]:
    return {"at": at, "job": job, "status": what, "workers": workers, **more}


def queue(folder: Path, *log: dict[str, Any]) -> None:
    for number, workers in enumerate(("1:2", "1"), 1):
        (folder / f"{number:04d}").mkdir(parents=True)
        words = ["run", "digits.py", "--workers", workers]
        (folder / f"{number:04d}" / "job.json").write_text(json.dumps({"words": words, "submitted": 1e9 + number}))
    (folder / "cluster.json").write_text('{"slots": 2, "policy": "fair"}')
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))


def search(runs: Path, name: str, trials: list[dict[str, Any]], better: str = "higher") -> Journal:
    """The record of a search that goes on."""
    journal = record(runs, name)
    facts = RunFacts(task="tune.py", strategy="bsp", taxonomy={}, engine="simulated", workers=1)
    known = RecordFacts(schema=SCHEMA, id=name, began="2026-11-17T08:00:00Z", run=facts, kind="study")
    (runs / name / FACTS).write_bytes(msgspec.json.encode(known))
    for number, trial in enumerate(trials):
        (runs / name / f"study/trials/{number:04d}").mkdir(parents=True)
        (runs / name / f"study/trials/{number:04d}/trial.json").write_text(json.dumps({"number": number, **trial}))
    (runs / name / "study/study.json").write_text(json.dumps({"metric": "accuracy", "better": better, "seed": 0}))
    return journal


TRIALS: list[dict[str, Any]] = [
    {"status": "paused", "point": {"rate": 0.1}, "curve": [[1, 0.5], [2, 0.7]]},
    {"status": "failed", "point": {"rate": 9.0}, "curve": [[1, 0.99]], "why": EVIL},
    {"status": "finished", "point": {"rate": 0.3}, "curve": [[1, 0.6], [2, 0.8], [4, 0.9]]},
    {"status": "running", "point": {"rate": 0.5}},
]


def test_slots_over_time_follow_the_log() -> None:
    lines = [
        status(1.0, "0001", "waiting"), status(2.0, "0001", "running", 2), status(3.0, "0002", "waiting"),
        status(4.0, "0001", "running", 1), status(4.5, "0002", "running", 1), status(6.0, "0001", "suspended"),
        status(7.0, "0003", "running", 1), status(9.0, "0002", "done"),
    ]  # fmt: skip
    times = [(one.job, one.slot, one.began, one.ended) for one in slot_times([LoggedStatus(**line) for line in lines])]
    assert times == [
        ("0001", 0, 2.0, 6.0), ("0001", 1, 2.0, 4.0), ("0002", 1, 4.5, 9.0), ("0003", 0, 7.0, None)
    ]  # fmt: skip


def test_the_best_trial_is_the_best_last_score_of_those_that_have_not_failed(tmp_path: Path) -> None:
    search(tmp_path, "high", TRIALS)
    search(tmp_path, "low", TRIALS, better="lower")
    found = [study(tmp_path / name) for name in ("high", "low")]
    assert [one and one.best for one in found] == [2, 0]
    (tmp_path / "low/study/trials/0000/trial.json").write_text("[]")
    again = study(tmp_path / "low")
    assert again is not None and again.best == 2 and len(again.trials) == 3, "what cannot be read is left out"
    assert study(tmp_path) is None


def test_a_search_that_has_ended_elsewhere_is_read_from_its_result(tmp_path: Path) -> None:
    rows = [{"number": number, **trial} for number, trial in enumerate(TRIALS)]
    (tmp_path / "result.json").write_text(json.dumps({"metric": "accuracy", "better": "higher", "trials": rows}))
    found = study(tmp_path)
    assert found is not None and found.best == 2 and len(found.trials) == 4


def test_jobs_are_rows_with_their_runs_below_them(tmp_path: Path) -> None:
    queue(tmp_path, status(1e9 + 3, "0001", "waiting"))
    trained(record(tmp_path / "0001/runs", "2026-bsp"), 2)
    folder = WatchedFolder(tmp_path)
    _, rows, _ = folder.changes(-1)
    seen = {row.id: (row.kind, row.status, row.parent) for row in rows}
    assert seen == {
        "0001": ("job", "waiting", ""), "0002": ("job", "submitted", ""), "0001/2026-bsp": ("run", "running", "0001"),
    }  # fmt: skip
    serial = folder.serial
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write(json.dumps(status(1e9 + 9, "0002", "failed", why="the last line")) + "\n")
    folder._looked = 0.0
    (row,) = folder.changes(serial)[1]
    assert (row.id, row.status, row.why, row.seconds) == ("0002", "failed", "the last line", 7.0)
    (tmp_path / "0002/job.json").write_text("{")
    (tmp_path / "log.jsonl").write_text('{"at":1,"job":"0001","status":"running","workers":1000000000}\nnonsense\n')
    folder = WatchedFolder(tmp_path)
    assert {row.id: row.status for row in folder.changes(-1)[1]}["0002"] == "unreadable"


@pytest.mark.xdist_group("chromium")
def test_a_queue_and_a_search_in_it_are_shown(tmp_path: Path, tab: Browser) -> None:
    now = time.time()
    queue(
        tmp_path, status(now - 60, "0001", "running", 2), status(now - 30, "0001", "running", 1),
        status(now - 29, "0002", "running", 1), status(now - 9, "0002", "failed", why=EVIL),
    )  # fmt: skip
    journal = search(tmp_path / "0001/runs", "hunt", TRIALS)
    journal.score({"seconds": 1.0, "samples": 100, "bytes": 0, "loss": None, "accuracy": 0.9, "trials": 4})
    with serving(str(tmp_path)) as address:
        tab.open(address)
        assert tab.until(f"{NAMES}.length == 3 && {NAMES}") == ["0001", "0001/hunt", "0002"]
        slots = "[...document.querySelectorAll('#queue .slot title')].map(title => title.textContent.split(':')[0])"
        assert tab.until(f"{slots}.length == 3 && {slots}") == ["job 0001", "job 0001", "job 0002"]
        assert "2 slots" in tab.js("document.getElementById('queue').innerText")
        click(tab, "tr[data-run='0001/hunt']")
        rows = tab.until(f"{ROWS}.length == 4 && {ROWS}")
        assert rows[0] == ["2", "0.9", "4", "finished", "rate=0.3"] and rows[1][:2] == ["0", "0.7"]
        assert ["1", "", "1", EVIL, "rate=9"] in rows, "a failed trial is a row, and says why"
        assert tab.js("document.querySelectorAll('#study .trial').length") == 3
        assert tab.js("document.querySelector('#study .best title').textContent").startswith("trial 2:")
        place = tmp_path / "0001/runs/hunt/study/trials/0003/trial.json"
        place.write_text(json.dumps({"number": 3, "status": "paused", "point": {}, "curve": [[1, 0.95]]}))
        journal.score({"seconds": 2.0, "samples": 200, "bytes": 0, "loss": None, "accuracy": 0.95, "trials": 4})
        tab.until(f"{ROWS}[0][0] == '3'")
        click(tab, "tr[data-run='0002']")
        tab.until("document.getElementById('lines').textContent.includes('failed')")
        assert tab.said == [] and tab.js("document.title") == "covey"

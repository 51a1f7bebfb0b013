"""What the race makes of its runs: times that are added up honestly, ratios, and a file to go on from."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import time_to_accuracy
from benchmarks.peers import machine
from benchmarks.peers.courses import CHARACTERS, COURSES
from benchmarks.peers.ours import travelled
from benchmarks.peers.track import Cell, Finish
from benchmarks.time_to_accuracy import (
    ALONE,
    OURS,
    PEERS,
    USUAL,
    Entry,
    KeptFinishes,
    advice_holds,
    entries,
    summary,
    table,
)
from covey import catalog

FAST, SLOW = Cell("100mbit"), Cell("1000mbit", slow=True)


def kept(file: Path | None = None) -> KeptFinishes:
    found = KeptFinishes(file)
    runs = {
        (Cell("1000mbit"), ALONE, 0): Finish(8.0, 36_000, 0, 0.861, True),
        (FAST, "DDP", 0): Finish(60.0, 36_000, 691e6, 0.864, True),
        (FAST, "local SGD 32", 0): Finish(10.0, 65_536, 40e6, 0.863, True),
        (FAST, "local SGD 32", 1): Finish(14.0, 81_920, 50e6, 0.860, True),
        (FAST, "allreduce", 0): Finish(61.0, 20_000, 400e6, 0.7, False, "too slow"),
        (FAST, "easgd", 0): Finish(9.0, 60_000, 30e6, 0.862, True),
        (SLOW, "DDP", 0): Finish(27.0, 36_000, 691e6, 0.864, True),
    }
    for (cell, name, seed), finish in runs.items():
        found.keep(Entry(cell, name, seed).key, asdict(finish))
    return found


def test_ratios_are_to_the_best_peer_and_to_compute_alone() -> None:
    rows = {row["name"]: row for row in summary(kept(), FAST)}
    assert list(rows) == ["easgd", "local SGD 32", "DDP", "allreduce"]
    assert rows["easgd"]["to_peer"] == 9 / 12 and rows["easgd"]["to_compute"] == 9 / 8
    assert rows["local SGD 32"]["times"] == [10, 14]
    assert math.isinf(rows["allreduce"]["seconds"])  # it was not there, whatever its clock says


def test_with_a_slow_host_compute_alone_is_the_work_shared_out_well() -> None:
    (row,) = summary(kept(), SLOW)
    assert row["to_compute"] == pytest.approx(27 / (8 * 4 / 3.25))


def test_a_run_that_was_broken_off_says_so_in_the_table() -> None:
    text = table(kept(), FAST)
    assert "| `allreduce` | more than 61 (70%) | |  | 20,000 | 400.0 |" in text
    assert "| `easgd` | 9.0 | 0.75x | 1.12x | 60,000 | 30.0 |" in text
    assert "| local SGD 32 | 12.0 (10.0 to 14.0) | 1.00x | 1.50x |" in text


def test_what_was_run_is_read_again(tmp_path: Path) -> None:
    kept(tmp_path / "kept.json")
    again = KeptFinishes(tmp_path / "kept.json")
    assert again.finishes(FAST, "easgd") == [Finish(9.0, 60_000, 30e6, 0.862, True)]


def test_the_usual_ones_leave_out_what_takes_minutes() -> None:
    given = argparse.Namespace(ours=None, all=False, only=[""], seeds=1, cpu=0.45)
    names = [entry.name for entry in entries(given, [Cell("10mbit")], KeptFinishes(None))]
    assert names[0] == ALONE and "DDP + PowerSGD 4" in names and "DDP" not in names
    given.all = True
    assert set(PEERS) | set(OURS) < {entry.name for entry in entries(given, [Cell("10mbit")], KeptFinishes(None))}


def test_what_was_advised_runs_too() -> None:
    given, found = (
        argparse.Namespace(ours=None, all=False, only=["DDP + PowerSGD"], seeds=1, cpu=0.45),
        KeptFinishes(None),
    )
    found.keep(f"{FAST} | advice", {"spec": "tree_easgd", "workers": 4, "seconds": 12.0, "sure": "a close call"})
    assert [entry.name for entry in entries(given, [FAST], found)] == [ALONE, "DDP + PowerSGD 4", "tree_easgd"]


@pytest.mark.parametrize(
    ("times", "words"),
    [([10.5, 11.0, 10.8], "holds: 1.08x"), ([9.0, 15.0, 14.0], "holds: 1.40x"), ([13.0, 13.1, 13.2], "does not hold")],
    ids=["within 10 %", "tied", "surely slower"],
)
def test_advice_holds_within_10_percent_or_where_it_is_tied(times: list[float], words: str) -> None:
    found = KeptFinishes(None)
    found.keep(f"{FAST} | advice", {"spec": "easgd", "workers": 4, "seconds": 12.0, "sure": "a close call"})
    for name, seconds in (("easgd", times), ("adpsgd", [10.0, 10.0, 10.0])):
        for seed, one in enumerate(seconds):
            found.keep(f"{FAST} | {name} | {seed}", asdict(Finish(one, 1000, 1.0, 0.9, True)))
    assert advice_holds(found, FAST).startswith(words)


def test_every_name_is_a_peer_or_a_strategy_that_there_is() -> None:
    for name in {*OURS, *(name for names in USUAL.values() for name in names)} - set(PEERS):
        catalog.resolve(name, 4)


def test_two_cells_that_nobody_has_tuned_for_are_compared_with_compute_of_their_own_model() -> None:
    given = argparse.Namespace(ours=None, all=False, only=["DDP"], seeds=1, cpu=0.45)
    untuned = Cell("100mbit", course=CHARACTERS)
    assert [entry.key for entry in entries(given, [FAST, untuned], KeptFinishes(None))] == [
        "1000mbit | compute alone | 0", "1000mbit, characters | compute alone | 0", "100mbit | DDP + PowerSGD 4 | 0",
        "100mbit, characters | DDP | 0", "100mbit, characters | DDP + PowerSGD 4 | 0",
    ]  # fmt: skip
    found = kept()
    found.keep(Entry(Cell("1000mbit", course=CHARACTERS), ALONE, 0).key, asdict(Finish(4.0, 9_000, 0, 3.2, True)))
    found.keep(Entry(untuned, "DDP", 0).key, asdict(Finish(20.0, 9_000, 1e6, 3.2, True)))
    assert [row["to_compute"] for row in summary(found, untuned)] == [5.0]
    assert {row["name"] for row in summary(found, FAST)} == {"easgd", "local SGD 32", "DDP", "allreduce"}


@pytest.mark.parametrize("name", COURSES)
def test_a_course_scores_the_metric_that_ends_it(name: str) -> None:
    course = COURSES[name]
    assert course.task.evaluate
    scored = course.task.evaluate(course.task.model())
    assert not course.target.reached(scored[course.target.metric])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"steal": 0.0, "busy": 0.1, "pace": 1.1}, ""),
        ({"steal": 0.05, "busy": 0.1, "pace": 1.0}, "its host took 5% of the cores' time"),
        ({"steal": 0.0, "busy": 0.9, "pace": 1.0}, "other programs used 0.9 cores"),
        ({"steal": 0.0, "busy": 0.0, "pace": 2.0}, "a core was 2.0 times slower than usual"),
    ],
)
def test_a_machine_that_others_use_is_told_from_a_quiet_one(found: dict[str, float], words: str) -> None:
    assert machine.disturbance(found, [1.0, 1.0, 1.05]) == words


def test_what_others_compute_around_a_run_is_seen() -> None:
    found: dict[str, float] = {}
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 20: pass"]) as spinning:
        with machine.watched(found):
            pass
        spinning.kill()
    assert found["busy"] > 0.5 and found["pace"] > 0 and found["steal"] >= 0


def test_a_disturbed_run_is_repeated_and_what_stays_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter([0.9, 0.9, 0.0])
    times = iter([30.0, 20.0, 10.0])

    @contextmanager
    def watched(found: dict[str, float]) -> Iterator[None]:
        yield
        found |= {"steal": 0.0, "busy": next(busy), "pace": 1.0, "pressure": 0.0}

    monkeypatch.setattr(time_to_accuracy, "watched", watched)
    monkeypatch.setattr(time_to_accuracy, "run", lambda *_: Finish(next(times), 1000, 1.0, 0.9, True))
    entry = Entry(FAST, "easgd", 0)
    finish = time_to_accuracy.undisturbed(entry, argparse.Namespace(), KeptFinishes(None))
    assert finish and finish.seconds == 10.0 and "disturbed" not in finish.machine

    busy, times = iter([0.9] * 3), iter([30.0, 20.0, 10.0])
    found = KeptFinishes(None)
    finish = time_to_accuracy.undisturbed(entry, argparse.Namespace(), found)
    assert finish
    found.keep(entry.key, asdict(finish))
    assert ", 1 disturbed |" in table(found, FAST)


def test_what_travels_while_the_clock_stands_is_counted() -> None:
    assert travelled({"unclocked bytes": 4e6, "lost": 3.0}, 10e6) == pytest.approx(0.1)  # 1 MB a host at 10 MB/s
    assert travelled({}, 10e6) == 0.0

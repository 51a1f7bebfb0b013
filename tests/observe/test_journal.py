"""A journal holds what happened, stays small, survives a torn line, and never ends the run that it is of."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import msgspec
import pytest

from covey.errors import WireError
from covey.observe import journal
from covey.observe.facts import FACTS, SCHEMA, RecordFacts, RunFacts
from covey.observe.journal import (
    Journal,
    JournalEnd,
    JournalLine,
    JournalMoment,
    JournalScore,
    being_written,
    read,
    thinned,
)
from covey.observe.progress import Progress, RoleProgress
from covey.observe.records import RunRecordFolder


def at(second: int, roles: int = 2) -> Progress:
    many = {f"worker {rank}": RoleProgress(step=second, samples=second, bytes=second) for rank in range(roles)}
    return Progress(phase="training", seconds=second, samples=10 * second, roles=many)


RUN = RunFacts(task="digits.py:task", strategy="bsp", taxonomy={}, engine="local", workers=4)


def never(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def ticking(tmp_path: Path) -> Journal:
    """A journal whose clock moves a second at each look."""
    seconds = count()
    return Journal(tmp_path / "journal.jsonl", never, lambda: float(next(seconds)))


def test_it_reads_back_what_was_written(ticking: Journal) -> None:
    ticking.moment(at(1))
    ticking.score({"seconds": 1.0, "samples": 10, "bytes": 5, "accuracy": 0.5, "loss": 1.0})
    ticking.say("worker 1 waits")
    ticking.end("budget")
    moment, score, said, end = read(ticking.path)
    assert isinstance(moment, JournalMoment) and moment.samples == 10 and moment.roles["worker 1"].step == 1
    assert isinstance(score, JournalScore) and score.row["accuracy"] == 0.5
    assert isinstance(said, JournalLine) and said.line == "worker 1 waits"
    assert isinstance(end, JournalEnd) and (end.stopped, end.why) == ("budget", "")


def test_a_score_takes_the_place_of_one_of_as_many_samples(ticking: Journal) -> None:
    """So also while the run goes on, and has no result yet."""
    for samples, accuracy in ((10, 0.5), (20, 0.6), (20, 0.7)):
        ticking.score({"seconds": 1.0, "samples": samples, "bytes": 5, "accuracy": accuracy, "loss": 1.0})
    (ticking.path.parent / FACTS).write_bytes(
        msgspec.json.encode(RecordFacts(schema=SCHEMA, id="one", began="", run=RUN))
    )
    found = RunRecordFolder(ticking.path.parent).history
    assert [(row["samples"], row["accuracy"]) for row in found] == [(10, 0.5), (20, 0.7)]


def test_moments_are_a_second_apart_unless_the_phase_changes(tmp_path: Path) -> None:
    now = [100.0]
    kept = Journal(tmp_path / "j", never, lambda: now[0])
    for step in range(50):
        now[0] += 0.1
        kept.moment(at(step))
    kept.moment(Progress(phase="scoring"))
    phases = [event.phase for event in read(kept.path) if isinstance(event, JournalMoment)]
    assert phases == ["training"] * 5 + ["scoring"]


def test_a_torn_last_line_is_dropped_and_a_strange_one_is_named(ticking: Journal) -> None:
    ticking.say("one")
    ticking.say("two")
    whole = ticking.path.read_bytes()
    for end in range(len(whole) // 2 + 1, len(whole)):
        ticking.path.write_bytes(whole[:end])
        assert [event.line for event in read(ticking.path) if isinstance(event, JournalLine)] == ["one"]
    ticking.path.write_bytes(b'{"event":"of a later covey"}\n' + whole)
    with pytest.raises(WireError, match=r"journal.jsonl, line 1, is not an event"):
        list(read(ticking.path))


def test_its_size_is_bounded_and_both_ends_stay_in_sight(ticking: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "BOUND", 20_000)
    for second in range(3000):
        ticking.moment(at(second))
        assert ticking.path.stat().st_size <= 20_000
    ticking.say("kept")
    ticking.end("target")
    *moments, said, end = read(ticking.path)
    seconds = [event.seconds for event in moments if isinstance(event, JournalMoment)]
    assert seconds == sorted(seconds) and seconds[0] < 300 and seconds[-1] > 2500 and len(seconds) > 10
    assert isinstance(said, JournalLine) and isinstance(end, JournalEnd)


def test_thinning_lets_every_second_moment_and_score_go() -> None:
    moments = [JournalMoment(float(k), "training") for k in range(4)]
    events = [
        moments[0],
        JournalLine(0.0, "a"),
        moments[1],
        JournalScore(0.0, {}),
        moments[2],
        JournalScore(1.0, {}),
        moments[3],
    ]
    assert list(thinned(events)) == [JournalLine(0.0, "a"), moments[1], JournalScore(1.0, {}), moments[3]]


def test_a_thousand_roles_or_lines_do_not_fill_it(ticking: Journal) -> None:
    ticking.moment(at(1, roles=1000))
    for number in range(5000):
        ticking.say(f"line {number} " + "x" * 10_000)
    first, *said = read(ticking.path)
    assert isinstance(first, JournalMoment) and first.roles == {} and len(said) == journal.LINES
    assert "more lines were said" in str(said[-1]) and ticking.path.stat().st_size < 4 << 20


def test_a_full_disk_is_told_once_and_ends_only_the_journal(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    told: list[str] = []
    kept = Journal(tmp_path / "full", told.append)
    for second in range(5):
        kept.say(f"{second}")
    kept.end("budget")
    assert len(told) == 1 and "the run goes on" in told[0]


def test_a_disk_that_takes_a_part_of_a_line_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, write = list[str](), os.write
    kept = Journal(tmp_path / "j", told.append)
    kept.say("one")
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:9]))
    kept.say("two")
    monkeypatch.undo()
    kept.say("three")
    assert len(told) == 1 and "the record of this run ends here, the run goes on" in told[0]
    assert [event.line for event in read(kept.path) if isinstance(event, JournalLine)] == ["one"]


def test_who_writes_is_known_until_the_journal_is_closed(ticking: Journal) -> None:
    assert being_written(ticking.path)
    ticking.end("budget")
    assert not being_written(ticking.path) and not being_written(ticking.path.parent / "no such")


def test_a_line_of_somebody_else_ends_the_journal_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    kept = Journal(tmp_path / "j", told.append)
    kept.say("one")
    with kept.path.open("ab") as file:
        file.write(b"\xff garbage\n")
    monkeypatch.setattr(journal, "BOUND", 10)
    kept.say("two")
    kept.say("three")
    assert len(told) == 1 and "the record of this run ends here, the run goes on" in told[0] and "line 2" in told[0]

"""A folder of records as a table: one row for each run, read again only where something has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from covey.decoding import UNREADABLE, WireFormat
from covey.errors import WireError
from covey.observe import journal
from covey.observe.facts import FACTS, INSIDE, JOURNAL, RESULT, RecordFacts, read_facts
from covey.observe.journal import JournalEnd, JournalEvent, JournalMoment, JournalScore
from covey.observe.progress import Row
from covey.page.endpoints import WatchedEndpoints
from covey.page.queue import SeenJob, WatchedQueue, job_folders
from covey.page.rows import RunRow, changed_since, encodable, finite
from covey.page.tail import JournalCursor, news

EVERY = 0.15  # seconds between two looks at the folder
SILENT = 2.0  # seconds without a new line, after which somebody looks whether the writer lives
TAIL = 1 << 16  # bytes of a journal that say how a run is doing
OVER = ("unreadable", "lost")  # until the files change


class _ComparisonVerdict(msgspec.Struct):
    """All that the page shows of a comparison's result."""

    verdict: str = ""


_verdicts: WireFormat[_ComparisonVerdict] = WireFormat("recorded comparison", _ComparisonVerdict, "json")


class _SeenRecord:
    """What was read of a record."""

    def __init__(self, path: Path, parent: str) -> None:
        name = encodable(path.name)
        self.path, self.row = path, RunRow(id=f"{parent}/{name}" if parent else name, parent=parent)
        self.cursor, self.heard, self.over, self.serial = JournalCursor(), 0.0, False, 0
        self.stamp = self._stamp()
        try:
            self._know(read_facts(path))
        except WireError as error:
            self._end("unreadable", str(error))

    def look(self) -> bool:
        """Read what is new; True if the row has changed."""
        if self.over:
            return False
        before = msgspec.structs.replace(self.row)
        self.stamp = self._stamp()
        try:
            events, cursor = news(self.path / JOURNAL, self.cursor, TAIL)
            if cursor != self.cursor:
                self.heard = time.monotonic()
            elif self.row.status == "running" and time.monotonic() - self.heard > SILENT:
                self.heard = time.monotonic()
                if not journal.being_written(self.path / JOURNAL):
                    self._end("lost", "its process died without a word")
            self.cursor = cursor
            for event in sorted({type(event): event for event in events}.values(), key=lambda event: event.at):
                self._take(event)  # the last of each kind says all
        except FileNotFoundError:
            if time.monotonic() - self.heard > SILENT and self.heard:
                self._end("lost", "its journal is missing")
            self.heard = self.heard or time.monotonic()
        except (WireError, OSError, *UNREADABLE) as error:  # such as a number that is too large to be reckoned with
            self._end("unreadable", str(error))
        return self.row != before

    def is_outdated(self) -> bool:
        """Whether a record that could not be read, or whose writer seemed dead, has changed since."""
        return self.row.status in OVER and self.stamp != self._stamp()

    def _stamp(self) -> tuple[tuple[int, ...], ...]:
        """Which files these are, and when they or their permissions changed last."""
        return tuple(changed_since(self.path / name) for name in (FACTS, JOURNAL))

    def _know(self, facts: RecordFacts) -> None:
        run, row = facts.run, self.row
        row.kind, row.began, row.strategy, row.task = facts.kind, facts.began, run.strategy, run.task
        row.engine, row.workers = run.engine, run.workers

    def _take(self, event: JournalEvent) -> None:
        row = self.row
        if isinstance(event, JournalScore):
            row.metrics = {name: finite(value) for name, value in measured(event.row).items()}
            row.loss = finite(event.row.get("loss"))
            row.seconds, row.samples = float(event.row.get("seconds") or 0), int(event.row.get("samples") or 0)
            row.bytes = int(event.row.get("bytes") or 0)
        elif isinstance(event, JournalMoment):
            row.seconds, row.samples, row.bytes = event.seconds, event.samples, event.bytes
            row.loss = finite(event.loss) if event.loss is not None else row.loss
        elif isinstance(event, JournalEnd):
            self._end(event.stopped, event.why or self._verdict())
        row.rate = row.samples / row.seconds if row.seconds else None

    def _verdict(self) -> str:
        """Of a comparison; its journal ends after its result is written."""
        try:
            return _verdicts.read_file(self.path / RESULT).verdict if self.row.kind != "run" else ""
        except (WireError, OSError):
            return ""

    def _end(self, status: str, why: str) -> None:
        self.row.status, self.row.why, self.over = status, encodable(why), True


Reader: TypeAlias = Callable[[], _SeenRecord | SeenJob]


class WatchedFolder:
    """All records of a folder, or all jobs of a queue with theirs; `serial` rises with every change of a row."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.serial, self.trouble = runs, 0, ""
        self.queue, self.endpoints = WatchedQueue(runs), WatchedEndpoints(runs)
        self._seen: dict[str, _SeenRecord | SeenJob] = {}
        self._gone: dict[str, int] = {}  # when rows went away
        self._lock, self._looked = threading.Lock(), 0.0

    def changes(self, since: int) -> tuple[int, list[RunRow], list[str]]:
        """The rows that have changed since a serial, and those that are gone; looks at the folder if it is time."""
        with self._lock:
            if time.monotonic() - self._looked >= EVERY:
                self._look()
                self._looked = time.monotonic()
            rows = [seen.row for seen in self._seen.values() if seen.serial > since]
            return self.serial, rows, [name for name, serial in self._gone.items() if serial > since]

    def path(self, name: str) -> Path | None:
        """Where a run of the table lies; only names that were found in the folder lead anywhere."""
        with self._lock:
            return self._seen[name].path if name in self._seen else None

    def job(self, name: str) -> SeenJob | None:
        """The job of this name."""
        with self._lock:
            seen = self._seen.get(name)
            return seen if isinstance(seen, SeenJob) else None

    def _look(self) -> None:
        gone = f"the folder {encodable(str(self.runs))} does not exist (any more)"
        self.trouble = "" if os.path.isdir(self.runs) else gone
        for drawn in (self.queue, self.endpoints):
            if drawn.look():
                self._next()
        there = dict(self._jobs()) or dict(self._records(self.runs))
        for name in [name for name in self._seen if name not in there]:
            del self._seen[name]
            self._gone[name] = self._next()
        for name, read in there.items():
            seen = self._seen.get(name)
            if seen is None or seen.is_outdated():
                try:
                    seen = self._seen[name] = read()
                except OSError:  # it is being removed
                    continue
                self._gone.pop(name, None)
                seen.serial = self._next()
            if seen.look():
                seen.serial = self._next()

    def _jobs(self) -> Iterator[tuple[str, Reader]]:
        """Those of a queue, each with its runs."""
        for name in job_folders(self.runs):
            yield name, partial(SeenJob, self.runs / name, self.queue)
            yield from self._records(self.runs / name / INSIDE, name)

    def _records(self, runs: Path, parent: str = "") -> Iterator[tuple[str, Reader]]:
        if parent and runs.is_symlink():
            return
        try:
            with os.scandir(runs) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for name in names:
            known = f"{parent}/{encodable(name)}" if parent else encodable(name)
            if known in self._seen or os.path.isfile(runs / name / FACTS):
                yield known, partial(_SeenRecord, runs / name, parent)
                seen = self._seen.get(known)
                if not parent and seen and seen.row.kind != "run":
                    yield from self._records(runs / name / INSIDE, known)

    def _next(self) -> int:
        self.serial += 1
        return self.serial


def measured(row: Row) -> dict[str, int | float | None]:
    """The user's own metrics of a score."""
    ours = ("seconds", "samples", "bytes", "loss", "training_loss")
    return {name: value for name, value in row.items() if name not in ours}

"""Which runs were recorded, and how are they doing?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from covey.decoding import WireFormat
from covey.errors import PlanError, WireError
from covey.names import meant
from covey.observe import journal
from covey.observe.facts import FACTS, INSIDE, JOURNAL, RESULT, RecordFacts, is_record, read_facts
from covey.observe.journal import JournalEnd, JournalEvent, JournalMoment, JournalScore
from covey.observe.progress import Row
from covey.observe.result import Result

_results: WireFormat[Result] = WireFormat("recorded result", Result, "json")
_comparisons: WireFormat[dict[str, Any]] = WireFormat("recorded comparison", dict[str, Any], "json")


@dataclass(frozen=True)
class RunRecordFolder:
    """A record that was written, or is being written."""

    path: Path

    @cached_property
    def facts(self) -> RecordFacts:
        return read_facts(self.path)

    @cached_property
    def events(self) -> Sequence[JournalEvent]:
        try:
            return list(journal.read(self.path / JOURNAL))
        except FileNotFoundError:
            return []

    @cached_property
    def result(self) -> Result | None:
        """How the run ended; None of a comparison, and of a run that has not."""
        place = self.path / RESULT
        return _results.read_file(place) if self.facts.kind == "run" and os.path.lexists(place) else None

    @cached_property
    def verdict(self) -> str:
        """Of a comparison, or a search, that has ended."""
        place = self.path / RESULT
        if self.facts.kind == "run" or not os.path.lexists(place):
            return ""
        return str(_comparisons.read_file(place).get("verdict", ""))

    @property
    def status(self) -> str:
        """running, lost (its process died), or why it stopped."""
        ends = [event for event in self.events if isinstance(event, JournalEnd)]
        if ends:
            return ends[-1].stopped
        if journal.being_written(self.path / JOURNAL):
            return "running"
        return self.result.stopped if self.result else "lost"  # with a result, its journal could not be ended

    @property
    def why(self) -> str:
        """What went wrong, if it failed."""
        return next((event.why for event in self.events if isinstance(event, JournalEnd)), "")

    @property
    def moment(self) -> JournalMoment | None:
        """The last one."""
        return next((event for event in reversed(self.events) if isinstance(event, JournalMoment)), None)

    @property
    def history(self) -> list[Row]:
        """The scores, also of a run that has not ended."""
        if self.result:
            return self.result.history
        rows = {event.row.get("samples"): event.row for event in self.events if isinstance(event, JournalScore)}
        return list(rows.values())

    def inside(self) -> list[RunRecordFolder]:
        """The runs of a comparison."""
        place = self.path / INSIDE
        return [] if place.is_symlink() else recorded_runs(place)[0]


def recorded_runs(runs: Path) -> tuple[list[RunRecordFolder], list[str]]:
    """All records in a folder, the oldest first, and what was found there that cannot be read."""
    found, unreadable = [], []
    for path in sorted(_folders(runs)):
        record = RunRecordFolder(path)
        try:
            record.facts, record.events, record.result, record.verdict  # noqa: B018  # reads them
            found.append(record)
        except FileNotFoundError:  # it is being removed, or has just begun
            continue
        except (WireError, OSError) as error:
            unreadable.append(str(error))
    return found, unreadable


def named(runs: Path, name: str) -> RunRecordFolder:
    """The record of this name, or the only one whose name has it in it."""
    places = {path.name: path for path in [*_inside(runs), *sorted(_folders(runs))]}
    records = list(places)
    fitting = [name] if name in records else [record for record in records if name and name in record]
    outer = [record for record in fitting if places[record].parent == runs]
    fitting = outer or fitting  # a name of a comparison's run is asked for only where no other record has it
    if len(fitting) == 1:
        return RunRecordFolder(places[fitting[0]])
    if fitting:
        raise PlanError(f"{name!r} is a part of {len(fitting)} names: {', '.join(fitting[:3])} …; write more of it")
    if not records:
        raise PlanError(f"there are no records in {runs}; say where they are with --runs DIR")
    raise PlanError(f"there is no record {name!r} in {runs}{meant(name, records)}")


def remove(record: RunRecordFolder) -> None:
    """Remove a record that nobody writes; a folder that no covey has made is refused."""
    if not is_record(record.path):
        raise PlanError(f"{record.path} is not a record of covey, or is damaged: look into it, and remove it yourself")
    if journal.being_written(record.path / JOURNAL):
        raise PlanError(f"{record.path.name} is running: stop it first")
    try:
        shutil.rmtree(record.path)
    except OSError as error:
        raise PlanError(f"{record.path} cannot be removed: {error.filename}: {error.strerror}") from None


def _inside(runs: Path) -> Iterator[Path]:
    """The runs of comparisons."""
    for path in _folders(runs):
        if not (path / INSIDE).is_symlink():
            yield from sorted(_folders(path / INSIDE))


def _folders(runs: Path) -> Iterator[Path]:
    try:
        for path in runs.iterdir():
            if not path.is_symlink() and os.path.isfile(path / FACTS):
                yield path
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise PlanError(f"{runs} is a file: name the folder of the records with --runs DIR") from None
    except OSError as error:
        raise PlanError(f"{runs} cannot be read: {error.strerror}; --runs DIR names another folder") from None

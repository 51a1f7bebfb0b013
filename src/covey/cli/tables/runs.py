"""Recorded runs as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.cli.progress.run_history import number
from covey.cli.tables.result import print_result
from covey.observe.journal import JournalLine
from covey.observe.progress import Row
from covey.observe.records import RunRecordFolder
from covey.simulate.units import format_bytes, format_duration

OURS = ("seconds", "samples", "bytes")
WIDE = 110  # columns of a terminal on which all of a strategy's settings are listed
LINES = 10  # of what was said, the last ones
NARROW = 16  # columns, without which a column of scores is of no use
GAP = 2  # columns between two columns of a table
COLORS = {"running": "green", "failed": "red", "lost": "red", "interrupted": "yellow"}


def print_runs(console: Console, place: Path, records: Sequence[RunRecordFolder]) -> None:
    """One line for each record."""
    if not records:
        console.print(Text(f"no records in {place}: every covey run, simulate, launch, compare and tune adds one"))
        return
    columns = {
        "id": [Text(record.facts.id) for record in records], "status": [_status(record) for record in records],
        "time": [Text(_time(record)) for record in records],
    }  # fmt: skip
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    left = console.width - sum(width + GAP for width in widths.values()) - GAP
    what = [_what(record) for record in records] if console.width >= WIDE else []
    room = max(left // 2, left - max(map(len, what)) - GAP) if what else left
    if room < NARROW:
        widths, room = {}, NARROW  # all is folded
    # Left to itself, rich makes the scores too wide beside columns that keep their width, and cuts off their ends.
    widths |= {"score": room, "what": left - room - GAP}
    columns["score"] = [_how(record, room) for record in records]
    columns |= {"what": what} if what else {}
    table = Table(box=None, padding=(0, GAP, 0, 0))
    for name in columns:
        table.add_column(name, width=widths.get(name), overflow="fold")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    console.print(table)


def print_run(console: Console, record: RunRecordFolder) -> None:
    """What was asked, how it went, and the last lines that were said."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(record):
        facts.add_row(name, Text(value) if isinstance(value, str) else value)
    console.print(facts)
    console.print()
    if record.result:
        until = record.result.settings.get("until")
        print_result(console, record.result, until, {}, everything=False)
    elif record.facts.kind != "run":
        print_runs(console, record.path, record.inside())
    elif now := record.moment:
        console.print(Text(
            f"{now.phase}: {format_duration(now.seconds)}, {now.samples:,} samples, {format_bytes(now.bytes)} sent"
        ))  # fmt: skip
    if record.history and not record.result:
        console.print(_scored(record.history))
    said = [event.line for event in record.events if isinstance(event, JournalLine)]
    for line in said[-LINES:]:
        console.print(Text(line, "dim"))


def _scored(history: Sequence[Row]) -> Table:
    """The last scores, a line each."""
    rows = history[-LINES:]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in OURS))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("seconds", "samples", *names):
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(row.get(name))) for name in ("seconds", "samples", *names)))
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else number(value)


def print_side_by_side(console: Console, records: Sequence[RunRecordFolder]) -> None:
    """A column for each record, a line for each fact in which they differ, then how they went."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", style="dim", no_wrap=True)
    for record in records:
        table.add_column(Text(record.facts.id), overflow="fold")
    columns = [dict(_compared(record)) for record in records]
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, "-") for column in columns]
        if name in WENT or len(set(values)) > 1:
            table.add_row(Text(name), *(Text(value) for value in values))
    console.print(table)


WENT = ("status", "time", "samples", "score", "speed", "sent", "reached")


def _compared(record: RunRecordFolder) -> Iterable[tuple[str, str]]:
    asked, result = record.facts.run, record.result
    yield "task", asked.task
    yield "strategy", asked.strategy
    for name in ("engine", "workers", "servers", "threads", "seed"):
        yield name, str(getattr(asked, name))
    for name, value in asked.settings.items():
        yield name, str(value)
    yield "source", record.facts.source[:12]
    yield "commit", record.facts.commit[:12]
    for name, value in asked.versions.items():
        yield name, value
    yield "status", record.status
    yield "time", _time(record)
    yield "score", _score(record) or "-"
    if result:
        yield "samples", f"{result.samples:,}"
        yield "speed", f"{result.samples / result.seconds:,.0f} samples/s" if result.seconds else "-"
        yield "sent", format_bytes(result.traffic.bytes)
        yield "reached", format_duration(result.reached.seconds) if result.reached else "-"


def _facts(record: RunRecordFolder) -> Iterable[tuple[str, str | Text]]:
    facts = record.facts
    yield "record", str(record.path)
    yield "status", _status(record)
    if record.why:
        yield "why", record.why
    yield "began", facts.began
    if facts.run.command:
        yield "command", facts.run.command
    yield "task", facts.run.task
    if facts.source:
        yield "source", facts.source[:16]
    if facts.commit:
        yield "commit", facts.commit[:16]
    if facts.cluster:
        yield "cluster", facts.cluster
    if record.verdict:
        yield "verdict", record.verdict


def _how(record: RunRecordFolder, room: int) -> Text:
    """The verdict, or the last score: no line ends between a name and its number where both fit into one."""
    if record.verdict:
        return Text(record.verdict)
    lines: list[str] = []
    for pair in _score(record).split("  "):
        if lines and len(lines[-1]) + GAP + len(pair) <= room:
            lines[-1] += f"  {pair}"
        else:
            lines.append(pair)
    return Text("\n".join(lines))


def _what(record: RunRecordFolder) -> Text:
    asked = record.facts.run
    return Text(f"{asked.strategy}, {asked.workers} workers, {asked.engine}")


def _status(record: RunRecordFolder) -> Text:
    return Text(record.status, COLORS.get(record.status, ""))


def _time(record: RunRecordFolder) -> str:
    if record.result:
        return format_duration(record.result.seconds)
    return format_duration(record.moment.seconds) if record.moment else "-"


def _score(record: RunRecordFolder) -> str:
    row = record.history[-1] if record.history else {}
    return "  ".join(f"{name} {number(value)}" for name, value in row.items() if name not in OURS and value is not None)

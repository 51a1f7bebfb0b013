"""covey runs: which runs were recorded, how did they go, and how do they differ?"""

from __future__ import annotations

import json as text_of
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import json_file, options
from covey.cli.errors import complain, explained
from covey.cli.options import flag
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.observe.records import RunRecordFolder

app = typer.Typer(help="List, show, compare and remove recorded runs.", no_args_is_help=True)

Folder = Annotated[
    Path | None, flag("--runs", "DIR", "The folder of the records. (default: COVEY_RUNS, or runs)", options.OUTPUT)
]
Name = Annotated[str, typer.Argument(metavar="ID", help="A record, or a part of its name.")]
Names = Annotated[list[str], typer.Argument(metavar="ID…", help="Records, or parts of their names.")]


@app.command("list")
def list_runs(runs: Folder = None, json: options.Json = None) -> None:
    """List the records, the oldest first."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.runs import print_runs
        from covey.observe.records import recorded_runs

        place = _folder(runs)
        found, unreadable = recorded_runs(place)
        for line in unreadable:
            complain("Unreadable:", line)
        if json is not None:
            json_file.write(json, _json([brief(record) for record in found]))
        if json != json_file.OUTPUT:
            print_runs(json_file.console(json), place, found)


@app.command("show")
def show(name: Name, runs: Folder = None, json: options.Json = None) -> None:
    """Show one record: what was asked, how it went, what was said."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.runs import print_run
        from covey.observe.records import named

        record = named(_folder(runs), name)
        if json is not None:
            json_file.write(json, _json(brief(record) | {"history": record.history}))
        if json != json_file.OUTPUT:
            print_run(json_file.console(json), record)


@app.command("compare")
def compare(names: Names, runs: Folder = None, json: options.Json = None) -> None:
    """Put records side by side: what differs in what was asked, and how each went."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.runs import print_side_by_side
        from covey.observe.records import named

        if len(names) < 2:
            raise PlanError("covey runs compare takes two or more records: covey runs list shows them")
        found = [named(_folder(runs), name) for name in names]
        if json is not None:
            json_file.write(json, _json([brief(record) for record in found]))
        if json != json_file.OUTPUT:
            print_side_by_side(json_file.console(json), found)


@app.command("rm")
def rm(names: Names, runs: Folder = None) -> None:
    """Remove records that have ended."""
    with explained("normal"):
        from covey.observe.records import named, remove

        for record in dict.fromkeys([named(_folder(runs), name) for name in names]):
            remove(record)
            json_file.console(None).print(f"removed {record.path}", markup=False, soft_wrap=True)


def brief(record: RunRecordFolder) -> dict[str, Any]:
    """A record in one line of JSON."""
    asked, last = record.facts.run, record.history[-1] if record.history else {}
    return {
        "id": record.facts.id, "kind": record.facts.kind, "began": record.facts.began, "status": record.status,
        "why": record.why, "verdict": record.verdict, "task": asked.task, "strategy": asked.strategy,
        "engine": asked.engine, "workers": asked.workers, "seed": asked.seed, "command": asked.command,
        "source": record.facts.source, "commit": record.facts.commit, "path": str(record.path), "last": last,
        "runs": len(record.inside()),
    }  # fmt: skip


def _folder(runs: Path | None) -> Path:
    return runs or Path(os.environ.get("COVEY_RUNS") or "runs")


def _json(value: Any) -> str:
    return text_of.dumps(value, indent=1) + "\n"

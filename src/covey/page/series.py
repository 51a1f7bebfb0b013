"""One run as columns of numbers: what charts draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from covey.observe.facts import JOURNAL, RunFacts, read_facts
from covey.observe.journal import JournalChange, JournalLine, JournalMoment, JournalScore, read_now
from covey.page.cluster import ClusterView, cluster
from covey.page.queue import SeenJob
from covey.page.study import StudyView, study
from covey.page.tail import JournalCursor, news

COLUMNS = ("at", "seconds", "samples", "updates", "bytes", "loss", "staleness")  # of a moment


class RunSeries(msgspec.Struct, kw_only=True):
    """What a journal says after a cursor; `whole` if it begins at the journal's beginning."""

    cursor: str
    whole: bool
    moments: dict[str, list[Any]]
    scores: list[dict[str, Any]]
    lines: list[tuple[float, str]]
    phase: str = ""
    facts: dict[str, Any] = {}
    now: ClusterView | None = None
    study: StudyView | None = None


def series(record: Path, since: JournalCursor) -> RunSeries:
    """What is new of a record, and its facts if all of it is."""
    events, cursor = news(record / JOURNAL, since)
    moments = [event for event in events if isinstance(event, JournalMoment)]
    whole = since.file != cursor.file or cursor.offset < since.offset
    lines = [(event.at, event.line) for event in events if isinstance(event, JournalLine)]
    lines += [
        (event.at, f"{event.change.event} of {event.change.who}: {event.change.cause}")
        for event in events
        if isinstance(event, JournalChange)
    ]
    return RunSeries(
        cursor=str(cursor),
        whole=whole,
        moments={name: [getattr(moment, name) for moment in moments] for name in COLUMNS},
        scores=[
            event.row | {"at": event.at, "measured": event.measured}
            for event in events
            if isinstance(event, JournalScore)
        ],
        lines=lines,
        phase=moments[-1].phase if moments else "",
        facts=_facts(record) if whole else {},
        now=cluster(now) if (now := read_now(record)) else None,
        study=study(record) if read_facts(record).kind == "study" else None,
    )


def job_series(job: SeenJob) -> RunSeries:
    """What became of a job, and what was asked; the numbers are those of its runs."""
    facts = {"job": job.row.id, "command": f"covey {job.row.strategy}", "submitted": job.row.began}
    empty: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    return RunSeries(cursor="", whole=True, moments=empty, scores=[], lines=job.lines, facts=facts)


def _facts(record: Path) -> dict[str, Any]:
    """What a person wants to know of a run, in the order of reading."""
    facts = read_facts(record)
    run = facts.run
    told = {
        "strategy": run.strategy, "task": run.task, "engine": run.engine, _many(run): run.workers,
        "servers": run.servers, "seed": run.seed, "command": run.command, "cluster": facts.cluster,
        "commit": facts.commit, **{f"setting {name}": value for name, value in run.settings.items()},
        **{f"version of {name}": value for name, value in run.versions.items()},
    }  # fmt: skip
    return {name: value for name, value in told.items() if value not in (None, "", 0)} | {"began": facts.began}


def _many(run: RunFacts) -> str:
    """What those are called who train."""
    return "clients" if run.taxonomy.get("optimization") == "federated" else "workers"

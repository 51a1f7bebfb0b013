"""The report of one run: its scores, where its time went, and what it was; in a notebook in a frame of its own."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from math import isfinite

import msgspec

from covey.observe.progress import Row
from covey.observe.result import Result
from covey.report.page import Cell, DrawnRun, Page, render
from covey.simulate.units import format_bytes, format_duration

OURS = ("seconds", "samples", "bytes", "loss")
POINTS = 200  # of a curve; a notebook is kept with all that it shows
TALL = 520  # pixels of the frame; what is longer scrolls


def framed(result: Result) -> str:
    """The report for a notebook: in a frame without scripts, whose styles touch nothing outside."""
    inside = escape(render(page_of(result)), quote=True)
    style = f"width:100%;height:{TALL}px;border:1px solid #8884;border-radius:6px"
    return f'<iframe sandbox="" title="covey: a run" style="{style}" srcdoc="{inside}"></iframe>'


def page_of(result: Result) -> Page:
    """One run as a page."""
    metric, target = _metric(result), result.reached
    drawn = msgspec.structs.replace(
        result, history=_thinned(result.history), usage=result.usage[:: 1 + len(result.usage) // POINTS]
    )
    many = f"{result.workers} worker{'s' if result.workers > 1 else ''}"
    where = "in virtual time" if result.engine == "simulated" else f"on the engine {result.engine}"
    scores = [value for row in result.history if (value := row.get(metric)) is not None]
    cells = {
        "run": Cell(result.strategy), "stopped by": Cell(result.stopped), "time": Cell(format_duration(result.seconds)),
        "samples": Cell(f"{result.samples:,}"), "updates": Cell(f"{result.updates:,}"),
        "sent": Cell(format_bytes(result.traffic.bytes)), **({metric: Cell(f"{scores[-1]:.4g}")} if scores else {}),
    }  # fmt: skip
    page = Page(
        title=result.strategy, summary=f"{result.task} on {many}, {where}.", metric=metric,
        target=target.target if target and target.metric == metric else None,
        headers=list(cells), rows=[list(cells.values())], runs=[DrawnRun(result.strategy, drawn)],
        command=result.command, remarks=result.failures[:5],
        facts={
            "Settings": {**result.taxonomy, **result.settings, "seed": result.seed, "threads": result.threads},
            "The machine": {**result.machine, **result.versions},
        },
    )  # fmt: skip
    recording = result.recording.excerpt() if result.recording else None
    return replace(page, runs=[replace(page.runs[0], recording=recording)])


def _metric(result: Result) -> str:
    """What the curves show: the target's metric, or the first of the task's."""
    if result.reached:
        return result.reached.metric
    own = (name for row in result.history for name in row if name not in OURS)
    return next(own, "loss")


def _thinned(history: list[Row]) -> list[Row]:
    """Some of the lines, the first and the last among them."""
    whole = [row for row in history if all(value is None or isfinite(value) for value in row.values())] or history
    every = 1 + len(whole) // POINTS
    kept = whole[::every]
    return kept if not whole or kept[-1] is whole[-1] else [*kept, whole[-1]]

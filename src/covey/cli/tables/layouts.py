"""Layouts of a model as a table on the output, and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.advise.trials.layouts import LayoutAnswer, command_of
from covey.parallelism.search import ModelLayout
from covey.parallelism.search.layouts import STUDY
from covey.simulate.units import format_bytes, format_duration

SHOWN = 8
"""Rows of the table, unless all are asked for."""


def print_layouts(
    console: Console, answer: LayoutAnswer, task: str, saved: Path | None, *, everything: bool
) -> None:  # fmt: skip
    """The layouts, the best one and what to type for it."""
    shown = answer.layouts if everything else answer.layouts[:SHOWN]
    console.print(_table(answer, shown))
    best = answer.best
    assert best is not None
    first = answer.layouts[0]
    gain = f", {first.pace / best.pace:.2f} times as fast as data parallel" if best is not first else ""
    console.print(f"\nbest  {best.plan}{gain}", soft_wrap=True, markup=False)
    if best.splits:
        divided = ", ".join(f"{name} by {way}" for name, way in best.splits)
        console.print(f"      {divided}", soft_wrap=True, markup=False)
    others = [one for one in shown if one is not best and one.runs and answer.fits(one)]
    for number, layout in enumerate([best, *others]):
        title = "run   " if not number else "      "
        console.print(f"{title}{command_of(layout, task)}", soft_wrap=True, markup=False)
    for note in answer.graph.notes:
        console.print(f"note  {note}", soft_wrap=True, markup=False)
    for layout in shown:
        if layout.why_not:
            console.print(Text(f"note  {layout.plan}: {layout.why_not}", "dim"), soft_wrap=True)
    if saved is not None:
        console.print(f"plan  {saved}", soft_wrap=True)


def _table(answer: LayoutAnswer, shown: tuple[ModelLayout, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("plan", overflow="fold", min_width=18)  # what is marked is marked here, where lines may be folded
    tried = any(layout.judged is not None for layout in shown)
    for header in ("step", *(["virtual"] if tried else []), "samples/s", "memory", "bytes", "found by"):
        table.add_column(header, justify="left" if header == "found by" else "right", no_wrap=True)
    for layout in shown:
        virtual = [format_duration(layout.judged) if layout.judged is not None else "-"] if tried else []
        over = "" if answer.fits(layout) else ", too much memory"
        mark = "" if layout.runs else f", {STUDY}" if layout.why_not.startswith(STUDY) else ", refused"
        table.add_row(
            layout.plan + over + mark, format_duration(layout.step), *virtual, f"{1 / layout.pace:,.0f}",
            format_bytes(layout.memory), format_bytes(layout.traffic), layout.method,
        )  # fmt: skip
    return table


def answer_json(answer: LayoutAnswer, task: str) -> str:
    """`covey.search/1`."""
    rows = [
        {**facts, "command": command_of(layout, task) if layout.runs else None}
        for facts, layout in zip(answer.facts(), answer.layouts, strict=True)
    ]
    return json.dumps({**_about(answer, task, "covey.search/1"), "layouts": rows}, indent=1) + "\n"


def plan_json(answer: LayoutAnswer, task: str) -> str:
    """`covey.plan/1`: the fastest layout that a run can do."""
    best = answer.best
    assert best is not None
    place = answer.layouts.index(best)
    about = _about(answer, task, "covey.plan/1")
    return json.dumps({**about, **answer.facts()[place], "command": command_of(best, task)}, indent=1) + "\n"


def _about(answer: LayoutAnswer, task: str, schema: str) -> dict[str, object]:
    limit = answer.devices.memory
    return {
        "schema": schema, "task": task, "machines": answer.terms.machines, "method": answer.terms.method,
        "memory_limit": limit if math.isfinite(limit) else None, "counted": answer.terms.counted,
        "operators": len(answer.graph), "choices": len(answer.graph.groups),
    }  # fmt: skip

"""One self-contained HTML file: a table, charts, and how to get the same again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from covey import atomic_file
from covey.observe.recording import Recording
from covey.observe.result import Result
from covey.report import charts, lanes, mesh, pictures, round_charts


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """A run as it is drawn: what it is called, and what came of it."""

    label: str
    result: Result
    recording: Recording | None = None  # a few steps of it


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table: what is written, the range below it, whether it is the best of its column."""

    text: str
    note: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a report says."""

    title: str
    summary: str
    metric: str
    target: float | None = None  # of that metric
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    runs: Sequence[DrawnRun]
    command: str = ""
    remarks: Sequence[str] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    charts: Sequence[charts.Chart] = ()  # further ones, before those of the runs
    labels: Sequence[str] = ()  # of the lines in them, in the order of their colours


def write(page: Page, path: Path, interactive: bool = False) -> None:
    """Write the page whole or not at all."""
    atomic_file.write(path, render(page, interactive))


def render(page: Page, interactive: bool = False) -> str:
    """The page as HTML; an interactive one brings Plotly along, which is 5 MB."""
    runs = [(run.label, run.result) for run in page.runs]
    drawn = [*page.charts, *charts.all_of(runs, page.metric, page.target), *round_charts.all_of(runs)]
    return "".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>{escape(page.title)}</title><style>{_asset('page.css')}</style></head><body><main>",
            f"<header><p class='brand'>covey</p><h1>{escape(page.title)}</h1><p>{escape(page.summary)}</p></header>",
            _table(page),
            "".join(f"<p class='remark'>{escape(remark)}</p>" for remark in page.remarks),
            "".join(mesh.section(label, result) for label, result in runs),
            "".join(_section(chart, "" if interactive else pictures.draw(chart)) for chart in drawn),
            _lanes(page),
            _again(page),
            f"</main>{_script(drawn) if interactive else ''}</body></html>\n",
        ]
    )


def _script(drawn: Sequence[charts.Chart]) -> str:
    return (
        f"<script>{_plotly()}</script><script id='charts' type='application/json'>{_json(drawn)}</script>"
        f"<script>{_asset('page.js')}</script>"
    )


def _table(page: Page) -> str:
    labels = page.labels or [run.label for run in page.runs]
    colours = {label: charts.colour(number) for number, label in enumerate(labels)}
    head = "".join(f"<th>{escape(header)}</th>" for header in page.headers)
    body = []
    for first, *rest in page.rows:
        dot = f"<i class='dot' style='background:{colours.get(first.text, 'transparent')}'></i>"
        cells = [f"<th>{dot}{escape(first.text)}{_note(first)}</th>"]
        cells += [f"<td>{_value(cell)}{_note(cell)}</td>" for cell in rest]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"


def _value(cell: Cell) -> str:
    return f"<b class='best'>{escape(cell.text)}</b>" if cell.best else escape(cell.text)


def _note(cell: Cell) -> str:
    return f"<small>{escape(cell.note)}</small>" if cell.note else ""


def _section(chart: charts.Chart, picture: str) -> str:
    """A chart with its words; one without a picture is drawn by the script."""
    tall = f" style='height:{chart.height}px'" if chart.height else ""
    place = picture or f"<div class='chart' id='{chart.name}'{tall}></div>"
    return f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>{place}</section>"


def _lanes(page: Page) -> str:
    """A few steps of each run as swim lanes, the first one open."""
    pictures = [(run.label, run.recording) for run in page.runs if run.recording and run.recording.spans]
    if not pictures:
        return ""
    drawn = [
        f"<details class='lanes'{' open' if number == 0 else ''}><summary>{escape(label)}</summary>"
        f"<div class='wide'>{lanes.draw(recording, recording.begin, name=f'lanes{number}')}</div></details>"
        for number, (label, recording) in enumerate(pictures)
    ]
    words = "A few steps of each run. Filled: computing; hatched: waiting; arrows: messages."
    return f"<section><h2>What each role did when</h2><p>{words}</p>{''.join(drawn)}</section>"


def _again(page: Page) -> str:
    command = f"<pre>{escape(page.command)}</pre>" if page.command else ""
    facts = []
    for title, values in page.facts.items():
        pairs = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in values.items())
        facts.append(f"<details><summary>{escape(title)}</summary><dl>{pairs}</dl></details>")
    return f"<section class='again'><h2>The same again</h2>{command}{''.join(facts)}</section>"


def _json(drawn: Sequence[charts.Chart]) -> str:
    """The charts for the script; nothing in them can end the script's element, and there is no NaN in JSON."""
    data = [{"name": chart.name, "data": chart.data, "layout": chart.layout} for chart in drawn]
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _asset(name: str) -> str:
    return files("covey.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")

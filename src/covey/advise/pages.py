"""Advice as pages that open in a browser: how strategies scale, and what the least delays are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey.advise.delay import PATTERNS, ExchangeCosts, delay
from covey.advise.scale import Point, Scaling
from covey.report import Cell, Page
from covey.report.charts import Chart, colour
from covey.simulate.units import format_bytes, format_duration, format_rate

MOST = 1024  # workers of the delay figure


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the scaling page."""

    name: str
    title: str
    unit: str
    caption: str
    measure: Callable[[Point], float | None]


PANELS = (
    Panel(
        "speed-up", "Speed-up", "speed-up",
        "Samples per second, in those of the fastest worker alone; the dashed line is as many as there are workers.",
        lambda point: point.speed_up,
    ),
    Panel(
        "time", "Time per sample", "seconds",
        "Seconds of the whole cluster for one sample. How many samples a target takes is another question: more "
        "workers need more of them (covey advise, covey compare).",
        lambda point: 1 / point.per_second if point.per_second else None,
    ),
    Panel("cost", "Cost", "money", "Money for a million samples.", lambda point: point.money),
    Panel("sent", "Traffic", "bytes", "Bytes of exchange for one sample.", lambda point: point.sent or None),
)  # fmt: skip


def scaling_page(whole: Scaling) -> Page:
    """Speed-up, time per sample and cost against workers."""
    charts = [_against(whole, panel) for panel in PANELS]
    sizes = whole.sizes
    return Page(
        title=f"{len(whole.specs)} strategies on {sizes[0]:,} to {sizes[-1]:,} workers",
        summary=f"{whole.task}: nothing was trained. {whole.assumed.lines(whole.task)[0]}", metric="", runs=[],
        labels=whole.specs,
        headers=["speed-up on", *(f"{size:,}" for size in sizes)],
        rows=[_row(whole, spec) for spec in whole.specs], charts=[chart for chart in charts if chart],
        command=whole.command, remarks=_failures(whole),
    )  # fmt: skip


def _row(whole: Scaling, spec: str) -> list[Cell]:
    cells = [Cell(spec)]
    for size in whole.sizes:
        point = whole.at(spec, size)
        best = max((other.speed_up for other in whole.points if other.workers == size), default=0.0)
        if point is None or point.failure:
            cells.append(Cell("–"))
            continue
        note = f"{point.per_second:,.0f} samples/s"
        cells.append(Cell(f"{point.speed_up:,.3g}x", note, point.speed_up == best and len(whole.specs) > 1))
    return cells


def _failures(whole: Scaling) -> list[str]:
    return [f"{point.spec} on {point.workers:,} workers: {point.failure}" for point in whole.points if point.failure]


def _against(whole: Scaling, panel: Panel) -> Chart | None:
    data = []
    for number, spec in enumerate(whole.specs):
        points = [point for point in whole.points if point.spec == spec and not point.failure]
        pairs = [(point.workers, value) for point in points if (value := panel.measure(point)) is not None]
        if pairs:
            data.append(_line(spec, number, [x for x, _ in pairs], [y for _, y in pairs]))
    if not data:
        return None
    if panel.name == "speed-up":
        data.append(_dashed("ideal", whole.sizes, [float(size) for size in whole.sizes]))
    return Chart(
        name=panel.name, title=panel.title, caption=panel.caption, data=data, layout=_axes("workers", panel.unit)
    )


def delays_page(net: ExchangeCosts, compute: float, name: str, command: str = "") -> Page:
    """The survey's Figure 14 for one's own model and network, with one's own compute time as the line."""
    sizes = [2**k for k in range(1, MOST.bit_length())]
    data = [
        _line(pattern, number, sizes, [delay(pattern, n, net) for n in sizes])
        for number, pattern in enumerate(PATTERNS)
    ]
    data.append(_dashed("computing a batch", sizes, [compute] * len(sizes)))
    chart = Chart(
        name="delays", title="The least time of one exchange", data=data, layout=_axes("workers", "seconds"),
        caption="No latency, no contention: what no implementation can beat (Langer et al. 2020, Figure 14). Below the "
        "dashed line a batch takes longer than its exchange.", height=460,
    )  # fmt: skip
    shown = [n for n in sizes if n in (2, 4, 8, 32, 128, 1024)]
    return Page(
        title=f"{format_bytes(net.bytes)} at {format_rate(net.bandwidth)}, {format_duration(compute)} of compute",
        summary=f"{name}: the least delay of exchanging one gradient, by pattern.", metric="", runs=[],
        headers=["workers", *(str(n) for n in shown)], labels=list(PATTERNS), charts=[chart], command=command,
        rows=[
            [Cell(pattern), *(_delay_cell(delay(pattern, n, net), compute) for n in shown)] for pattern in PATTERNS
        ],
    )  # fmt: skip


def _delay_cell(seconds: float, compute: float) -> Cell:
    return Cell(format_duration(seconds), f"{compute / (compute + seconds):.0%} computing", seconds <= compute / 5)


def _line(name: str, number: int, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y), "marker": {"size": 5},
        "line": {"color": colour(number), "width": 2}, "hovertemplate": "%{y:.4g} on %{x:,} workers",
    }  # fmt: skip


def _dashed(name: str, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    line = {"color": "#888888", "width": 1.5, "dash": "dash"}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": line}


def _axes(across: str, up: str) -> dict[str, Any]:
    return {
        "xaxis": {
            "title": {"text": across}, "type": "log", "exponentformat": "none", "separatethousands": True, "dtick": 1
        },
        "yaxis": {"title": {"text": up}, "type": "log", "exponentformat": "SI", "dtick": "D2"},
    }  # fmt: skip

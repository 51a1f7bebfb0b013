"""The charts of a report as data for Plotly; the same run has the same colour in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from covey.observe.result import Result

Named = tuple[str, Result]

# Okabe and Ito's colours, which people with any kind of sight tell apart, then darker ones.
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c00", "#7f3c8d", "#3969ac", "#a5aa99",
)  # fmt: skip
SHARES = (("compute", "#009e73"), ("exchange", "#e69f00"), ("waiting", "#b8b8b8"))
WIDE = 30.0  # times: an axis over more than this is logarithmic
ROLES = 64  # more roles than this make no picture of links


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture with its words."""

    name: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 0


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def all_of(runs: Sequence[Named], metric: str, target: float | None = None) -> list[Chart]:
    """The charts that these runs have something to show in."""
    found = [
        _against(runs, metric, target, "seconds", "time"),
        _against(runs, metric, target, "samples", "samples"),
        _against(runs, metric, target, "bytes", "traffic"),
        _spent(runs), _stale(runs), _links(runs), _members(runs), *_usage(runs),
    ]  # fmt: skip
    return [chart for chart in found if chart is not None]


AXES = {
    "seconds": "seconds of training; scoring does not count",
    "samples": "samples that all workers together have seen",
    "bytes": "bytes of exchange that were sent",
}


def _against(runs: Sequence[Named], metric: str, target: float | None, axis: str, title: str) -> Chart | None:
    curves = [(label, _curve(result, axis, metric)) for label, result in runs]
    everything = [x for _, points in curves for x, _ in points if x > 0]
    if not everything:
        return None
    kind = "log" if max(everything) > WIDE * min(everything) else "linear"
    data = []
    for number, (label, points) in enumerate(curves):
        shown = [(x, y) for x, y in points if x > 0 or kind == "linear"]  # a logarithm has no place for the start, at 0
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": label, "legendgroup": label,
                "x": [x for x, _ in shown], "y": [y for _, y in shown],
                "line": {"color": colour(number), "width": 2}, "marker": {"size": 5},
                "hovertemplate": f"%{{y:.4g}} at %{{x:.4g}} {axis}",
            }
        )  # fmt: skip
    shape: dict[str, Any] = {
        "xaxis": {"title": {"text": AXES[axis]}, "type": kind, "exponentformat": "SI"},
        "yaxis": {"title": {"text": metric}},
    }
    if target is not None:
        line = {"color": "#888888", "width": 1, "dash": "dash"}
        across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target, "line": line}
        shape["shapes"] = [across]
    caption = f"How {metric} changed with {title}" + (", on a logarithmic axis" if kind == "log" else "")
    caption += "; the dashed line is the target." if target is not None else "."
    name = metric[:1].upper() + metric[1:]
    return Chart(name=f"by-{axis}", title=f"{name} against {title}", caption=caption, data=data, layout=shape)


def _curve(result: Result, axis: str, metric: str) -> list[tuple[float, float]]:
    """The points of a run, from the initial weights on."""
    lines = [(row[axis], row.get(metric)) for row in result.history]
    return [(x, y) for x, y in lines if x is not None and y is not None and isfinite(y)]


def _spent(runs: Sequence[Named]) -> Chart | None:
    labels, shares = [], []
    for label, result in runs:
        for kind in dict.fromkeys(name.rpartition(" ")[0] for name in result.roles):
            members = [share for name, share in result.roles.items() if name.rpartition(" ")[0] == kind]
            labels.append(f"{label} · {len(members)} {kind}{'s' if len(members) > 1 else ''}")
            shares.append({part: sum(getattr(m, part) for m in members) / len(members) for part, _ in SHARES})
    if not labels:
        return None
    data = [
        {
            "type": "bar", "orientation": "h", "name": part, "y": labels, "x": [share[part] for share in shares],
            "marker": {"color": paint}, "hovertemplate": "%{x:.0%} " + part,
        }
        for part, paint in SHARES
    ]  # fmt: skip
    shape = {
        "barmode": "stack", "legend": {"traceorder": "normal"}, "xaxis": {"tickformat": ".0%", "range": [0, 1]},
        "yaxis": {"autorange": "reversed", "automargin": True},
    }  # fmt: skip
    caption = "The mean over the roles of a kind: computing gradients, exchanging and updating, waiting for others."
    return Chart(
        name="spent", title="Where the time went", caption=caption, data=data, layout=shape,
        height=120 + 26 * len(labels),
    )  # fmt: skip


def _stale(runs: Sequence[Named]) -> Chart | None:
    data = []
    for number, (label, result) in enumerate(runs):
        counts = {int(age): many for age, many in result.staleness.histogram.items()}
        if not counts or set(counts) == {0}:
            continue
        total = sum(counts.values())
        ages = range(max(counts) + 1)
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "line": {"shape": "hvh", "color": colour(number)},
                "name": label, "legendgroup": label, "x": list(ages),
                "y": [counts.get(age, 0) / total for age in ages], "hovertemplate": "%{y:.1%} were %{x} updates old",
            }
        )  # fmt: skip
    if not data:
        return None
    shape = {
        "xaxis": {"title": {"text": "updates that a gradient's weights were old"}},
        "yaxis": {"tickformat": ".0%", "title": {"text": "of all gradients"}},
    }
    return Chart(
        name="staleness", title="Staleness", data=data, layout=shape,
        caption="How old the weights were on which applied gradients were computed. Strategies that are not shown "
        "applied fresh gradients only, or keep models instead of applying others' gradients.",
    )  # fmt: skip


def _links(runs: Sequence[Named]) -> Chart | None:
    data, buttons = [], []
    drawn = [(label, result) for label, result in runs if result.traffic.by_link and len(result.roles) <= ROLES]
    for number, (label, result) in enumerate(drawn):
        names = list(result.roles)
        links = result.traffic.by_link
        grid = [[links.get(f"{sender}->{to}") for to in names] for sender in names]
        data.append(
            {
                "type": "heatmap", "x": names, "y": names, "z": grid, "visible": number == 0,
                "zauto": False, "zmin": 0, "zmax": max(links.values()),
                "colorscale": [[0, "#e3eef9"], [0.5, "#4a90c9"], [1, "#08306b"]],
                "colorbar": {"title": {"text": "bytes"}, "tickformat": ".3s"},
                "hovertemplate": "%{y} sent %{x} %{z:.4s}B<extra></extra>",
            }
        )  # fmt: skip
        show = [one == number for one in range(len(drawn))]
        buttons.append({"label": label, "method": "update", "args": [{"visible": show}]})
    if not data:
        return None
    shape = {
        "xaxis": {"title": {"text": "to"}}, "yaxis": {"title": {"text": "from"}, "autorange": "reversed"},
        "updatemenus": [{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.18, "yanchor": "top"}],
    }  # fmt: skip
    most = max(len(result.roles) for _, result in drawn)
    return Chart(
        name="links", title="Who sent how much to whom", caption="Bytes of exchange on each link; choose a strategy.",
        data=data, layout=shape, height=max(360, 160 + 22 * most),
    )  # fmt: skip


USES = (
    ("cpu", "CPU", "cores", "The cores that all roles together used."),
    ("memory", "Memory", "bytes", "The memory that all roles together held."),
    ("threads", "Threads", "threads", "The threads of all roles."),
    ("network", "Network", "bytes per second", "The exchange that all roles together sent."),
)


def _usage(runs: Sequence[Named]) -> list[Chart]:
    charts = []
    for name, title, unit, words in USES:
        data = [
            {
                "type": "scatter", "mode": "lines", "name": label, "legendgroup": label,
                "line": {"color": colour(number), "width": 1.5}, "hovertemplate": "%{y:.4s} after %{x:.3g} s",
                "x": [row["seconds"] for row in result.usage], "y": [row[name] for row in result.usage],
            }
            for number, (label, result) in enumerate(runs) if result.usage
        ]  # fmt: skip
        if data:
            upward = {"title": {"text": unit}, "rangemode": "tozero"}
            shape = {"xaxis": {"title": {"text": "seconds"}}, "yaxis": upward}
            charts.append(Chart(name=name, title=title, caption=words, data=data, layout=shape))
    return charts


def _members(runs: Sequence[Named]) -> Chart | None:
    """How many workers there were, where they came and went."""
    data = [
        {
            "type": "scatter", "mode": "lines", "name": label, "legendgroup": label,
            "line": {"color": colour(number), "width": 2}, "hovertemplate": "%{y} workers after %{x:.3g} s",
            "x": [seconds for seconds, _ in found], "y": [workers for _, workers in found],
        }
        for number, (label, result) in enumerate(runs) if (found := _present(result))
    ]  # fmt: skip
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": "seconds"}}, "yaxis": {"title": {"text": "workers"}, "rangemode": "tozero"}
    }  # fmt: skip
    words = "Workers that were there: each step is one that left or joined."
    return Chart(name="members", title="Workers", caption=words, data=data, layout=layout)


def _present(result: Result) -> list[tuple[float, int]]:
    """The corners of the line."""
    events = [event for event in result.membership or () if event.event in ("leave", "join")]
    if not events:
        return []
    workers = events[0].workers + (1 if events[0].event == "leave" else -1)
    found = [(0.0, workers)]
    for event in events:
        found += [(event.seconds, workers), (event.seconds, event.workers)]
        workers = event.workers
    return [*found, (max(result.seconds, events[-1].seconds), workers)]

"""The charts of a report as SVG: a page with them needs no script, and has a hundredth of the size of Plotly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from covey.report.axes import ChartAxis, numbers, words
from covey.report.charts import Chart

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 1000, 360, 76, 16, 12, 48
LETTER = 7.2  # the width of one, about
SHADES = ("#e3eef9", "#4a90c9", "#08306b")


def draw(chart: Chart) -> str:
    """A chart with its legend, or several where it has a choice of them."""
    kind = chart.data[0]["type"]
    if kind == "heatmap":
        return _choice(chart)
    lines = [trace for trace in chart.data if any(True for _ in _points(trace))]
    body = _bars(chart) if kind == "bar" else _lines(chart, lines)
    return body + _legend(lines)


class _PlotArea:
    """The area between the axes."""

    def __init__(self, x: ChartAxis, y: ChartAxis, height: int, left: float, down: bool = False) -> None:
        self.x_axis, self.y_axis, self.height, self.left, self.down = x, y, height, left, down

    def x(self, value: float | str) -> float:
        return round(self.left + self.x_axis.at(value) * (WIDTH - RIGHT - self.left), 1)

    def y(self, value: float | str) -> float:
        share = self.y_axis.at(value)
        return round(TOP + (share if self.down else 1 - share) * (self.height - TOP - FOOT), 1)

    def whole(self, inside: str, across: str, up: str, label: str) -> str:
        """The picture, with what the axes are called."""
        below = f"x='{(self.left + WIDTH - RIGHT) / 2:.0f}' y='{self.height - 8}'"
        beside = f"transform='translate(14 {self.height / 2:.0f}) rotate(-90)'"
        named = f"role='img' aria-label='{escape(label, quote=True)}'"
        return (
            f"<svg class='plot' viewBox='0 0 {WIDTH} {self.height}' {named}>{''.join(self._grid())}{inside}"
            f"<text {below} text-anchor='middle'>{escape(across)}</text>"
            f"<text {beside} text-anchor='middle'>{escape(up)}</text></svg>"
        )

    def _grid(self) -> Iterator[str]:
        bottom, right = self.height - FOOT, WIDTH - RIGHT
        for share, text in self.x_axis.marks():
            x = round(self.left + share * (right - self.left), 1)
            yield f"<line x1='{x}' x2='{x}' y1='{TOP}' y2='{bottom}'/>"
            yield f"<text x='{x}' y='{bottom + 17}' text-anchor='middle'>{escape(text)}</text>"
        for share, text in self.y_axis.marks():
            y = round(TOP + (share if self.down else 1 - share) * (bottom - TOP), 1)
            yield f"<line x1='{self.left}' x2='{right}' y1='{y}' y2='{y}'/>"
            yield f"<text x='{self.left - 8}' y='{y + 4}' text-anchor='end'>{escape(text)}</text>"


def _points(trace: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    yield from zip(trace["x"], trace["y"], strict=True)


def _axis(chart: Chart, name: str, traces: Sequence[dict[str, Any]]) -> ChartAxis:
    shape = chart.layout.get(f"{name}axis", {})
    values = [value for trace in traces for value in trace[name] if value is not None]
    if any(isinstance(value, str) for value in values):
        return words(values)
    values += [line["y0"] for line in chart.layout.get("shapes", []) if name == "y"]
    percent = "%" in shape.get("tickformat", "")
    return numbers(values, log=shape.get("type") == "log", zero=shape.get("rangemode") == "tozero", percent=percent)


def _title(chart: Chart, name: str) -> str:
    return str(chart.layout.get(f"{name}axis", {}).get("title", {}).get("text", ""))


def _left(axis: ChartAxis) -> float:
    return max(LEFT, 28 + LETTER * max((len(text) for _, text in axis.marks()), default=0))


def _lines(chart: Chart, traces: Sequence[dict[str, Any]]) -> str:
    x, y = _axis(chart, "x", traces), _axis(chart, "y", traces)
    frame = _PlotArea(x, y, chart.height or HEIGHT, _left(y), down=bool(y.names))
    parts = []
    for line in chart.layout.get("shapes", []):
        at = frame.y(line["y0"])
        parts.append(f"<path class='dashed' stroke='#888888' d='M{frame.left} {at} H{WIDTH - RIGHT}'/>")
    for trace in traces:
        drawn = [(a, b) for a, b in _points(trace) if x.shows(a) and y.shows(b)]
        paint, mode = trace.get("line", trace.get("marker", {})).get("color", "#888888"), trace.get("mode", "lines")
        if "lines" in mode and drawn:
            kind = " class='dashed'" if trace["line"].get("dash") else ""
            parts.append(f"<path{kind} stroke='{paint}' d='M{_route(frame, drawn, trace)}'/>")
        if "markers" in mode:
            parts += [_marker(frame, a, b, paint, trace["name"]) for a, b in drawn]
    return frame.whole("".join(parts), _title(chart, "x"), _title(chart, "y"), chart.title)


def _route(frame: _PlotArea, points: Sequence[tuple[Any, Any]], trace: dict[str, Any]) -> str:
    places = [(frame.x(a), frame.y(b)) for a, b in points]
    if trace["line"].get("shape") != "hvh":
        return " L".join(f"{a} {b}" for a, b in places)
    route = f"{places[0][0]} {places[0][1]}"
    for (a, _), (b, y) in pairwise(places):
        route += f" H{(a + b) / 2:.1f} V{y} H{b}"
    return route


def _marker(frame: _PlotArea, a: Any, b: Any, paint: str, name: str) -> str:
    told = f"{name}: {_word(b)} at {_word(a)}"
    return f"<circle fill='{paint}' cx='{frame.x(a)}' cy='{frame.y(b)}' r='3.5'><title>{escape(told)}</title></circle>"


def _word(value: object) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _bars(chart: Chart) -> str:
    """Stacked bars to the right, one for each label."""
    labels = words(chart.data[0]["y"])
    frame = _PlotArea(ChartAxis(0, 1, percent=True), labels, chart.height or HEIGHT, _left(labels), down=True)
    thick = 0.6 * (frame.height - TOP - FOOT) / len(labels.names)
    parts, ends = [], dict.fromkeys(labels.names, 0.0)
    for trace in chart.data:
        for share, label in _points(trace):
            begin, ends[label] = ends[label], min(1.0, ends[label] + share)
            left, right = frame.x(begin), frame.x(ends[label])
            told = f"<title>{escape(label)}: {share:.0%} {escape(trace['name'])}</title>"
            place = f"x='{left}' y='{frame.y(label) - thick / 2:.1f}' width='{right - left:.1f}' height='{thick:.1f}'"
            parts.append(f"<rect fill='{trace['marker']['color']}' {place}>{told}</rect>")
    return frame.whole("".join(parts), "", "", chart.title)


def _choice(chart: Chart) -> str:
    """Grids of numbers, one below the other; the first is open."""
    names = [button["label"] for button in chart.layout["updatemenus"][0]["buttons"]]
    return "".join(
        f"<details{' open' if number == 0 else ''}><summary>{escape(name)}</summary>{_grid(chart, trace)}</details>"
        for number, (name, trace) in enumerate(zip(names, chart.data, strict=True))
    )


def _grid(chart: Chart, trace: dict[str, Any]) -> str:
    x, y = words(trace["x"]), words(trace["y"])
    frame = _PlotArea(x, y, chart.height or HEIGHT, _left(y), down=True)
    wide, high = (WIDTH - RIGHT - frame.left) / len(x.names), (frame.height - TOP - FOOT) / len(y.names)
    parts = []
    for name, row in zip(trace["y"], trace["z"], strict=True):
        for to, value in zip(trace["x"], row, strict=True):
            if value is not None:
                shade = SHADES[min(2, int(3 * value / (trace["zmax"] or 1)))]
                told = f"<title>{escape(name)} sent {escape(to)} {value:,} bytes</title>"
                place = f"x='{frame.x(to) - wide / 2:.1f}' y='{frame.y(name) - high / 2:.1f}'"
                parts.append(f"<rect fill='{shade}' {place} width='{wide:.1f}' height='{high:.1f}'>{told}</rect>")
    return frame.whole("".join(parts), _title(chart, "x"), _title(chart, "y"), chart.title)


def _legend(traces: Sequence[dict[str, Any]]) -> str:
    paints = {t["name"]: t.get("line", t.get("marker", {})).get("color", "#888888") for t in traces}
    dots = (f"<i class='dot' style='background:{paint}'></i>{escape(name)}" for name, paint in paints.items())
    return f"<p class='legend'>{''.join(f'<span>{dot}</span>' for dot in dots)}</p>"

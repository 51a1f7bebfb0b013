"""A run as swim lanes: each role a lane, blocks of computing, messages as arrows, waits hatched."""

from __future__ import annotations

from html import escape

from covey.observe.recording import Arrow, Recording, TimeSpan
from covey.simulate.units import format_bytes, format_duration

LANE, BAR, LEFT, TOP, WIDTH, FOOT = 52, 26, 104, 46, 1000, 56
COLOURS = ("#d55e00", "#0072b2", "#cc79a7", "#7a7a00", "#56b4e9", "#8c5fbf")
TICKS = 8

STYLE = """
svg.lanes { --ink: #1c2127; --soft: #5c6670; --line: #dde2e7; --paper: #ffffff; --work: #009e73; }
svg.lanes { background: var(--paper); }
@media (prefers-color-scheme: dark) {
  svg.lanes { --ink: #e6e9ec; --soft: #9aa5b1; --line: #333b44; --paper: #14181c; --work: #1fae86; }
}
svg.lanes text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg.lanes .name, svg.lanes .title { fill: var(--ink); font-weight: 600; }
svg.lanes .title { font-size: 15px; }
svg.lanes .axis { stroke: var(--line); }
svg.lanes .work { fill: var(--work); }
svg.lanes .wait { stroke: var(--line); }
svg.lanes .message { stroke-width: 1.2; fill: none; opacity: 0.85; }
"""


def draw(recording: Recording, begin: float = 0.0, end: float | None = None, name: str = "lanes") -> str:
    """The SVG of a recording, or of the time from `begin` to `end` of it; pictures on one page have `name`s."""
    end = recording.seconds if end is None else end
    frame = _Frame(recording, begin, max(end, begin + 1e-9), name)
    height = TOP + LANE * len(recording.roles) + FOOT
    title = f"{recording.strategy} · {recording.engine}" if recording.strategy else ""
    return "".join(
        [
            f"<svg class='lanes' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {LEFT + WIDTH + 16} {height}' "
            f"role='img' aria-label='{escape(title, quote=True)}'><style>{STYLE}</style>{_patterns(frame)}",
            f"<text class='title' x='{LEFT}' y='24'>{escape(title)}</text>",
            _axis(frame, height),
            *(_lane(frame, number, name) for number, name in enumerate(recording.roles)),
            *(_block(frame, span) for span in recording.spans if frame.shows(span.begin, span.end)),
            *(_message(frame, arrow) for arrow in recording.arrows if frame.shows(arrow.sent, arrow.arrived)),
            _legend(frame, height),
            "</svg>\n",
        ]
    )


class _Frame:
    """What is shown, and where a moment of a lane lies in it."""

    def __init__(self, recording: Recording, begin: float, end: float, name: str) -> None:
        self.begin, self.end, self.name = begin, end, name
        self.lanes = {name: number for number, name in enumerate(recording.roles)}
        kinds = dict.fromkeys(arrow.kind for arrow in recording.arrows if self.shows(arrow.sent, arrow.arrived))
        self.colours = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(kinds)}

    def shows(self, begin: float, end: float | None) -> bool:
        return begin <= self.end and (end is None or end >= self.begin)

    def x(self, at: float) -> float:
        share = (min(max(at, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(LEFT + share * WIDTH, 2)

    def y(self, who: str) -> float:
        return TOP + LANE * self.lanes[who] + LANE / 2


def _patterns(frame: _Frame) -> str:
    heads = "".join(
        f"<marker id='{frame.name}-{kind}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
        f"orient='auto'>"
        f"<path d='M0 0 L8 4 L0 8 z' fill='{paint}'/></marker>"
        for kind, paint in frame.colours.items()
    )
    hatch = "<path d='M0 6 L6 0' stroke='var(--soft)' stroke-width='0.9'/>"
    pattern = f"<pattern id='{frame.name}' width='6' height='6' patternUnits='userSpaceOnUse'>{hatch}</pattern>"
    return f"<defs>{pattern}{heads}</defs>"


def _axis(frame: _Frame, height: int) -> str:
    bottom, parts = height - FOOT, []
    for tick in range(TICKS + 1):
        at = frame.begin + (frame.end - frame.begin) * tick / TICKS
        x = frame.x(at)
        parts.append(f"<line class='axis' x1='{x}' x2='{x}' y1='{TOP - 6}' y2='{bottom}'/>")
        anchor = "start" if tick == 0 else "end" if tick == TICKS else "middle"
        parts.append(f"<text x='{x}' y='{bottom + 16}' text-anchor='{anchor}'>{format_duration(at)}</text>")
    return "".join(parts)


def _lane(frame: _Frame, number: int, name: str) -> str:
    y = frame.y(name)
    line = f"<line class='axis' x1='{LEFT}' x2='{LEFT + WIDTH}' y1='{y}' y2='{y}'/>"
    return f"<text class='name' x='{LEFT - 12}' y='{y + 4}' text-anchor='end'>{escape(name)}</text>{line}"


def _block(frame: _Frame, span: TimeSpan) -> str:
    left, right, y = frame.x(span.begin), frame.x(span.end), frame.y(span.who)
    kind, words = ("wait", f"waits for {span.what}") if span.what else ("work", "computes")
    told = f"{span.who} {words}, {format_duration(span.end - span.begin)}"
    shape = f"x='{left}' y='{y - BAR / 2}' width='{max(right - left, 0.5):.2f}' height='{BAR}' rx='2'"
    return f"<rect class='{kind}'{_fill(frame, kind)} {shape}><title>{escape(told)}</title></rect>"


def _message(frame: _Frame, arrow: Arrow) -> str:
    begin, end = frame.y(arrow.sender), frame.y(arrow.to)
    down = 1 if end > begin else -1
    # from the edge of one bar to the edge of the other
    start = f"{frame.x(arrow.sent)} {begin + down * BAR / 2}"
    stop = f"{frame.x(arrow.arrived if arrow.arrived is not None else frame.end)} {end - down * BAR / 2}"
    told = f"{arrow.kind}, {format_bytes(arrow.size)}, from {arrow.sender} to {arrow.to}"
    return (
        f"<path class='message' d='M{start} L{stop}' stroke='{frame.colours[arrow.kind]}' "
        f"marker-end='url(#{frame.name}-{arrow.kind})'><title>{escape(told)}</title></path>"
    )


def _fill(frame: _Frame, kind: str) -> str:
    return f" fill='url(#{frame.name})'" if kind == "wait" else ""


def _legend(frame: _Frame, height: int) -> str:
    x, y, parts = LEFT, height - 18, []
    for mark, words in (("work", "computes"), ("wait", "waits")):
        parts.append(f"<rect class='{mark}'{_fill(frame, mark)} x='{x}' y='{y - 10}' width='22' height='12'/>")
        parts.append(f"<text x='{x + 28}' y='{y}'>{words}</text>")
        x += 110
    for kind, paint in frame.colours.items():
        parts.append(f"<path class='message' d='M{x} {y - 4} L{x + 22} {y - 4}' stroke='{paint}'/>")
        parts.append(f"<text x='{x + 28}' y='{y}'>{escape(kind)}</text>")
        x += 46 + 8 * len(kind)
    return "".join(parts)

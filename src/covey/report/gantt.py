"""A timetable as a picture: each machine a lane, forwards and backwards as blocks, the bubble shaded."""

from __future__ import annotations

from html import escape

from covey.parallelism.plan.gantt import Gantt, TimedMove
from covey.simulate.units import format_duration

LANE, BAR, LEFT, TOP, WIDTH, FOOT, TICKS = 44, 32, 104, 46, 1000, 56, 8
LABEL = 18  # narrower blocks have no words in them

STYLE = """
svg.gantt { --ink: #1c2127; --soft: #5c6670; --line: #dde2e7; --paper: #ffffff; background: var(--paper); }
@media (prefers-color-scheme: dark) {
  svg.gantt { --ink: #e6e9ec; --soft: #9aa5b1; --line: #333b44; --paper: #14181c; }
}
svg.gantt text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg.gantt .name, svg.gantt .title { fill: var(--ink); font-weight: 600; }
svg.gantt .title { font-size: 15px; }
svg.gantt .axis { stroke: var(--line); }
svg.gantt .F { fill: #0072b2; }
svg.gantt .B { fill: #009e73; }
svg.gantt .U { fill: #cc79a7; }
svg.gantt .block { stroke: var(--paper); stroke-width: 0.7; }
svg.gantt .label { fill: #ffffff; font-size: 10px; text-anchor: middle; }
"""
WORDS = {"F": "forward", "B": "backward", "U": "update"}


def draw(gantt: Gantt, title: str = "") -> str:
    """The SVG of all machines from the first forward to the last update."""
    rows, span = gantt.timetable.rows, max(gantt.makespan, 1e-12)
    height = TOP + LANE * len(rows) + FOOT
    head = (
        f"<svg class='gantt' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {LEFT + WIDTH + 16} {height}' role='img' "
        f"aria-label='{escape(title, quote=True)}'><style>{STYLE}</style><defs><pattern id='bubble' width='6' "
        "height='6' patternUnits='userSpaceOnUse'><path d='M0 6 L6 0' stroke='var(--soft)' stroke-width='0.9'/>"
        "</pattern></defs>"
        f"<text class='title' x='{LEFT}' y='24'>{escape(title)}</text>"
    )
    lanes = [_name(number, row.stage, row.replica, gantt) for number, row in enumerate(rows)]
    gaps = [_gap(row, begin, end, span) for row, begin, end in gantt.gaps()]
    blocks = [_block(slot, span) for slot in gantt.slots if slot.end > slot.begin]
    return "".join([head, _axis(span, height), *lanes, *gaps, *blocks, _legend(gantt, height), "</svg>\n"])


def _x(at: float, span: float) -> float:
    return round(LEFT + at / span * WIDTH, 2)


def _y(row: int) -> float:
    return TOP + LANE * row + LANE / 2


def _axis(span: float, height: int) -> str:
    bottom, parts = height - FOOT, []
    for tick in range(TICKS + 1):
        x = _x(span * tick / TICKS, span)
        anchor = "start" if tick == 0 else "end" if tick == TICKS else "middle"
        parts.append(f"<line class='axis' x1='{x}' x2='{x}' y1='{TOP - 6}' y2='{bottom}'/>")
        words = format_duration(span * tick / TICKS)
        parts.append(f"<text x='{x}' y='{bottom + 16}' text-anchor='{anchor}'>{words}</text>")
    return "".join(parts)


def _name(number: int, stage: int, replica: int, gantt: Gantt) -> str:
    name = f"stage {stage}" + (f".{replica}" if gantt.timetable.machines[stage] > 1 else "")
    return f"<text class='name' x='{LEFT - 12}' y='{_y(number) + 4}' text-anchor='end'>{name}</text>"


def _shape(row: int, begin: float, end: float, span: float) -> str:
    left, right = _x(begin, span), _x(end, span)
    return f"x='{left}' y='{_y(row) - BAR / 2}' width='{max(right - left, 0.5):.2f}' height='{BAR}'"


def _gap(row: int, begin: float, end: float, span: float) -> str:
    told = f"bubble, {format_duration(end - begin)}"
    return f"<rect class='gap' fill='url(#bubble)' {_shape(row, begin, end, span)}><title>{told}</title></rect>"


def _block(slot: TimedMove, span: float) -> str:
    move, wide = slot.move, (slot.end - slot.begin) / span * WIDTH
    weights = "" if move.what == "U" else f", weights after {move.version} updates"
    told = f"{WORDS[move.what]} {move.batch}, {format_duration(slot.end - slot.begin)}{weights}"
    shape = _shape(slot.row, slot.begin, slot.end, span)
    block = f"<rect class='block {move.what}' {shape}><title>{told}</title></rect>"
    if wide < LABEL:
        return block
    middle = _x((slot.begin + slot.end) / 2, span)
    return f"{block}<text class='label' x='{middle}' y='{_y(slot.row) + 4}'>{str(move)[1:]}</text>"


def _legend(gantt: Gantt, height: int) -> str:
    x, y, parts = LEFT, height - 18, []
    shown = {slot.move.what for slot in gantt.slots if slot.end > slot.begin}
    marks = [(f"class='block {what}'", WORDS[what]) for what in WORDS if what in shown]
    for mark, words in [*marks, ("fill='url(#bubble)'", f"bubble, {gantt.bubble():.1%}")]:
        parts.append(f"<rect {mark} x='{x}' y='{y - 10}' width='22' height='12'/>")
        parts.append(f"<text x='{x + 28}' y='{y}'>{words}</text>")
        x += 120
    return "".join(parts)

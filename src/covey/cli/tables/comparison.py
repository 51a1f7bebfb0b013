"""A comparison on the output: the verdict, how each strategy compares with the leader, and the other figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.compare.figures import Column, Figure, StrategyRow, best, columns, remarks, rows, written
from covey.compare.outcomes import Comparison, Standing
from covey.compare.verdict import spread
from covey.simulate.units import format_duration

NAME = 24  # characters of a strategy before it is folded, where there is little room
DOTS = (12, 40)  # characters of the picture of all runs, at least and at most
MARKS, PLAIN = ("·", "•", "●"), (".", "o", "O")  # for one run, two, and more in the same place


def print_comparison(console: Console, whole: Comparison) -> None:
    """The best of each column is marked; a dot is a run."""
    found = rows(whole)
    if not found:
        return console.print("Nothing was finished.")
    named = [row.spec for row in found]
    wide = min(max(map(cell_len, [*named, "strategy"])), max(NAME, console.width // 3))
    if whole.until and any(standing.runs for standing in whole.strategies):
        console.print(_race(console, whole, wide))
        console.print()
    shown = [column for column in columns(found) if column.name != "time to target"]
    for table in _blocks(console, whole, found, shown, wide):
        console.print(table)
    for row in found:
        if row.failure:
            how = whole.failed(row.spec, row.rate)
            console.print(Text(f"{row.spec} {how}: {row.failure}", "red"), soft_wrap=True)
    for remark in remarks(whole):
        console.print(Text(remark, "yellow"), soft_wrap=True)
    style = "bold green" if whole.winner else "bold"
    console.print(Text(f"\n{whole.verdict}", style), soft_wrap=True)


def _race(console: Console, whole: Comparison, wide: int) -> Table:
    """Median times, the intervals of the ratios to the leader, and a dot for each run."""
    ranked = sorted(whole.strategies, key=_rank)
    ratios = [_ratio(one) for one in ranked]
    times = [_time(one) for one in ranked]
    taken = wide + max(map(len, [*times, "median"])) + max(map(len, [*ratios, "ratio"])) + 4
    room = min(DOTS[1], console.width - taken)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("strategy", overflow="fold", width=wide)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    if room >= DOTS[0]:
        table.add_column("each run, by time", no_wrap=True)
    pictures = _dots(whole, [one.spec for one in ranked], room, MARKS if not console.options.ascii_only else PLAIN)
    for one, time, ratio, dots in zip(ranked, times, ratios, pictures, strict=True):
        style = "bold green" if one.spec == whole.winner else ""
        table.add_row(Text(one.spec, style), time, ratio, *([dots] if room >= DOTS[0] else []))
    return table


def _rank(one: Standing) -> tuple[float, int]:
    return (math.inf if one.seconds is None else one.seconds, -one.runs)


def _time(one: Standing) -> str:
    if not one.runs:
        return "failed"
    missed = f" ({one.runs - one.reached} missed)" if 0 < one.reached < one.runs else ""
    return (format_duration(one.seconds) if one.seconds is not None else "missed") + missed


def _ratio(one: Standing) -> str:
    if one.ratio is None or (one.ratio.low == 0 and one.ratio.high is None):
        return "-"
    if one.ratio.low == one.ratio.high == 1:
        return "1x"
    return spread(one.ratio)


def _dots(whole: Comparison, specs: Sequence[str], room: int, marks: Sequence[str]) -> list[str]:
    """The runs of each strategy on one logarithmic axis; those that missed the target are an x at its end."""
    times = {spec: _times(whole, spec) for spec in specs}
    finite = [time for mine in times.values() for time in mine if 0 < time < math.inf]
    low, high = (math.log(min(finite)), math.log(max(finite))) if finite else (0.0, 0.0)
    pictures = []
    for spec in specs:
        cells = [0] * max(1, room - 2)
        for time in times[spec]:
            if time < math.inf:
                at = (math.log(max(time, math.exp(low))) - low) / (high - low) if high > low else 0.0
                cells[round(at * (len(cells) - 1))] += 1
        line = "".join(" " if not many else marks[min(many, len(marks)) - 1] for many in cells)
        pictures.append(line + (" x" if math.inf in times[spec] else ""))
    return pictures


def _times(whole: Comparison, spec: str) -> list[float]:
    rate = next(one.rate for one in whole.strategies if one.spec == spec)
    mine = [run.result for run in whole.outcomes if run.spec == spec and run.rate == rate and run.result]
    return [result.reached.seconds if result.reached else math.inf for result in mine]


def _blocks(
    console: Console, whole: Comparison, found: Sequence[StrategyRow], shown: Sequence[Column], wide: int
) -> Iterator[Table]:
    """The other columns, in as many tables as the width of the output asks for; each begins with the names."""
    rated = len({outcome.rate for outcome in whole.outcomes}) > 1
    columns = [("rate", [Text(f"{row.rate:g}x") for row in found])] if rated else []
    for column in shown:
        winner = best(found, column, whole)
        columns.append((column.short, [_cell(row.figures.get(column.name), column, winner) for row in found]))
    while columns:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("strategy", overflow="fold", width=wide)
        taken: list[tuple[str, list[Text]]] = []
        room = console.width - wide - 1
        while columns and (not taken or _width(columns[0]) <= room):
            room -= _width(columns[0])
            taken.append(columns.pop(0))
        for name, _ in taken:
            table.add_column(name, justify="right", no_wrap=True)
        for number, row in enumerate(found):
            table.add_row(Text(row.spec), *(cells[number] for _, cells in taken))
        yield table


def _width(column: tuple[str, list[Text]]) -> int:
    name, cells = column
    return 1 + max(cell_len(line) for line in (name, *(line for cell in cells for line in cell.plain.splitlines())))


def _cell(figure: Figure | None, column: Column, winner: float | None) -> Text:
    if figure is None:
        return Text("-", "dim")
    text = Text(written(figure.value, column.kind))
    if figure.value == winner:
        text = Text(f"{text}*", "bold green")
    if figure.spread:
        text.append(f"\n{written(figure.low, column.kind)} to {written(figure.high, column.kind)}", "dim")
    return text

"""A comparison as a table on the output."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.compare.figures import Column, Figure, StrategyRow, best, columns, rows, written
from covey.compare.outcomes import Comparison


def print_comparison(console: Console, whole: Comparison) -> None:
    """One row for each strategy; the best of each column is marked, times are also relative to the first."""
    found = rows(whole)
    if not found:
        return console.print("Nothing was finished.")
    shown = columns(found)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("strategy", overflow="fold", min_width=12)
    rated = len({outcome.rate for outcome in whole.outcomes}) > 1
    if rated:
        table.add_column("rate", justify="right", no_wrap=True)
    for column in shown:
        table.add_column(column.short, justify="right", no_wrap=True)
    if any(column.name == "time to target" for column in shown):
        table.add_column("vs first", justify="right", no_wrap=True)
    winners = {column.name: best(found, column, whole) for column in shown}
    for row in found:
        cells = [Text(f"{row.rate:g}x")] if rated else []
        cells += [_cell(row.figures.get(column.name), column, winners[column.name]) for column in shown]
        table.add_row(Text(row.spec), *cells, _relative(row, found[0]) if "time to target" in winners else "")
    console.print(table)
    for row in found:
        if row.failure:
            console.print(Text(f"{row.spec} failed: {row.failure}", "red"), soft_wrap=True)
    late = [row.spec for row in found if row.results and "time to target" not in row.figures]
    if whole.until and late:
        console.print(Text(f"{whole.until} not reached: {', '.join(late)}", "yellow"), soft_wrap=True)


def _cell(figure: Figure | None, column: Column, winner: float | None) -> Text:
    if figure is None:
        return Text("-", "dim")
    text = Text(written(figure.value, column.kind))
    if figure.value == winner:
        text = Text(f"{text}*", "bold green")
    if figure.spread:
        text.append(f"\n{written(figure.low, column.kind)} to {written(figure.high, column.kind)}", "dim")
    return text


def _relative(row: StrategyRow, first: StrategyRow) -> str:
    """Its time in that of the first strategy."""
    mine, theirs = (one.figures.get("time to target") for one in (row, first))
    return f"{mine.value / theirs.value:.2f}x" if mine and theirs and theirs.value else "-"

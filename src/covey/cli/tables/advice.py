"""Advice as a table on the output, with its reasons."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.advise.delay import PATTERNS, ExchangeCosts, delay
from covey.advise.findings import about
from covey.advise.ranked import Advice, RankedStrategy
from covey.advise.situation import Situation
from covey.simulate.units import format_bytes, format_duration, format_rate

SIZES = (2, 8, 32, 128, 1024)


def print_advice(console: Console, found: Advice, now: Situation, top: int) -> None:
    """What was found in words, the best few as a table, why, and what to type."""
    console.print(Text(about(now), "dim"), soft_wrap=True)
    for line in found.findings:
        console.print(f"- {line}", soft_wrap=True, markup=False)
    console.print()
    shown = found.choices[:top]
    if single := next((choice for choice in found.choices[top:] if choice.workers == 1), None):
        shown.append(single)
    console.print(_table(shown, found))
    for number, choice in enumerate(found.choices[: min(top, 3)], 1):
        console.print(f"\n{number}. {_name(choice)}", style="bold", markup=False)
        console.print(f"   why   {'; '.join(choice.reasons)}", soft_wrap=True, markup=False)
        if choice.risks:
            console.print(f"   but   {'; '.join(choice.risks)}", soft_wrap=True, markup=False)
        console.print(f"   run   {choice.command}", soft_wrap=True, markup=False)
    for number, layout in enumerate(found.layouts):
        title = "\nmodel divided\n" if not number else ""
        facts = f"step {format_duration(layout.step)}, {format_bytes(layout.memory)}"
        times = f"{1 / layout.relative:.2f}x data parallel"
        console.print(f"{title}   {layout.plan}  ({facts}, {times})", soft_wrap=True, markup=False)
        console.print(f"   run   {layout.command}", soft_wrap=True, markup=False)
    if found.race is not None:
        console.print(f"\nrace  {found.race.verdict}", soft_wrap=True, markup=False)
    if found.interrupted:
        console.print("\nInterrupted: this is what was known by then.", soft_wrap=True)
    if found.sure == "raced":
        return
    console.print(f"\nThis is {found.sure}: {found.why_sure}.", soft_wrap=True, markup=False)


def _table(shown: list[RankedStrategy], found: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("strategy", overflow="fold", min_width=24)
    timed, priced = any(one.seconds is not None for one in shown), any(one.money is not None for one in shown)
    headers = ["vs alone", *([f"to {found.until}"] if timed else []), *(["money"] if priced else [])]
    for header in (*headers, "step", "exchange", "from"):
        table.add_column(header, justify="left" if header == "from" else "right", no_wrap=True)
    for choice in shown:
        cells = ["-" if choice.missed else _speed(choice)]
        cells += [_time(choice)] if timed else []
        cells += [f"{choice.money:.3g}" if choice.money is not None else "-"] if priced else []
        cells += [format_duration(choice.step), f"{choice.exchange:.0%}", _from(choice)]
        table.add_row(_name(choice), *cells)
    return table


def _time(choice: RankedStrategy) -> str:
    """To the target, with a chance of 90 %; of who was left behind, how long it was tried."""
    if choice.seconds_interval is not None:
        low, high = (format_duration(bound) for bound in choice.seconds_interval)
        return f"{low.split()[0] if low.split()[1:] == high.split()[1:] else low}-{high}"
    return f"> {format_duration(choice.tried)}" if choice.tried else "-"


def _speed(choice: RankedStrategy) -> str:
    """How many times as fast as one worker alone, with a chance of 90 %."""
    if choice.workers == 1:
        return "1x"
    low, high = choice.relative_interval
    return f"{1 / high:.2f}-{1 / low:.2f}x"


def _from(choice: RankedStrategy) -> str:
    short = {"real steps": "real", "virtual time": "virtual", "formulas": "formulas"}[choice.timing]
    return f"trained, {short}" if choice.basis == "trained in virtual time" else short


def _name(choice: RankedStrategy) -> str:
    return "one worker alone" if choice.workers == 1 else choice.spec


def print_delays(console: Console, net: ExchangeCosts, compute: float, report: Path | None) -> None:
    """The survey's delay figure as a table: the least time of one exchange."""
    what = f"{format_bytes(net.bytes)} at {format_rate(net.bandwidth)}; a batch takes {format_duration(compute)}"
    console.print(Text(f"the least delay of exchanging {what} (* a fifth of that, or less)", "dim"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("pattern", no_wrap=True)
    for size in SIZES:
        table.add_column(f"{size:,}", justify="right", no_wrap=True)
    for pattern in PATTERNS:
        times = [delay(pattern, size, net) for size in SIZES]
        table.add_row(pattern, *(f"{format_duration(time)}{'*' if time <= compute / 5 else ''}" for time in times))
    console.print(table)
    if report is not None:
        console.print(f"\nreport  {report}", soft_wrap=True)


def delays_json(net: ExchangeCosts, compute: float) -> str:
    """The same as data."""
    found = {pattern: {str(size): delay(pattern, size, net) for size in SIZES} for pattern in PATTERNS}
    whole = {"schema": "covey.delays/1", "bytes": net.bytes, "bandwidth": net.bandwidth, "compute": compute}
    return json.dumps({**whole, "delays": found}, indent=1) + "\n"

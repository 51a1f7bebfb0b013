"""A search on the output: its trials, the best first, with their curves, and the command that trains the best."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.cli.progress.run_history import number
from covey.simulate.units import format_duration
from covey.tune.outcomes import StudyResult, TrialRow
from covey.tune.rehearsing import StudyRehearsal
from covey.tune.tenants.rehearsing import TenantsRehearsal
from covey.tune.tenants.searching import TenantsResult

FEW = 12  # trials that are shown, unless all are asked for
BARS, PLAIN = "▁▂▃▄▅▆▇█", ".:-=+*#@"
WIDE = 24  # characters of a curve


def print_study(console: Console, whole: StudyResult, everything: bool = False) -> None:
    """The best trials with their curves; what the search took; the best, and how to train it."""
    order = sorted(whole.trials, key=lambda row: (-row.best(whole.better), row.number))
    shown = order if everything else order[:FEW]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("trial", whole.metric, "epochs", "status", "curve", "settings"):
        table.add_column(Text(name), overflow="fold", no_wrap=name != "settings")
    bars = PLAIN if console.options.ascii_only else BARS
    low, high = _ends(whole)
    for row in shown:
        style = "bold green" if row.number == whole.best else "red" if row.status == "failed" else ""
        value = row.curve[-1][1] if row.curve else None
        cells = (
            str(row.number), "-" if value is None else number(value), str(row.reached),
            "unfinished" if row.status == "running" else row.status, curve(row, low, high, whole.epochs, bars),
            _settings(row),
        )  # fmt: skip
        table.add_row(*(Text(cell, style) for cell in cells))
    console.print(table)
    if len(order) > len(shown):
        console.print(Text(f"… and {len(order) - len(shown)} more (--verbose shows all)", "dim"))
    for row in [row for row in whole.trials if row.status == "failed"][: len(order) if everything else 3]:
        console.print(Text(f"trial {row.number} failed: {row.why.splitlines()[0] if row.why else '?'}", "red"))
    fused = f", fused {whole.fused:.1f}x" if whole.fused is not None and whole.fused > 1 else ""
    trained = took(whole.samples, whole.earlier, whole.seconds)
    console.print(Text(f"\n{len(whole.trials)} trials, {trained}{fused}", "dim"))
    console.print(Text(whole.verdict, "bold green" if whole.train else "bold"), soft_wrap=True)
    if whole.train:
        console.print(Text(whole.train), soft_wrap=True)


def print_tenants(console: Console, whole: TenantsResult, everything: bool = False) -> None:
    """The study of each task, and what all of them took."""
    for one in whole.tenants:
        console.print(Text(one.task, "bold"))
        print_study(console, one, everything)
        console.print()
    earlier = sum(one.earlier for one in whole.tenants)
    console.print(Text(f"{whole.verdict}, {took(whole.samples, earlier, whole.seconds)}", "bold"), soft_wrap=True)


def took(samples: int, earlier: int, seconds: float) -> str:
    """What a search trained, and in which time; of one that went on, what was new."""
    if not earlier:
        return f"{samples:,} samples in {format_duration(seconds)}"
    return f"{samples:,} samples, {samples - earlier:,} of them now, in {format_duration(seconds)}"


def print_tenants_rehearsal(console: Console, found: TenantsRehearsal) -> None:
    """A line for each rule, and the verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("policy", "until a task has its best"):
        table.add_column(Text(name), justify="left" if name == "policy" else "right")
    for name, seconds in found.seconds.items():
        style = "bold green" if name == found.best else ""
        table.add_row(Text(name, style), Text(format_duration(seconds), style))
    console.print(table)
    console.print(Text(f"\n{found.verdict}", "bold"), soft_wrap=True)


def curve(row: TrialRow, low: float, high: float, epochs: int, bars: str) -> str:
    """The scores of a trial as bars, where the whole width is all epochs that it might have had."""
    if not row.curve:
        return ""
    cells = []
    width = min(WIDE, epochs)
    for place in range(width):
        upto = math.ceil((place + 1) * epochs / width)
        if upto > row.reached and place * epochs / width >= row.reached:
            break
        value = [value for when, value in row.curve if when <= upto] or [row.curve[0][1]]
        share = 0.0 if value[-1] is None or high == low else (value[-1] - low) / (high - low)
        cells.append(bars[min(len(bars) - 1, max(0, int(share * len(bars))))])
    return "".join(cells)


def _ends(whole: StudyResult) -> tuple[float, float]:
    """The lowest and the highest score of all trials."""
    values = [value for row in whole.trials for _, value in row.curve if value is not None]
    return (min(values), max(values)) if values else (0.0, 1.0)


def _settings(row: TrialRow) -> str:
    plain = {name: value for name, value in row.point.items() if "." not in name and name not in ("strategy", "codec")}
    told = [f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in plain.items()]
    told += [row.strategy] if "strategy" in row.point or "codec" in row.point else []
    return " ".join(told) + (f" (from {row.parent})" if row.parent is not None else "")


def print_rehearsal(console: Console, found: StudyRehearsal) -> None:
    """A line for each policy, and the verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("policy", found.metric, "trials", "epochs", "time", "best after"):
        table.add_column(Text(name), justify="left" if name == "policy" else "right")
    for one in found.policies:
        style = "bold green" if one.policy == found.best else ""
        cells = (
            one.policy, "-" if one.best is None else number(one.best), str(one.trials), str(one.epochs),
            format_duration(one.seconds), format_duration(one.found),
        )  # fmt: skip
        table.add_row(*(Text(cell, style) for cell in cells))
    console.print(table)
    if found.expected:
        many = f"{found.expected} of {found.recorded} curves end early and were continued as expected"
        console.print(Text(f"{many}; a study with --policy random has whole curves", "dim"))
    console.print(Text(f"\n{found.verdict}", "bold"), soft_wrap=True)

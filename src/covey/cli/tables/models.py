"""Versions of models as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.cli.progress.run_history import number
from covey.inference.planning import ServiceForecast
from covey.simulate.units import format_bytes, format_duration
from covey.store.differences import VersionDifference
from covey.store.versions import ModelVersion

TENSORS = 40  # of a version or a difference: as many are listed


def print_versions(console: Console, place: Path, versions: Sequence[ModelVersion], where: str | None) -> None:
    """One line for each version."""
    if not versions:
        none = f"no models in {place}: covey run … --register NAME adds one"
        console.print(Text(f"no version in {place} fits" if where else none))
        return
    table = _table("version", "made", "scores", "strategy", "size")
    for version in versions:
        scores = "  ".join(f"{name} {number(value)}" for name, value in version.metrics.items())
        promoted = " (promoted)" if version.promoted else ""
        name, size = version.text + promoted, format_bytes(version.size)
        table.add_row(*map(Text, (name, version.made, scores, version.origin.run.strategy, size)))
    console.print(table)


def print_forecasts(console: Console, found: Sequence[ServiceForecast], requests: int, share: float) -> None:
    """One line for each kind of machine, and which of them is the cheapest."""
    table = _table("machine", "replicas", "price", "in time", f"p{100 * share:g}")
    for one in found:
        late = format_duration(one.seconds) if isfinite(one.seconds) else "never"
        count = _replicas(one) if one.keeps else f"{_replicas(one)} (not enough)"
        table.add_row(*map(Text, (one.machine, count, f"{one.price:.4g} an hour", f"{one.in_time:.2%}", late)))
    console.print(table)
    best = found[0]
    if best.keeps:
        said = f"cheapest for {requests} requests: {_replicas(best)} x {best.machine}, {best.price:.4g} an hour"
    else:
        said = f"no set-up keeps the objective for {requests} requests: allow more time, or add faster machines"
    console.print(Text(said), soft_wrap=True)


def _replicas(one: ServiceForecast) -> str:
    """How many, or with a scaler how many on average."""
    return f"{one.replicas}" if round(one.mean, 6) == one.replicas else f"{one.mean:.1f} (at most {one.replicas})"


def print_lineage(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    """What, and which, a line each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(Text(name), Text(text))
    console.print(table)


def print_tensors(console: Console, version: ModelVersion) -> None:
    console.print()
    table = _table("tensor", "type", "shape", "sha256")
    for name, stored in list(version.tensors.items())[:TENSORS]:
        shape = " x ".join(map(str, stored.shape)) or "one number"
        table.add_row(*map(Text, (name, stored.dtype, shape, stored.hash[:16])))
    console.print(table)
    if len(version.tensors) > TENSORS:
        console.print(Text(f"and {len(version.tensors) - TENSORS} more; --json FILE lists all", "dim"))


def print_difference(console: Console, found: VersionDifference) -> None:
    """What differs, in two columns, then the tensors."""
    table = _table("", found.one, found.other)
    for name, values in found.facts.items():
        table.add_row(Text(name), *(Text("-" if value is None else str(value)) for value in values))
    console.print(table)
    console.print(Text(f"{found.equal} tensors are equal, {len(found.changes)} are not", "dim"))
    for change in found.changes[:TENSORS]:
        console.print(Text(f"{change.name}: {change.how}"))
    if len(found.changes) > TENSORS:
        console.print(Text(f"and {len(found.changes) - TENSORS} more; --json FILE lists all", "dim"))


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(Text(name), overflow="fold")
    return table

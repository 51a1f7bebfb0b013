"""Which engines are there, and what must and may each do? Nothing heavy is imported here: the command line asks."""

from __future__ import annotations

from covey.engines.entries.engine import Engine
from covey.engines.entries.lab import LabEngine
from covey.engines.entries.mpi import MpiEngine
from covey.engines.entries.ray import RayEngine
from covey.engines.entries.spark import SparkEngine
from covey.engines.entries.torchrun import TorchrunEngine

__all__ = ["ENGINES", "HERE", "Engine", "names", "only_hosts", "table"]

HERE = ("local", "simulated")
"""The engines that need no cluster: processes of this machine, and virtual time."""

ENGINES: dict[str, type[Engine]] = {
    "torchrun": TorchrunEngine, "mpi": MpiEngine, "ray": RayEngine, "spark": SparkEngine, "lab": LabEngine,
}  # fmt: skip
"""Every engine of a cluster by its name: covey's own, and those from outside."""


def names() -> list[str]:
    """What `--engine` may name."""
    return [*HERE, *ENGINES]


def only_hosts(name: str) -> bool:
    """Whether another process leads the run for which this one was started with the engine of this name."""
    place = ENGINES[name].environment() if name in ENGINES else None
    return place is not None and not place.leads


def table() -> list[str]:
    """The engines as the page on clusters shows them."""
    rows = ["| engine | where its sites run | install | refuses |", "|---|---|---|---|"]
    for name, kind in ENGINES.items():
        refused = ", ".join(f"`--{option.replace('_', '-')}`" for option in kind.refuses) or "-"
        rows.append(f"| `{name}` | {kind.about()} | {f'`{kind.install}`' if kind.install else '-'} | {refused} |")
    return rows

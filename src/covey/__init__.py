"""covey: train a PyTorch model on many workers, with any strategy of the taxonomy, by changing one word."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.version import __version__ as __version__

if TYPE_CHECKING:
    from covey import data, spark
    from covey.errors import CheckpointError, CoveyError, PeerLost, PlanError, RoleFailed, SaveError, Stalled
    from covey.observe.result import Result
    from covey.parallelism.marks import cut_here
    from covey.run import fit, join
    from covey.task import Task, accuracy

_HOME = {
    "CheckpointError": "covey.errors", "CoveyError": "covey.errors", "PeerLost": "covey.errors",
    "PlanError": "covey.errors", "RoleFailed": "covey.errors", "SaveError": "covey.errors",
    "Stalled": "covey.errors",
    "Result": "covey.observe.result", "Task": "covey.task", "accuracy": "covey.task",
    "cut_here": "covey.parallelism.marks", "fit": "covey.run", "join": "covey.run",
}  # fmt: skip

__all__ = [
    "CheckpointError", "CoveyError", "PeerLost", "PlanError", "Result", "RoleFailed", "SaveError", "Stalled", "Task",
    "accuracy", "cut_here", "data", "fit", "join", "spark",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `covey --help` needs no torch."""
    if name in ("data", "spark"):
        return import_module(f"covey.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'covey' has no attribute {name!r}")

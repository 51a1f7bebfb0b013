"""covey: train a PyTorch model on many workers, with any strategy of the taxonomy, by changing one word."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.version import __version__ as __version__

if TYPE_CHECKING:
    from covey import advise, compare, data, nn, parallelism, report, simulate, spark, tune
    from covey.catalog import register
    from covey.engines.cluster.places import Places
    from covey.engines.cluster.site_messages import SiteConfig
    from covey.engines.entries import Engine
    from covey.errors import CheckpointError, CoveyError, PeerLost, PlanError, RoleFailed, SaveError, Stalled
    from covey.exchange.codec import Codec, Coder
    from covey.exchange.codec_traits import CodecTraits
    from covey.message import Address, Message
    from covey.model.replica import Replica
    from covey.observe.callbacks import Callback
    from covey.observe.result import Result
    from covey.parallelism.marks import cut_here
    from covey.program import Node
    from covey.run import federate, fit, join
    from covey.scoring import accuracy
    from covey.strategy import Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy, TrafficFormula
    from covey.task import PrivateSgd, Task
    from covey.vector import Vector

_HOME = {
    "CheckpointError": "covey.errors", "CoveyError": "covey.errors", "PeerLost": "covey.errors",
    "PlanError": "covey.errors", "RoleFailed": "covey.errors", "SaveError": "covey.errors",
    "Stalled": "covey.errors",
    "Callback": "covey.observe.callbacks", "Result": "covey.observe.result",
    "PrivateSgd": "covey.task", "Task": "covey.task",
    "accuracy": "covey.scoring",
    "cut_here": "covey.parallelism.marks", "federate": "covey.run", "fit": "covey.run",
    "join": "covey.run",
    "Node": "covey.program", "Role": "covey.strategy", "Strategy": "covey.strategy", "Taxonomy": "covey.strategy",
    "Description": "covey.strategy", "ServerPlan": "covey.strategy", "TaskTerms": "covey.strategy",
    "TrafficFormula": "covey.strategy",
    "Replica": "covey.model.replica", "Message": "covey.message", "Address": "covey.message",
    "Vector": "covey.vector", "Codec": "covey.exchange.codec", "Coder": "covey.exchange.codec",
    "CodecTraits": "covey.exchange.codec_traits",
    "register": "covey.catalog", "Engine": "covey.engines.entries", "Places": "covey.engines.cluster.places",
    "SiteConfig": "covey.engines.cluster.site_messages",
}  # fmt: skip

MODULES = ("advise", "compare", "data", "nn", "parallelism", "report", "simulate", "spark", "tune")
"""The public modules; in each, the names of its `__all__` are public."""

__all__ = [
    "Address", "Callback", "CheckpointError", "Codec", "CodecTraits", "Coder", "CoveyError", "Description", "Engine",
    "Message", "Node", "PeerLost", "Places", "PlanError", "PrivateSgd", "Replica", "Result", "Role", "RoleFailed",
    "SaveError", "ServerPlan", "SiteConfig", "Stalled", "Strategy", "Task", "TaskTerms", "Taxonomy", "TrafficFormula",
    "Vector", "accuracy", "advise", "compare", "cut_here", "data", "federate", "fit", "join", "nn", "parallelism",
    "register", "report", "simulate", "spark", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `covey --help` needs no torch."""
    if name in MODULES:
        return import_module(f"covey.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'covey' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, so that completion in a notebook or a shell offers it before it is imported."""
    return [*__all__, "__version__"]

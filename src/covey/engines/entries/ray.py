"""The engine ray: what it takes, and whether it works here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from covey.engines.entries.engine import Engine
from covey.engines.entries.trouble import in_child
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.engines.cluster.places import Places


@dataclass(frozen=True, kw_only=True)
class RayEngine(Engine):
    """actors of a Ray cluster"""

    address: str = ""
    placement: Literal["spread", "pack"] = "spread"
    sites: int = 0  # as many as there are workers
    cpus: float = 1  # of each site, as Ray counts them
    gpus: float = 0

    needs = "ray"
    install = "pip install 'covey[ray]'"
    goes_on = True
    refuses: ClassVar[Mapping[str, str]] = {"hosts": "which knows its nodes: the engine 'ray(address=HOST:PORT)'"}

    def __post_init__(self) -> None:
        for name, value in (("sites", self.sites), ("cpus", self.cpus), ("gpus", self.gpus)):
            if value < 0:
                raise PlanError(f"ray({name}={value}): at least 0 is needed")
        if self.address.startswith("ray://") and find_spec("grpc") is None:
            raise PlanError(f"ray(address={self.address}) needs Ray's client: pip install 'ray[client]'")

    def places(self, workers: int, hosts: Path | None) -> Places:
        from covey.engines.ray import RayPlaces

        return RayPlaces(self.sites or workers, self.address, self.placement, self.cpus, self.gpus)

    @classmethod
    def check(cls) -> str:
        cls.check_installed()
        return f"ray {in_child('import ray; print(ray.__version__)')}"

"""The engine torchrun: what it takes, and whether it works here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from covey.engines.entries.engine import ENDS_WITH_RUN, Engine
from covey.engines.entries.trouble import Trouble
from covey.engines.launch_environment import LaunchEnvironment, by_torchrun

if TYPE_CHECKING:
    from covey.engines.cluster.places import Places
    from covey.engines.cluster.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class TorchrunEngine(Engine):
    """ranks of a c10d rendezvous, started by torchrun or srun"""

    native: bool = False  # roles sum by torch.distributed

    refuses: ClassVar[Mapping[str, str]] = {
        "hosts": "which has its own way: torchrun --nnodes 2 --rdzv-endpoint HOST:PORT … "
        "-m covey run … --engine torchrun, on each host",
        "on_failure": ENDS_WITH_RUN,
    }

    def places(self, workers: int, hosts: Path | None) -> Places:
        from covey.engines.torchrun import places

        return places(workers, self.native)

    @classmethod
    def check(cls) -> str:
        if find_spec("torch") is None:
            raise Trouble("torch is not installed", "pip install torch", "missing")
        from torch import distributed

        if not distributed.is_available():
            raise Trouble("this torch has no torch.distributed", "pip install --force-reinstall torch")
        known = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
        return f"torch.distributed with {', '.join(name for name, there in known.items() if there) or 'no backend'}"

    @classmethod
    def environment(cls) -> LaunchEnvironment | None:
        return by_torchrun()

    @classmethod
    def ranks(cls) -> Ranks:
        from covey.engines.torchrun import RANKS

        return RANKS

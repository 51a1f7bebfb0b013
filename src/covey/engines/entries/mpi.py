"""The engine mpi: what it takes, and whether it works here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from covey.engines.entries.engine import ENDS_WITH_RUN, Engine, installed_version
from covey.engines.entries.trouble import Trouble, in_child
from covey.engines.launch_environment import LaunchEnvironment, by_mpi

if TYPE_CHECKING:
    from covey.engines.cluster.places import Places
    from covey.engines.cluster.ranks import Ranks

ASK = """
import mpi4py
mpi4py.rc.initialize = False  # a process that is not a rank would leave a segment of shared memory behind
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].split(',')[0])
"""
NO_LIBRARY = (
    "pip install 'covey[mpi]' brings Open MPI; or install this machine's own, such as apt-get install libopenmpi-dev"
)


@dataclass(frozen=True, kw_only=True)
class MpiEngine(Engine):
    """ranks of an MPI job, started by your mpirun or by covey"""

    native: bool = False  # roles sum by MPI's own Allreduce

    needs = "mpi4py"
    install = "pip install 'covey[mpi]'"
    refuses: ClassVar[Mapping[str, str]] = {"on_failure": ENDS_WITH_RUN}

    def places(self, workers: int, hosts: Path | None) -> Places:
        from covey.engines.mpi import places

        return places(workers, hosts, self.native)

    @classmethod
    def check(cls) -> str:
        """Whether an MPI library can be loaded, and processes started with it."""
        cls.check_installed()
        try:
            library = in_child(ASK)
        except Trouble as trouble:
            raise Trouble(f"mpi4py finds no MPI library: {trouble.found}", NO_LIBRARY) from None
        beside = Path(sys.executable).parent / "mpirun"
        if shutil.which("mpirun") is None and not beside.exists():
            raise Trouble(f"{library}, but no mpirun", NO_LIBRARY, "missing")
        return f"{installed_version('mpi4py')}, {library}"

    @classmethod
    def environment(cls) -> LaunchEnvironment | None:
        return by_mpi()

    @classmethod
    def ranks(cls) -> Ranks:
        from covey.engines.mpi import RANKS

        return RANKS

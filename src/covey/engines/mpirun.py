"""covey's own mpirun: one site per worker, on this machine or the hosts of a file; the launcher is not a rank.

The configs of sites lie in memory of the launcher that only its own user can open. On one machine each site reads its
own; with several hosts a relay, rank 0 on the launcher's machine, hands them out over MPI.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from covey.engines.cluster import this_host
from covey.engines.cluster.places import Places
from covey.engines.cluster.site_config import CONFIGS, ConfigMemory
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.native.mpi_service import NATIVE
from covey.engines.process.forking.die_with_parent import leashed
from covey.engines.process.forking.role_processes import describe
from covey.errors import PlanError

PATIENCE = 8.0  # seconds that mpirun has to leave by itself
MODULE = "covey.engines.mpi_site"
LIBRARIES = "COVEY_LIBRARIES"  # a site's variable: the launcher's LD_LIBRARY_PATH, to which mpirun adds its own
OPEN_MPI = ("--bind-to", "none", "--map-by", "slot", "--enable-recovery")
HYDRA = ("-disable-auto-cleanup",)  # both: when a rank dies the others stay, and the launcher finds out which it was


class MpirunPlaces(Places):
    """The sites of a run, started by mpirun."""

    def __init__(self, workers: int, hosts: Path | None, native: bool) -> None:
        self.program, self.open_mpi = find_mpirun()
        self.file = hosts
        self.hosts = read_hosts(self.file, workers) if self.file else ["localhost"] * workers
        if self.file and self.open_mpi and " " in self.program:
            raise PlanError(
                f"Open MPI cannot start on other hosts from a folder with a space in its name, such as {self.program}: "
                "move the environment, or use the system's mpirun"
            )
        self.hosts.sort(key=lambda host: not this_host.is_here(host))  # the relay comes first, and with it its machine
        self._native = NATIVE if native else ""
        self.config_memory: ConfigMemory | None = None
        self.mpirun: subprocess.Popen[bytes] | None = None

    @property
    def native(self) -> str:
        return self._native

    def pids(self) -> list[int]:
        return [self.mpirun.pid] if self.mpirun else []

    def open(self, patience: float) -> list[str]:
        if self.file:
            self.address = this_host.address_among(self.hosts)
        return self.hosts

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        if self.file and handed:
            raise PlanError(
                "a task or strategy of this process does not travel to other hosts: put the task into a file, "
                "'FILE.py:task', and the strategy into an installed package, as an entry point in covey.strategies"
            )
        self.config_memory = ConfigMemory(configs, handed)
        self.mpirun = subprocess.Popen(
            leashed(self.command(), signal.SIGTERM), stdin=subprocess.DEVNULL, process_group=0,
            env={
                **environment(), CONFIGS: self.config_memory.path, LIBRARIES: os.environ.get("LD_LIBRARY_PATH", ""),
            },
        )  # fmt: skip

    def command(self) -> list[str]:
        """One rank for each site; where there are hosts, one more in front of them, on this machine: the relay."""
        site, sites, where = [sys.executable, "-m", MODULE], len(self.hosts), ["--oversubscribe"]
        if self.file is not None:
            slots = ",".join(f"{host}:{count}" for host, count in Counter(["localhost", *self.hosts]).items())
            sites, where = sites + 1, ["-x", "PYTHONPATH", "--host", slots]
        if not self.open_mpi:
            where = ["-hosts", where[-1]] if self.file else []
        common = OPEN_MPI if self.open_mpi else HYDRA
        return [self.program, *common, *where, "-n", str(sites), *site, "invited" if self.file else "beside"]

    def lost(self) -> str:
        code = self.mpirun.poll() if self.mpirun else None
        return "" if code is None else f"mpirun {describe(code)}, and the roles with it"

    def close(self, well: bool) -> None:
        if self.mpirun is not None:
            for number, patience in ((0, PATIENCE if well else 1.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 1.0)):
                self.mpirun.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.mpirun.wait(patience)
                    break
            # what an mpirun that was killed could not remove itself
            shutil.rmtree(Path(tempfile.gettempdir()) / f"ompi.{self.mpirun.pid}", ignore_errors=True)
        if self.config_memory is not None:
            self.config_memory.close()


def find_mpirun() -> tuple[str, bool]:
    """The mpirun that belongs to this Python, or the system's; and whether it is Open MPI's or MPICH's kind."""
    beside = Path(sys.executable).parent / "mpirun"
    program = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if program is None:
        raise PlanError("--engine mpi needs mpirun: pip install 'covey[mpi]', or install your system's Open MPI")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, env=environment())
    return program, "Open MPI" in told.stdout + told.stderr


def environment() -> dict[str, str]:
    """What mpirun, and through it the sites, find around them."""
    given = {
        **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    given.setdefault("OMPI_MCA_btl", "self,tcp")  # shared memory is left behind by ranks that are killed
    if os.geteuid() == 0:  # Open MPI refuses root unless two variables allow it
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            given[name] = given[f"{name}_CONFIRM"] = "1"
    return given


def read_hosts(file: Path, workers: int) -> list[str]:
    """The host of each site, as mpirun will fill them: `name slots=4` a line, or `name:4`."""
    if not file.is_file():
        raise PlanError(f"--hosts {file}: there is no such file; write one host a line, such as 'node1 slots=4'")
    slots: list[str] = []
    for line in file.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            name, _, count = words[0].partition(":") if words[0].count(":") == 1 else (words[0], "", "")
            given = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
            slots += [name] * _slots(file, line, (given or [count or "1"])[0])
    if not slots:
        raise PlanError(f"--hosts {file} names no host; write one a line, such as 'node1 slots=4'")
    if workers > len(slots):
        raise PlanError(
            f"--hosts {file} has {len(slots)} slots and there are {workers} workers: write slots=… behind the hosts"
        )
    return list(Counter(slots).elements())[:workers]


def _slots(file: Path, line: str, number: str) -> int:
    if not (number.isascii() and number.isdigit()):
        raise PlanError(f"--hosts {file}: {line.strip()!r} has {number!r} slots; write a number, as in 'node1 slots=4'")
    return int(number)

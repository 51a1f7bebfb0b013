"""A rendezvous on this machine: torchrun's own agent starts one site for each worker; the launcher is not one of them.

The configs of its sites lie in memory of the launcher (see `cluster/site_config.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from covey.engines.cluster import site, site_config
from covey.engines.cluster.places import HERE, Places
from covey.engines.cluster.site_config import CONFIGS, ConfigMemory
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.interrupt import ENDING
from covey.engines.launch_environment import by_torchrun, choose_gpu
from covey.engines.process.forking.die_with_parent import leashed
from covey.engines.process.forking.role_processes import describe
from covey.errors import CoveyError

PATIENCE = 8.0  # seconds that the agent has to leave by itself when all went well
HASTE = 3.0  # and when it did not
MODULE = "covey.engines.torchrun_agent"


class TorchrunPlaces(Places):
    """Sites on this machine, started by torchrun's agent."""

    def __init__(self, workers: int, native: Callable[[str], str] | None = None) -> None:
        self.workers, self._native = workers, native
        self.agent: subprocess.Popen[bytes] | None = None
        self.config_memory: ConfigMemory | None = None

    def pids(self) -> list[int]:
        return [self.agent.pid] if self.agent else []

    def open(self, patience: float) -> list[str]:
        return ["localhost"] * self.workers

    @property
    def native(self) -> str:
        return self._native(self.address) if self._native else ""

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        self.config_memory = ConfigMemory(configs, handed)
        environment = {**configs[0].environment, CONFIGS: self.config_memory.path}
        self.agent = subprocess.Popen(
            leashed([sys.executable, "-m", MODULE, str(self.workers)]),
            stdin=subprocess.DEVNULL, env=environment, process_group=0,
        )  # fmt: skip

    def lost(self) -> str:
        code = self.agent.poll() if self.agent else None
        return "" if code is None else f"torchrun's agent on this machine {describe(code)}, and the roles with it"

    def close(self, well: bool) -> None:
        if self.agent is not None:
            with suppress(subprocess.TimeoutExpired):
                self.agent.wait(PATIENCE if well else HASTE)
            self.agent.kill()
            self.agent.wait()
        if self.config_memory is not None:
            self.config_memory.close()


def agent(workers: int) -> int:
    """Be torchrun: open a rendezvous and run the sites as its ranks."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=workers, rdzv_backend="c10d", rdzv_endpoint=f"{HERE}:0",
        run_id=f"covey-{os.getpid()}", max_restarts=0, monitor_interval=0.1, local_addr=HERE,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # what roles print goes where the launcher's output goes
    )  # fmt: skip
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the launcher says what died
    try:
        program, *arguments = leashed([sys.executable, "-m", MODULE])
        elastic_launch(config, program)(*arguments)
    except ChildFailedError:
        return 1
    return 0


def rank() -> None:
    """Be one of its ranks: a site."""
    started = by_torchrun()
    assert started is not None, "torchrun's agent has started this process"
    choose_gpu(started.local)
    for number in ENDING:  # when one rank dies the agent ends all; the launcher names it first
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, CoveyError):  # the launcher is gone, or knows
        found = site_config.read()
        site.host(found.configs[started.rank], found.handed)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(agent(int(sys.argv[1])))
    rank()

"""What covey's own mpirun runs: sites that fetch their configs, and the relay that hands configs out over MPI."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from covey.engines.cluster import site, site_config
from covey.engines.cluster.site_messages import configs
from covey.engines.interrupt import ENDING
from covey.engines.launch_environment import by_mpi, choose_gpu
from covey.engines.mpi import MpiChannel, part
from covey.engines.mpirun import LIBRARIES
from covey.errors import CoveyError


def relay(channel: MpiChannel) -> bool:
    """Rank 0, on the launcher's machine: give every site its config, and stay while the launcher lives."""
    path = os.environ[site_config.CONFIGS]
    channel.hand_out([msgspec.msgpack.encode(config) for config in site_config.read().configs])
    return part(channel.comm, lambda: os.path.exists(path))


def invited(channel: MpiChannel) -> bool:
    """A site on any host, whose config the relay has, or the relay."""
    if channel.started.leads:
        return relay(channel)
    config = configs.read(channel.take(), "rank 0")
    return site.host(config) and part(channel.comm)


def beside(channel: MpiChannel) -> bool:
    """A site on the launcher's machine. Its roles do not use MPI, and find libraries where the launcher does."""
    found = site_config.read()
    os.environ["LD_LIBRARY_PATH"] = os.environ.pop(LIBRARIES)
    if not os.environ["LD_LIBRARY_PATH"]:
        del os.environ["LD_LIBRARY_PATH"]
    return site.host(found.configs[channel.comm.rank], found.handed) and part(channel.comm)


def main(kind: str) -> bool:
    """Whether all went well."""
    for number in ENDING:  # the launcher says when it is over
        signal.signal(number, signal.SIG_IGN)
    started = by_mpi()
    assert started is not None, "mpirun has started this process"
    choose_gpu(started.local)
    channel = MpiChannel(started, first=0 if kind == "beside" else 1)
    try:
        return {"invited": invited, "beside": beside}[kind](channel)
    except (CoveyError, OSError):  # the launcher knows, or is gone
        return False


if __name__ == "__main__":
    os._exit(0 if main(sys.argv[1]) else 1)  # a sum that waits for a dead peer must not keep the process alive

"""MPI: roles on the ranks of a job that mpirun has started; outside of one, covey starts mpirun itself.

Inside, every rank runs the same command: rank 0 leads, and site configs travel over MPI. Nothing is pickled on the way.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from covey.decoding import WireFormat
from covey.engines.cluster import this_host
from covey.engines.cluster.places import Places
from covey.engines.cluster.ranks import Presence, Ranks, machine, presence, presences
from covey.engines.launch_environment import LaunchEnvironment, by_mpi
from covey.engines.native.mpi_service import NATIVE, Service
from covey.engines.process.liveness import Silence
from covey.errors import PeerLost, PlanError
from covey.names import option

LOOK = 0.02  # seconds between two looks: MPI's own waiting keeps a core busy
DOORS, HERE, CONFIG = 1, 2, 3  # tags


def places(workers: int, hosts: Path | None, native: bool) -> Places:
    """The ranks of the job that this process belongs to; else those of one that mpirun starts, on `hosts` if given."""
    started = by_mpi()
    if started is None:
        from covey.engines.mpirun import MpirunPlaces

        return MpirunPlaces(workers, hosts, native)
    if hosts:
        raise PlanError(
            f"{option('hosts')} is for covey's own mpirun; this process was started by one: give it the --hostfile"
        )
    return RANKS.places(started, (lambda address: NATIVE) if native else None)


@cache
def channel(started: LaunchEnvironment, coming: float = 0.0) -> MpiChannel:
    """The way to the other ranks. (`coming` is for a rendezvous: mpirun has brought them together already.)"""
    return MpiChannel(started)


RANKS = Ranks("mpirun", by_mpi, channel)


def world() -> Any:
    """All ranks of the job. MPI is left in order only when all went well: a dead rank would be waited for."""
    import mpi4py

    # what two processes of one machine share by memory is left behind when they are killed
    os.environ.setdefault("OMPI_MCA_btl", "self,tcp")
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI.COMM_WORLD


def part(comm: Any, still: Callable[[], bool] = lambda: True) -> bool:
    """Leave MPI together with all other ranks; False if that makes no sense any more."""
    from mpi4py import MPI

    parting = comm.Ibarrier()
    while not parting.Test():
        if not still():
            return False
        time.sleep(LOOK)
    MPI.Finalize()
    return True


_doors: WireFormat[tuple[str, list[str], int]] = WireFormat("door of the leader", tuple[str, list[str], int], "json")


class MpiChannel:
    """Messages of MPI as a channel; MPI trusts its network."""

    def __init__(self, started: LaunchEnvironment, first: int = 0) -> None:
        self.started = started
        self.users = "mpi4py.MPI" in sys.modules  # MPI is not ours to end
        self.comm = world()
        self.service = Service(self.comm, first)

    def lead(self) -> None:
        """mpirun has brought the ranks together already."""

    def gather(self, patience: float) -> list[Presence]:
        """All ranks, each having tried which of the leader's addresses it can reach."""
        with socket.create_server(("::", 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True) as door:
            doors = msgspec.json.encode((machine(), this_host.addresses(), door.getsockname()[1]))
            for rank in range(1, self.started.size):
                self.comm.Send(doors, dest=rank, tag=DOORS)
            others = [self._receive(rank, HERE, patience) for rank in range(1, self.started.size)]
        return [presence(), *(presences.read(other, f"rank {rank}") for rank, other in enumerate(others, 1))]

    def hand_out(self, configs: Sequence[bytes]) -> None:
        for rank, config in enumerate(configs, start=1):
            self.comm.Send(config, dest=rank, tag=CONFIG)

    def take(self) -> bytes:
        from mpi4py import MPI

        status = MPI.Status()
        while not self.comm.Iprobe(source=0, tag=MPI.ANY_TAG, status=status):
            time.sleep(LOOK)
        if status.Get_tag() == DOORS:
            leaders, addresses, port = _doors.read(self._receive(0, DOORS, None), "rank 0")
            found = "" if leaders == machine() else reachable(addresses, port)
            self.comm.Send(msgspec.json.encode(presence(found)), dest=0, tag=HERE)
        return self._receive(0, CONFIG, None)

    def _receive(self, source: int, tag: int, patience: float | None) -> bytes:
        from mpi4py import MPI

        status, clock = MPI.Status(), Silence[int](patience or 0)
        while not self.comm.Iprobe(source=source, tag=tag, status=status):
            clock.tick()
            if patience is not None and clock.awake > patience:
                raise PeerLost(
                    f"rank {source} did not answer within {patience:g} s; a longer {option('stall')} gives it more time"
                )
            time.sleep(LOOK)
        data = bytearray(status.Get_count(MPI.BYTE))
        self.comm.Recv([data, MPI.BYTE], source=source, tag=tag)
        return bytes(data)

    def dismiss(self) -> None:
        self.close(True)

    def close(self, well: bool) -> None:
        self.service.close()
        if well and not self.users:
            part(self.comm)


def reachable(addresses: Sequence[str], port: int) -> str:
    """The first of the addresses that accepts a connection."""
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=2):
                return address
        except OSError:
            continue
    raise PeerLost(f"rank 0 cannot be reached from {socket.gethostname()} at any of {', '.join(addresses)}")

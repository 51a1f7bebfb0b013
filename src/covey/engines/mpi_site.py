"""What covey's own mpirun runs: sites that fetch their letters, and the relay that hands letters out over MPI."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from covey.engines.cluster import mail, site
from covey.engines.cluster.words import letters
from covey.engines.mpi import MpiChannel, part
from covey.engines.started import by_mpi, choose_gpu
from covey.errors import CoveyError


def relay(channel: MpiChannel) -> bool:
    """Rank 0, on the launcher's machine: give every site its letter, and stay while the launcher lives."""
    path = os.environ[mail.MAIL]
    channel.hand_out([msgspec.msgpack.encode(letter) for letter in mail.read().letters])
    return part(channel.comm, lambda: os.path.exists(path))


def invited(channel: MpiChannel) -> bool:
    """A site on any host, whose letter the relay has, or the relay."""
    if channel.started.leads:
        return relay(channel)
    letter = letters.read(channel.take(), "rank 0")
    return site.host(letter) and part(channel.comm)


def beside(channel: MpiChannel) -> bool:
    """A site on the launcher's machine."""
    found = mail.read()
    return site.host(found.letters[channel.comm.rank], found.handed) and part(channel.comm)


def main(kind: str) -> bool:
    """Whether all went well."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the launcher says when it is over
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
    os._exit(0 if main(sys.argv[1]) else 1)  # a sum that hangs for want of a dead peer must not hold the process

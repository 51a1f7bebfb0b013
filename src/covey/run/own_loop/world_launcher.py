"""The launcher of a run that joined a world: a process beside rank 0, whose own process is busy with the user's loop.

It is started with a socket to rank 0, by which it hears what is wanted and gives back the configs of all ranks. It goes
with rank 0: when the socket closes, the run is over.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from covey.decoding import printable
from covey.engines.cluster.cluster_processes import ClusterProcesses
from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.interrupt import ENDING, Interrupt
from covey.engines.process.child_process import entitle, read, write
from covey.errors import CoveyError, PlanError, RoleFailed
from covey.observe.progress import Progress
from covey.run.clusters import terms_of
from covey.run.options import options
from covey.run.own_loop import joined_role
from covey.run.own_loop.launching import lead
from covey.run.own_loop.request import Script, loop_of
from covey.run.own_loop.world import INTERRUPT, RankRequest, briefs

GONE = (
    "worker 0 has ended with the process of rank 0, and the run with it; where mpirun ended it because another rank "
    "had died, mpirun says which"
)


class WorldPlaces(Places):
    """The ranks of a world; rank 0 hands their configs out, and this process hears when it is gone."""

    def __init__(self, brief: RankRequest, line: socket.socket, interrupt: Interrupt) -> None:
        self.hosts, self.address = brief.hosts, brief.address
        self.line, self.interrupt = line, interrupt
        self.gone = False

    def open(self, patience: float) -> list[str]:
        return self.hosts

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        write(self.line, msgspec.msgpack.encode(list(configs)))

    def lost(self) -> str:
        while not self.gone and select.select([self.line], [], [], 0)[0]:
            heard = self.line.recv(1)
            self.gone = not heard
            if heard == INTERRUPT:
                self.interrupt()
        return GONE if self.gone else ""

    def close(self, well: bool) -> None:
        pass


class StderrWatcher:
    """What a person should know, on rank 0's stderr."""

    def update(self, progress: Progress) -> None:
        pass

    def say(self, line: str) -> None:
        print(f"covey: {printable(line)}", file=sys.stderr, flush=True)  # a role may have said it


def main(handle: int) -> int:
    """Lead the run; the exit code."""
    for number in ENDING:  # rank 0 passes them on
        signal.signal(number, signal.SIG_IGN)
    entitle("covey: launcher")
    line = socket.socket(fileno=handle)
    brief = briefs.read(read(line), "rank 0")
    try:
        _lead(brief, line)
    except PlanError as error:
        StderrWatcher().say(str(error))
        return 2
    except CoveyError as error:
        StderrWatcher().say(str(error).rstrip() if isinstance(error, RoleFailed) else str(error))
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _lead(brief: RankRequest, line: socket.socket) -> None:
    given = options({"engine": brief.engine, "watcher": StderrWatcher(), **brief.options})
    script = Script(path=brief.path, name=brief.path, module=brief.module, arguments=brief.arguments)
    loop = replace(loop_of(script, brief.strategy, len(brief.hosts), given, brief.threads), world=True)
    interrupt = Interrupt()
    places = WorldPlaces(brief, line, interrupt)

    def start_processes() -> ClusterProcesses:
        return ClusterProcesses(
            places, terms_of(given, loop.threads), joined_role.__name__, brief.path, b"", loop.plan.roles
        )

    lead(loop, start_processes, interrupt)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

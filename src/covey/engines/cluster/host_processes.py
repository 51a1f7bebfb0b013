"""One process of a program on each site of an engine: started, linked to this process, and watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from covey.address import Address
from covey.engines.cluster import this_host
from covey.engines.cluster.cluster_processes import COMING, ClusterProcesses
from covey.engines.cluster.gate import readmit
from covey.engines.cluster.places import MeetingTerms, Places
from covey.engines.cluster.site_messages import ProcessGone, SiteFailed
from covey.engines.process.contacts import Contacts
from covey.errors import PeerLost
from covey.program import Node
from covey.strategy import Role


class HostProcesses:
    """A process on each site; the others go on when one is lost. All of it is used by one thread at a time.

    Args:
        places: Where the engine has its sites.
        threads: Of each process.
        warm: The module that is imported before a process is forked.
        role: What the processes are called, each with the number of its site.
    """

    def __init__(self, places: Places, threads: int, warm: str, role: str) -> None:
        self._cluster = ClusterProcesses(places, MeetingTerms(threads=threads), warm, "", b"")
        self._places, self._role = places, role
        self.token = self._cluster.keys.token
        self.hosts: Sequence[str] = self._cluster.hosts  # the name of each site's host
        self._board: object = None

    @property
    def wakeups(self) -> Sequence[int | zmq.Socket[bytes]]:
        """Readable when there may be news of sites."""
        return self._cluster.wakeups

    def listen(self, largest: int, broken: Callable[[int], None]) -> zmq.Socket[bytes]:
        """A socket to which the processes connect; `broken` gets the file of each connection that has ended."""
        line = self._cluster.context.socket(zmq.ROUTER)
        line.ipv6 = True
        readmit(line, self._cluster.keys, self._cluster.terms.stall)
        self._cluster.guard.watch(line, broken)
        line.setsockopt(zmq.MAXMSGSIZE, largest)
        line.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what is more
        line.setsockopt(zmq.RCVHWM, 0)
        line.setsockopt(zmq.LINGER, 1000)
        line.bind(this_host.endpoint(self._cluster.address))
        return line

    def start(self, entry: str, pack: Callable[[Contacts], bytes]) -> None:
        """Start a process on each site; it calls `entry` with what `pack` makes of the contacts."""
        everybody = [Address(self._role, site.number) for site in self._cluster.sites]
        roles = [Role(who, _no_program, trains=True) for who in everybody]
        self._board = self._cluster.start(roles, entry, pack)  # processes connect to it: it must stay open

    def wait(self, come: Callable[[], set[int]], look: Callable[[], None]) -> None:
        """Return when all have come; PeerLost says which have not, or ended before."""
        until = time.monotonic() + COMING * self._cluster.terms.stall
        while missing := [name for number, name in enumerate(self.hosts) if number not in come()]:
            look()
            for who, how in self._cluster.exits():
                if who.role == self._role:
                    raise PeerLost(f"the process on {self.hosts[who.rank]} {how}")
            if time.monotonic() > until:
                raise PeerLost(f"no process came from {', '.join(missing)}")

    def answer(self) -> None:
        """Decide who may connect, and hear of connections that have ended; never waits."""
        self._cluster.guard.answer()

    def identity(self, number: int) -> bytes:
        """What the process on that site calls itself on its line."""
        return self._cluster.keys.identity(Address(self._role, number))

    def impostor(self, frame: zmq.Frame, number: int) -> str:
        """Who has sent this frame in the name of the process on that site, if another one has."""
        return self._cluster.guard.impostor(frame, Address(self._role, number))

    def begin(self) -> None:
        """All is ready: quotas of hosts hold from now on."""
        self._cluster.begin()

    def ended(self) -> dict[int, str]:
        """The sites whose processes have ended since the last time, with how; never waits."""
        found: dict[int, str] = {}
        with suppress(PeerLost):  # the processes that it has started are then silent
            self._cluster.processes.exits()
        for number, word in self._cluster.gate.words():
            if isinstance(word, ProcessGone) and word.who.role == self._role:
                found[number] = f"its process {word.how}"
            elif isinstance(word, SiteFailed):
                found[number] = word.reason
        try:
            return self._places.ended() | found
        except PeerLost as lost:  # the engine itself has ended, and all sites with it
            return dict.fromkeys(range(len(self.hosts)), str(lost)) | found

    def close(self, error: BaseException | None = None) -> None:
        """End all of them; those that do not leave by themselves are killed."""
        self._cluster.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


async def _no_program(node: Node, replica: object) -> None:
    """These processes have programs of their own kind."""

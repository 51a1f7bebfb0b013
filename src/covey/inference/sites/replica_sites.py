"""The hosts of an engine, on which replicas run: their sites are invited, and each starts a host of replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import zmq

from covey.address import Address
from covey.engines.cluster import this_host
from covey.engines.cluster.cluster_processes import COMING, ClusterProcesses
from covey.engines.cluster.places import MeetingTerms, Places
from covey.engines.cluster.site_messages import ProcessGone, SiteFailed
from covey.engines.process.contacts import Contacts
from covey.engines.transport.token import seal, unseal
from covey.errors import PeerLost, WireError
from covey.inference.endpoint_log import log
from covey.inference.served_model import ModelPlace
from covey.inference.sites import replica_host
from covey.inference.sites.relay_words import HOST, MOST, Down, HostWork, Up, up
from covey.program import Node
from covey.strategy import Role

BROKEN = 1.5  # seconds after which a host is lost that has said nothing since a line broke
SILENT = 5.0  # the same where none broke
LOOK = 0.2  # seconds between two looks at the engine


class ReplicaSites:
    """Hosts of replicas, and the lines to them. All of it is used by one thread at a time.

    Args:
        places: Where the engine has its sites.
        models: Where the versions are, at the same path on every host.
        cuts: Layers after which each is cut.
        threads: Of each replica.
        trial: Seconds that a batch may take which a replica measures, and the largest of them.
    """

    def __init__(
        self, places: Places, models: Sequence[ModelPlace], cuts: Sequence[tuple[int, ...]], threads: int,
        trial: tuple[float, int],
    ) -> None:  # fmt: skip
        self._processes = ClusterProcesses(places, MeetingTerms(threads=threads), replica_host.__name__, "", b"")
        try:
            self._line = self._listen()
            hosts = [Address(HOST, site.number) for site in self._processes.sites]
            endpoint = self._line.getsockopt_string(zmq.LAST_ENDPOINT)

            def pack(contacts: Contacts) -> bytes:
                work = HostWork(
                    contacts=contacts, endpoint=endpoint, places=tuple(models), cuts=tuple(cuts), threads=threads,
                    trial=trial,
                )  # fmt: skip
                return msgspec.msgpack.encode(work)

            self._board = self._processes.start(
                [Role(who, _no_program, trains=True) for who in hosts], replica_host.ENTRY, pack
            )
            self._heard: dict[int, float] = {}  # when each host said something last
            self._ended: set[int] = set()  # hosts that will not come back
            self._broken = self._looked = 0.0
            self._news = ""  # of the engine, the last
            self._complete = False
            self._await(len(hosts))
        except BaseException as error:
            self._processes.__exit__(type(error), error, error.__traceback__)
            raise

    @property
    def hosts(self) -> Sequence[int]:
        """Those that are there."""
        return list(self._heard)

    @property
    def sockets(self) -> list[int | zmq.Socket[bytes]]:
        """Readable when there may be news."""
        return [self._line, *self._processes.wakeups]

    def begin(self) -> None:
        """Replicas are ready: quotas of hosts hold from now on."""
        self._processes.begin()

    def tell(self, host: int, word: Down) -> None:
        self._line.send_multipart([f"{HOST}/{host}".encode(), seal(self._processes.keys.token, word)])

    def words(self) -> list[tuple[int, Up]]:
        """What hosts have said since the last time; never waits."""
        self._processes.guard.answer()
        found: list[tuple[int, Up]] = []
        while self._line.poll(0):
            name, *parts = self._line.recv_multipart(copy=False)
            try:
                found.append(self._read(name.bytes, parts))
            except WireError as error:
                log(f"a message of a host is refused: {error}")
        now = time.monotonic()
        for host in {host for host, _ in found} - self._ended:
            if self._complete and host not in self._heard:
                log(f"{self._called(host)} is heard again")
            self._heard[host] = now
        return found

    def lost(self) -> list[int]:
        """Hosts that are gone since the last time; never waits."""
        now, reasons = time.monotonic(), dict[int, str]()
        if now - self._looked < LOOK:
            return []
        self._looked = now
        with suppress(PeerLost):  # hosts that it has started are then silent
            self._processes.processes.exits()
        for number, word in self._processes.gate.words():
            if isinstance(word, ProcessGone) and word.who.role == HOST:
                reasons[number] = f"its process {word.how}"
            elif isinstance(word, SiteFailed):
                reasons[number] = word.reason
        self._ended |= reasons.keys()
        if (news := self._engine_news()) and news != self._news:  # whose host it is, silence will tell
            self._news, self._broken = news, now
        for host, since in self._heard.items():
            if now - since > (BROKEN if since < self._broken else SILENT):
                reasons.setdefault(host, f"nothing was heard of it for {now - since:.1f} s")
        gone = [host for host in reasons if self._heard.pop(host, None) is not None]
        for host in gone:
            log(f"{self._called(host)} was lost: {reasons[host]}; {len(self._heard)} others are there")
        return gone

    def close(self) -> None:
        """End all of them; those that do not leave by themselves are killed."""
        self._processes.__exit__(None, None, None)

    # -- the lines ---------------------------------------------------------------------------------------------------

    def _listen(self) -> zmq.Socket[bytes]:
        processes = self._processes
        line = processes.context.socket(zmq.ROUTER)
        line.ipv6 = True
        if ring := processes.keys.own_ring():
            ring.lock(line)
        processes.guard.watch(line, self._line_broke)
        line.setsockopt(zmq.MAXMSGSIZE, MOST)
        line.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what is more
        line.setsockopt(zmq.RCVHWM, 0)
        line.setsockopt(zmq.LINGER, 1000)
        line.bind(this_host.endpoint(processes.address))
        return line

    def _called(self, host: int) -> str:
        return f"host {self._processes.hosts[host]} (site {host})"

    def _engine_news(self) -> str:
        try:
            return self._processes.places.lost()
        except PeerLost as lost:
            return str(lost)

    def _line_broke(self, file: int) -> None:
        self._broken = time.monotonic()

    def _await(self, hosts: int) -> None:
        """All hosts have their processes, or PeerLost says which have not."""
        until = time.monotonic() + COMING * self._processes.terms.stall
        while len(self._heard) < hosts:
            zmq.zmq_poll([(one, zmq.POLLIN) for one in self.sockets], 100)
            self.words()
            for who, how in self._processes.exits():
                if who.role == HOST:
                    raise PeerLost(f"the process that starts replicas on {self._processes.hosts[who.rank]} {how}")
            if time.monotonic() > until:
                missing = [name for host, name in enumerate(self._processes.hosts) if host not in self._heard]
                raise PeerLost(f"no process that starts replicas came from {', '.join(missing)}")
        self._complete = True

    def _read(self, name: bytes, parts: Sequence[zmq.Frame]) -> tuple[int, Up]:
        role, _, number = name.decode(errors="replace").partition("/")
        if role != HOST or not number.isdigit() or int(number) >= len(self._processes.sites) or len(parts) != 1:
            raise WireError(f"{name[:40]!r} is not a host of this endpoint")
        if other := self._processes.guard.impostor(parts[0], Address(HOST, int(number))):
            raise WireError(f"{other} speaks in the name of host {number}")
        return int(number), unseal(self._processes.keys.token, parts[0].bytes, up)


async def _no_program(node: Node, replica: object) -> None:
    """A host of replicas is a process of its own kind."""

"""The hosts of an engine, on which replicas run: their sites are invited, and each starts a host of replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import zmq

from covey.engines.cluster.host_processes import HostProcesses
from covey.engines.cluster.places import Places
from covey.engines.process.contacts import Contacts
from covey.engines.transport.token import seal, unseal
from covey.errors import WireError
from covey.inference.endpoint_log import log
from covey.inference.served_model import ModelPlace
from covey.inference.sites import replica_host
from covey.inference.sites.host_presence import HostPresence
from covey.inference.sites.relay_words import HOST, MOST, Down, HostWork, Up, up

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
        self._processes = HostProcesses(places, threads, replica_host.__name__, HOST)
        try:
            self._presence = HostPresence(len(self._processes.hosts))
            self._connected: dict[int, int] = {}  # the host at the other end of a connection, by its file
            self._broken: set[int] = set()  # hosts whose connection broke since the last look
            self._looked = 0.0
            self._complete = False
            self._line = self._processes.listen(MOST, self._connection_broke)
            endpoint = self._line.getsockopt_string(zmq.LAST_ENDPOINT)

            def pack(contacts: Contacts) -> bytes:
                work = HostWork(
                    contacts=contacts, endpoint=endpoint, places=tuple(models), cuts=tuple(cuts), threads=threads,
                    trial=trial,
                )  # fmt: skip
                return msgspec.msgpack.encode(work)

            self._processes.start(replica_host.ENTRY, pack)
            self._names = [self._processes.identity(host) for host in range(len(self._processes.hosts))]
            self._processes.wait(lambda: set(self.hosts), self._hear_first)
            self._complete = True
        except BaseException as error:
            self._processes.close(error)
            raise

    @property
    def hosts(self) -> Sequence[int]:
        """Those that are there."""
        return self._presence.hosts

    @property
    def awaited(self) -> bool:
        """Whether hosts that are not there may come again."""
        return self._presence.awaited

    @property
    def sockets(self) -> list[int | zmq.Socket[bytes]]:
        """Readable when there may be news."""
        return [self._line, *self._processes.wakeups]

    def begin(self) -> None:
        """Replicas are ready: quotas of hosts hold from now on."""
        self._processes.begin()

    def tell(self, host: int, word: Down) -> None:
        self._line.send_multipart([self._names[host], seal(self._processes.token, word)])

    def words(self) -> list[tuple[int, Up]]:
        """What hosts have said since the last time; never waits."""
        found: list[tuple[int, Up]] = []
        while self._line.poll(0):
            name, *parts = self._line.recv_multipart(copy=False)
            try:
                found.append(self._read(name.bytes, parts))
            except WireError as error:
                log(f"a message of a host is refused: {error}")
            else:
                self._heard(*found[-1])
        # Only now: a broken connection is reported before any word of the next one, so no such word is passed on.
        self._processes.answer()
        return [(host, word) for host, word in found if host not in self._broken]

    def lost(self) -> list[int]:
        """Hosts that are gone since the last time; never waits."""
        reasons = dict[int, str]()
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            reasons |= self._processes.ended()
            self._presence.end(reasons)
            reasons = self._presence.silent() | reasons
        reasons = dict.fromkeys(self._broken, "its connection broke") | reasons
        self._broken.clear()
        gone = [host for host in reasons if self._presence.lose(host)]
        for host in gone:
            log(f"{self._called(host)} was lost: {reasons[host]}; {len(self.hosts)} others are there")
        return gone

    def close(self) -> None:
        """End all of them; those that do not leave by themselves are killed."""
        self._processes.close()

    # -- the lines ---------------------------------------------------------------------------------------------------

    def _heard(self, host: int, word: Up) -> None:
        absent = host not in self.hosts
        if answer := self._presence.hear(host, word):
            self.tell(host, answer)
        elif absent and host in self.hosts and self._complete:
            log(f"{self._called(host)} is heard again")

    def _called(self, host: int) -> str:
        return f"host {self._processes.hosts[host]} (site {host})"

    def _connection_broke(self, file: int) -> None:
        if (host := self._connected.pop(file, None)) is not None and host in self.hosts:
            self._broken.add(host)

    def _hear_first(self) -> None:
        zmq.zmq_poll([(one, zmq.POLLIN) for one in self.sockets], 100)
        self.words()

    def _read(self, name: bytes, parts: Sequence[zmq.Frame]) -> tuple[int, Up]:
        if name not in self._names:
            raise WireError(f"{name[:40]!r} is not a host of this endpoint")
        number = self._names.index(name)
        if len(parts) != 1:
            raise WireError(f"host {number} sent a message that hosts do not send")
        if other := self._processes.impostor(parts[0], number):
            raise WireError(f"{other} speaks in the name of host {number}")
        word = unseal(self._processes.token, parts[0].bytes, up)
        self._came_over(int(parts[0].get(zmq.SRCFD)), number)
        return number, word

    def _came_over(self, file: int, host: int) -> None:
        """A host that speaks over another connection has lost its old one, even if that seems to be open."""
        if self._connected.get(file) != host:
            for old in [one for one, other in self._connected.items() if other == host]:
                self._connection_broke(old)
            self._connected[file] = host

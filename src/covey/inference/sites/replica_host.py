"""The process on a host that starts replicas there, as the front's process asks, and relays what they say."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

import zmq

from covey.address import Address
from covey.engines.process.contacts import Contacts
from covey.engines.process.line_identity import secret_identity
from covey.engines.transport.keys import LAUNCHER
from covey.engines.transport.token import seal, unseal
from covey.inference.replicas.replica_forks import ReplicaForks
from covey.inference.sites.relay_words import (
    HOST,
    MOST,
    EndHere,
    HostBeat,
    HostWork,
    LeaveHost,
    LinkEnded,
    RelayedBytes,
    RenewHost,
    StartHere,
    Up,
    down,
    works,
)
from covey.inference.sites.relayed_link import RelayedLink

BEAT = 0.3  # seconds between signs of life
ENTRY = f"{__name__}:run"


def run(work: bytes, handed: bytes, who: Address) -> None:
    """Be a host of replicas until the endpoint ends; roles of other kinds, as a run would have, have nothing to do."""
    if who.role != HOST:
        return
    given = works.read(work, "the launcher")
    with ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
        line = stack.enter_context(opened(context, given.contacts, given.endpoint, who))
        forks = [
            stack.enter_context(closing(ReplicaForks(place, given.threads, given.trial, after)))
            for place, after in zip(given.places, given.cuts, strict=True)
        ]
        ReplicaHost(line, given, forks).run()


def opened(
    context: zmq.Context[zmq.Socket[bytes]], contacts: Contacts, endpoint: str, who: Address
) -> zmq.Socket[bytes]:
    """The line to the front's process."""
    line = context.socket(zmq.DEALER)
    line.ipv6 = True
    line.setsockopt(zmq.MAXMSGSIZE, MOST)
    ring = contacts.key_ring(who)
    line.setsockopt(zmq.IDENTITY, secret_identity(who, 0, ring.mine if ring else None))
    line.setsockopt(zmq.SNDHWM, 0)  # the front limits what is under way
    line.setsockopt(zmq.RCVHWM, 0)
    line.setsockopt(zmq.LINGER, 0)
    if ring:
        ring.open(line, LAUNCHER)
    line.connect(endpoint)
    return line


class ReplicaHost:
    """Starts replicas by means of fork servers, one for each version."""

    def __init__(self, line: zmq.Socket[bytes], given: HostWork, forks: list[ReplicaForks]) -> None:
        self._line, self._token, self._forks = line, given.contacts.token, forks
        self._links: dict[int, RelayedLink] = {}
        self._ranks: dict[int, int] = {}  # by the numbers of their links
        self._incarnation = 0  # grows each time that the front takes this host for lost
        self._told = 0.0

    def run(self) -> None:
        """Obey until told to leave."""
        going = True
        while going:
            if time.monotonic() - self._told >= BEAT:
                self._tell(HostBeat(self._incarnation))
            poller = zmq.Poller()
            poller.register(self._line, zmq.POLLIN)
            for link in self._links.values():
                poller.register(link.socket.fileno(), link.events)
            ready = dict(poller.poll(round(BEAT * 1e3)))
            for link in [one for one in self._links.values() if ready.get(one.socket.fileno())]:
                self._relay(link)
            while going and self._line.poll(0):
                going = self._obey()

    def _obey(self) -> bool:
        word = unseal(self._token, self._line.recv(), down)
        match word:
            case LeaveHost():
                return False
            case StartHere(number, rank):
                self._links[number] = RelayedLink(number, self._forks[rank % len(self._forks)].start(rank))
                self._ranks[number] = rank
            case EndHere(number) if number in self._links:
                self._end(self._links[number])
            case RenewHost(incarnation) if incarnation > self._incarnation:
                for link in list(self._links.values()):
                    self._end(link)
                self._incarnation = incarnation
                self._tell(HostBeat(incarnation))
            case RelayedBytes(number, data) if number in self._links:
                if not self._links[number].write(data):
                    self._ended(self._links[number])
        return True

    def _relay(self, link: RelayedLink) -> None:
        """What a replica has said, and what it had no room for."""
        data = link.read()
        if data is None or not link.write():
            self._ended(link)
        elif data:
            self._tell(RelayedBytes(link.number, data))

    def _end(self, link: RelayedLink) -> None:
        """Kill the replica that has this link."""
        rank = self._ranks[link.number]
        self._forks[rank % len(self._forks)].end(rank)
        self._drop(link)

    def _ended(self, link: RelayedLink) -> None:
        self._drop(link)
        self._tell(LinkEnded(link.number))

    def _drop(self, link: RelayedLink) -> None:
        link.close()
        del self._links[link.number], self._ranks[link.number]

    def _tell(self, word: Up) -> None:
        self._told = time.monotonic()
        self._line.send(seal(self._token, word))

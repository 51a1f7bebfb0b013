"""Whose own end of a connection was reset, unseen by the launcher, is heard again; nobody else takes over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from covey.address import Address
from covey.engines.cluster import host_processes
from covey.engines.cluster.cluster_keys import ClusterKeys
from covey.engines.cluster.gate import SiteGate
from covey.engines.cluster.site_messages import LeaveRun, SitesReached, Upward
from covey.engines.process.contacts import Contacts
from covey.engines.process.line_identity import line_identity
from covey.engines.transport.keys import LAUNCHER, KeyRing
from covey.engines.transport.token import seal, unseal
from covey.inference.sites.relay_words import HOST, HostBeat, RenewHost, down, works
from covey.inference.sites.replica_host import opened
from covey.inference.sites.replica_sites import ReplicaSites
from tests.engines.half_open import HalfOpenRelay
from tests.real.harness import PATIENCE

SITE, ROLE = Address("site", 0), Address("worker", 0)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class OneSite:
    """The gate of a run with one site, and lines to it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], insecure: bool = False) -> None:
        self.context = context
        self.keys = ClusterKeys([SITE, ROLE], insecure)
        self.guard = self.keys.guard(context)
        self.gate = SiteGate(context, "tcp://127.0.0.1:*", 1, self.keys, self.guard)
        self.numbers = count(1)

    def line(self, endpoint: str, who: Address, identity: bytes) -> zmq.Socket[bytes]:
        line = self.unconnected(who, identity)
        line.connect(endpoint)
        return line

    def unconnected(self, who: Address, identity: bytes) -> zmq.Socket[bytes]:
        line = self.context.socket(zmq.DEALER)
        line.setsockopt(zmq.IDENTITY, identity)
        public, pair = self.keys.of_site(who)
        if pair:
            KeyRing(pair, {LAUNCHER: public}).open(line, LAUNCHER)
        return line

    def hears(self, line: zmq.Socket[bytes]) -> None:
        """Return when the gate has heard something that this line was given after the call."""
        first = next(self.numbers)

        def heard() -> bool:
            line.send(seal(self.keys.token, SitesReached([next(self.numbers)])))
            return any(isinstance(word, SitesReached) and word.sites[0] > first for _, word in self.look())

        until(heard)

    def look(self) -> list[tuple[int, Upward]]:
        self.guard.answer()
        return self.gate.words()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_a_site_whose_connection_is_half_open_is_heard_again(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    site = OneSite(context)
    with HalfOpenRelay(site.gate.endpoint) as relay:
        line = site.line(relay.endpoint, SITE, site.keys.identity(SITE))
        site.hears(line)
        relay.reset()
        site.hears(line)
    site.gate.close()


@pytest.mark.parametrize("insecure", [False, True], ids=["a member", "a stranger without keys"])
def test_nobody_else_takes_over_the_link_of_a_site(context: zmq.Context[zmq.Socket[bytes]], insecure: bool) -> None:
    """It would receive what the launcher sends next, such as the keys of roles."""
    site = OneSite(context, insecure)
    line = site.line(site.gate.endpoint, SITE, site.keys.identity(SITE))
    site.hears(line)
    other = site.unconnected(ROLE, line_identity(SITE) if not insecure else site.keys.identity(SITE))
    came = other.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)  # before it connects, or it may come too late
    other.connect(site.gate.endpoint)
    other.send(seal(site.keys.token, SitesReached([0])))
    until(lambda: (site.look(), came.poll(0) and (insecure or site.guard.refusals.total))[1])
    site.gate.tell(0, LeaveRun(True, ""))
    until(lambda: line.poll(0) or other.poll(0))
    assert line.poll(0) and not other.poll(0)
    came.close(0)
    site.gate.close()


class PlayedCluster:
    """One host, which dials through a relay; sockets, keys and the guard are real."""

    def __init__(self, *given: Any) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.keys = ClusterKeys([SITE], insecure=False)
        self.guard = self.keys.guard(self.context)
        self.gate = SiteGate(self.context, "inproc://gate", 1)
        self.terms, self.address, self.hosts = SimpleNamespace(stall=30.0), "127.0.0.1", ["a"]
        self.sites = [SimpleNamespace(number=0)]
        self.processes = SimpleNamespace(exits=list)
        self.wakeups = self.guard.wakeups

    def start(self, roles: Any, entry: str, pack: Callable[[Contacts], bytes]) -> None:
        who = Address(HOST, 0)
        self.keys.admit([who], self.guard)
        contacts = Contacts(book={}, launcher="", token=self.keys.token)
        work = works.read(pack(self.keys.added(contacts, [who])), "the test")
        self.relay = HalfOpenRelay(work.endpoint)
        self.line = opened(self.context, work.contacts, self.relay.endpoint, who)
        self.beat(0)

    def exits(self) -> list[tuple[Address, str]]:
        return []

    def beat(self, incarnation: int) -> None:
        self.line.send(seal(self.keys.token, HostBeat(incarnation)))

    def __exit__(self, *given: object) -> None:
        self.relay.__exit__(None, None, None)
        self.gate.close()
        self.context.destroy(linger=0)


def test_a_host_of_replicas_whose_connection_is_half_open_is_lost_once_and_heard_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes that were under way are lost, so its replicas start again."""
    made: list[PlayedCluster] = []
    monkeypatch.setattr(host_processes, "ClusterProcesses", lambda *given: made.append(PlayedCluster()) or made[0])
    sites = ReplicaSites(SimpleNamespace(ended=dict), (), (), 1, (1.0, 1))  # type: ignore[arg-type]
    try:
        host, lost = made[0], list[int]()
        assert sites.hosts == [0]
        host.relay.reset()

        def again() -> bool:
            host.beat(0)
            sites.words()
            lost.extend(sites.lost())
            return host.line.poll(0) > 0

        until(again)
        assert lost == [0] and unseal(host.keys.token, host.line.recv(), down) == RenewHost(1)
        host.beat(1)  # behind beats of incarnation 0, which change nothing any more
        until(lambda: (sites.words(), sites.hosts)[1])
        assert sites.hosts == [0] and not sites.lost()
    finally:
        sites.close()

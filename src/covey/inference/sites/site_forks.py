"""Replicas on the hosts of an engine, as the front's process asks for them: a thread relays what they say."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

import zmq

from covey.errors import CoveyError
from covey.inference.endpoint_log import log
from covey.inference.sites.relay_words import EndHere, LeaveHost, LinkEnded, RelayedBytes, StartHere
from covey.inference.sites.relayed_link import RelayedLink
from covey.inference.sites.replica_sites import ReplicaSites

PATIENCE = 200  # milliseconds after which the thread looks at the hosts again
LEAVING = 30.0  # seconds for the thread to end


class SiteForks:
    """Starts replicas on the hosts where the fewest are; all of them end with this process.

    Args:
        sites: The hosts, which only the thread of this uses from now on.
    """

    def __init__(self, sites: ReplicaSites) -> None:
        self._sites = sites
        self._links: dict[int, RelayedLink] = {}
        self._homes: dict[int, tuple[int, int]] = {}  # the host and the rank of each link
        self._spoke: set[int] = set()  # links over which the replica has said something
        self._waiting: list[tuple[int, socket.socket]] = []  # ranks to start when a host is there, and their links
        self._asked: deque[Callable[[], None]] = deque()
        self._numbers = 0
        self._wakeup, self._open = os.eventfd(0, os.EFD_NONBLOCK), True
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def start(self, rank: int) -> socket.socket:
        """Let a replica be started; the front's end of its link, which hangs up when the replica has ended."""
        mine, theirs = socket.socketpair()
        self._ask(lambda: self._start(rank, theirs))
        return mine

    def end(self, rank: int) -> None:
        """Kill a replica, if there is one."""
        self._ask(lambda: self._end(rank))

    def begin(self) -> None:
        """Replicas are ready."""
        self._ask(self._sites.begin)

    def close(self, gently: bool = False) -> None:
        """End all processes."""
        if not self._open:
            return
        self._open = False
        self._ask(lambda: None)
        self._thread.join(LEAVING)
        self._sites.close()
        os.close(self._wakeup)

    def _ask(self, act: Callable[[], None]) -> None:
        self._asked.append(act)
        with suppress(BlockingIOError, OSError):
            os.eventfd_write(self._wakeup, 1)

    # -- (the thread) ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._open:
                self._turn()
        except CoveyError as error:
            log(f"replicas on other hosts are lost: {error}")
        finally:
            for host in self._sites.hosts:
                self._sites.tell(host, LeaveHost())
            for link in list(self._links.values()):
                self._drop(link)
            for _, end in self._waiting:
                end.close()

    def _turn(self) -> None:
        poller = zmq.Poller()
        for one in (self._wakeup, *self._sites.sockets):
            poller.register(one, zmq.POLLIN)
        for link in self._links.values():
            poller.register(link.socket.fileno(), link.events)
        ready = dict(poller.poll(PATIENCE))
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        while self._asked:
            self._asked.popleft()()
        for link in [one for one in self._links.values() if ready.get(one.socket.fileno())]:
            self._relay(link)
        self._hear()
        if self._waiting and (self._sites.hosts or not self._sites.awaited):
            waiting, self._waiting = self._waiting, []
            for rank, end in waiting:
                self._start(rank, end)

    def _hear(self) -> None:
        """What hosts say, and which are lost."""
        for _, word in self._sites.words():
            if isinstance(word, LinkEnded) and word.link in self._links:
                self._drop(self._links[word.link])
            elif isinstance(word, RelayedBytes) and word.link in self._links:
                self._spoke.add(word.link)
                self._links[word.link].write(word.data)
        for host in self._sites.lost():
            for number in [one for one, home in self._homes.items() if home[0] == host]:
                self._lose(number)

    def _lose(self, number: int) -> None:
        """The host of a link is lost. A replica that has said nothing is started elsewhere: it did not fail itself."""
        link, (host, rank) = self._links[number], self._homes[number]
        if number in self._spoke:
            return self._hang_up(link)
        self._sites.tell(host, EndHere(number))  # the host may only have been silent
        self._waiting.append((rank, link.socket))
        return self._forget(link)

    def _start(self, rank: int, end: socket.socket) -> None:
        if not self._sites.hosts and self._sites.awaited:
            log(f"replica {rank} is started when a host is heard again")
            return self._waiting.append((rank, end))
        if not self._sites.hosts:
            log("no host is left on which a replica could be started")
            return end.close()
        loads = Counter(host for host, _ in self._homes.values())
        host = min(self._sites.hosts, key=lambda one: (loads[one], one))
        self._numbers += 1
        self._links[self._numbers], self._homes[self._numbers] = RelayedLink(self._numbers, end), (host, rank)
        return self._sites.tell(host, StartHere(self._numbers, rank))

    def _end(self, rank: int) -> None:
        for number in [one for one, home in self._homes.items() if home[1] == rank]:
            self._hang_up(self._links[number])
        for one in [one for one in self._waiting if one[0] == rank]:
            self._waiting.remove(one)
            one[1].close()

    def _relay(self, link: RelayedLink) -> None:
        """What the front has sent, and what it had no room for."""
        data = link.read()
        if data is None or not link.write():
            self._hang_up(link)
        elif data:
            self._sites.tell(self._homes[link.number][0], RelayedBytes(link.number, data))

    def _hang_up(self, link: RelayedLink) -> None:
        """The front wants nothing of it any more."""
        self._sites.tell(self._homes[link.number][0], EndHere(link.number))
        self._drop(link)

    def _drop(self, link: RelayedLink) -> None:
        link.close()
        self._forget(link)

    def _forget(self, link: RelayedLink) -> None:
        del self._links[link.number], self._homes[link.number]
        self._spoke.discard(link.number)

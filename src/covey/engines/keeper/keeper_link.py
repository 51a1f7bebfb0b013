"""A keeper's link to another: dialled again when it breaks, and its keeper hears who is gone, and who is back."""

from __future__ import annotations

import select
import time
from collections import deque

import zmq

from covey.data.stripe_cache.keeper_messages import KEEPER
from covey.engines.keeper.keeper_pool import KeeperPool
from covey.engines.service.dialled_link import DialledLink, LinkLost, TurnedAway, dialled
from covey.engines.service.greeting import Hello, Welcome
from covey.errors import WireError
from covey.membership import Departed, Joined
from covey.message import Address, Message
from covey.version import __version__

FIRST = 30.0  # seconds in which the keepers of a pool should have started
ANSWER = 15.0  # seconds in which one answers hello
PAUSE = 1.0  # seconds before it is dialled again
LARGEST = 256 << 20  # bytes that may wait on the link


class KeeperLink:
    """To one peer. Until that has had time to start, messages wait for it; then it is gone until it answers."""

    def __init__(self, pool: KeeperPool, mine: int, peer: int, ready: select.epoll) -> None:
        """`ready` becomes readable when something has come."""
        self._pool, self._mine, self._peer, self._ready = pool, mine, Address(KEEPER, peer), ready
        self._link: DialledLink | None = None
        self._greeted, self._gone, self._incarnation = False, False, 0
        self._waiting: deque[Message] = deque()
        self._began = time.monotonic()
        self._dialled = -PAUSE

    def send(self, message: Message) -> bool:
        """Hand it a message; False if the peer is gone."""
        if self._gone:
            return False
        if self._link is not None and self._greeted:
            self._link.send(self._peer, message)
        else:
            self._waiting.append(message)
        return True

    def poll(self) -> list[Message]:
        """What has come, without waiting; also that the peer is gone, or back."""
        if self._link is None and time.monotonic() - self._dialled > PAUSE:
            self._dial()
        try:
            return self._received() if self._link else []
        except (LinkLost, TurnedAway, WireError):
            return self._lost()

    def close(self) -> None:
        if self._link:
            self._link.close()

    def _dial(self) -> None:
        place, self._dialled = self._peer.rank, time.monotonic()
        where = dialled(self._pool.members[place].address)
        me = Address(KEEPER, self._mine)
        self._link = DialledLink(where, self._pool.key(self._mine, place), me, (self._peer,), LARGEST)
        self._ready.register(int(self._link.socket.getsockopt(zmq.FD)), select.EPOLLIN)
        self._link.send(self._peer, Hello(__version__, ""))

    def _received(self) -> list[Message]:
        assert self._link is not None
        found: list[Message] = []
        while came := self._link.poll(0):
            found += came
        if not self._greeted and time.monotonic() - self._dialled > ANSWER:
            raise LinkLost("it does not answer", str(self._peer))
        welcomed = [message for message in found if isinstance(message, Welcome)]
        if not welcomed:
            return found
        self._greeted, self._incarnation = True, self._incarnation + 1
        while self._waiting:
            self._link.send(self._peer, self._waiting.popleft())
        back = [Joined(self._incarnation, sender=self._peer)] if self._gone else []
        self._gone = False
        return [*back, *(message for message in found if not isinstance(message, Welcome))]

    def _lost(self) -> list[Message]:
        assert self._link is not None
        self._link.close()
        self._link, known, self._greeted = None, self._greeted or self._incarnation > 0, False
        if self._gone or (not known and time.monotonic() - self._began < FIRST):
            return []
        self._gone = True
        self._waiting.clear()
        return [Departed(self._incarnation, sender=self._peer)]

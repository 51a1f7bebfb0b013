"""The control links: from each role to its launcher, and the launcher's end of all of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import zmq

from covey.engines.process import control
from covey.engines.process.line_identity import line_identity
from covey.engines.transport.keys import LAUNCHER, ConnectionGuard, KeyRing, private
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.token import NONE, seal, unseal
from covey.errors import WireError
from covey.message import Address

MOST_UP, MOST_DOWN = 1 << 20, 16 << 20  # bytes of a word; ZeroMQ refuses more before it takes memory
AT_ONCE = 1000  # messages received in one go, so that many of them do not keep the launcher from its other work
CONFESS_EVERY = 0.2  # seconds
LISTEN = 100  # milliseconds after which a waiting role wakes up for a moment


class RoleLine:
    """A role's end of the control line."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, me: Address, key_ring: KeyRing | None = None,
        token: bytes = NONE, incarnation: int = 0,
    ) -> None:  # fmt: skip
        self.token = token
        self.refusals = Refusals()
        self.confessed = 0.0
        self.loop: Callable[[control.Downward], None] | None = None  # who hears what is said to the user's own loop
        self._handed: deque[control.Upward] = deque()
        self.socket = context.socket(zmq.DEALER)
        self.socket.ipv6 = True
        if key_ring:
            key_ring.open(self.socket, LAUNCHER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_DOWN)
        self.socket.setsockopt(zmq.IDENTITY, line_identity(me, incarnation))
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.connect(endpoint)

    def tell(self, word: control.Upward) -> None:
        self.socket.send(seal(self.token, word))

    def hand(self, word: control.Upward) -> None:
        """(Any thread) Something to send as soon as the line's own thread runs."""
        self._handed.append(word)

    def tell_handed(self) -> None:
        while self._handed:
            self.tell(self._handed.popleft())

    def wait(self) -> control.Downward:
        """The next thing that the launcher says."""
        while True:
            while not self.socket.poll(LISTEN):
                pass  # a role that does nothing at all counts as stopped
            try:
                return unseal(self.token, self.socket.recv(), control.downward)
            except WireError as error:
                self.refusals.note(str(error))

    def heard(self) -> Iterator[control.Downward]:
        """What the launcher has said since the last time; never waits."""
        while self.socket.poll(0):
            yield self.wait()

    def confess(self, now: bool = False) -> None:
        """Report what was refused, if anything was; at limited intervals unless it must be `now`."""
        if (now or time.monotonic() - self.confessed > CONFESS_EVERY) and (counts := self.refusals.news()):
            self.confessed = time.monotonic()
            self.tell(control.Refused(counts))


class Switchboard:
    """The launcher's end of all control lines."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, roles: Iterable[Address],
        key_ring: KeyRing | None = None, guard: ConnectionGuard | None = None, token: bytes = NONE,
    ) -> None:  # fmt: skip
        self.names = {line_identity(address): address for address in roles}
        self.identities = {address: name for name, address in self.names.items()}
        self.past: set[bytes] = set()  # the identities of incarnations that are over
        self.guard, self.token = guard, token
        self.refusals = guard.refusals if guard else Refusals()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.ipv6 = True
        if key_ring:
            key_ring.lock(self.socket)
        if guard:
            guard.watch(self.socket)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_UP)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a script that fails after its run speaks on a line of its own
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        private(self.endpoint)
        self.introduces = self.endpoint.startswith("tcp://")  # roles choose their ports, and must learn the others'

    def tell(self, roles: Iterable[Address], word: control.Downward) -> None:
        data = seal(self.token, word)
        for address in roles:
            self.socket.send_multipart([self.identities.get(address) or line_identity(address), data])

    def forget(self, who: Address) -> None:
        """Hear no more of this incarnation of a role: its words may be late, or it may live on beyond a broken link."""
        self.past.add(self.identities[who])
        self.names.pop(self.identities[who], None)

    def renew(self, who: Address, incarnation: int) -> None:
        """Hear another incarnation of a role, and no earlier one."""
        self.forget(who)
        self.identities[who] = line_identity(who, incarnation)
        self.names[self.identities[who]] = who

    def heard(self) -> Iterator[tuple[Address, control.Upward]]:
        """What the roles have said since the last time; never waits. What no role says is refused, and counted."""
        for _ in range(AT_ONCE):
            if not self.socket.poll(0):
                return
            name, *parts = self.socket.recv_multipart(copy=False)
            if name.bytes in self.past:
                continue
            try:
                yield self._read(name, *parts)
            except WireError as error:
                self.refusals.note(str(error))

    def _read(self, name: zmq.Frame, *parts: zmq.Frame) -> tuple[Address, control.Upward]:
        who = self.names.get(name.bytes)
        if who is None or len(parts) != 1:
            raise WireError("the control link received a message that no role of this run sends")
        if self.guard and (other := self.guard.impostor(parts[0], who)):
            raise WireError(f"{other} sent the launcher a message in the name of {who}")
        return who, unseal(self.token, parts[0].bytes, control.upward)

"""The port of a service: guests dial in, prove an enrolled key, say hello, and their messages reach the roles."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import zmq

from covey.engines.service.greeting import Hello, NotWelcome, RunOver, Welcome
from covey.engines.service.guest_connection import BEAT, FROZEN, PIECE, GuestConnection, pieces
from covey.engines.transport import frames
from covey.engines.transport.keys import KeyChecker, KeyRing, Pair, break_off
from covey.engines.transport.link import FRAMES_AHEAD, FRAMES_AT_ONCE
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.zmq import ROOM
from covey.errors import PlanError, WireError
from covey.membership import Departed
from covey.message import MAX_HEADER, Address, Message

UNREAD = 8  # messages of one guest that may lie unread: its program waits for an answer after each
MODELS = 2  # that may wait for one guest to receive them
LEAVES = 1.0  # seconds in which a guest that must go hears of it
REPLACED = "another client with this key has joined: each needs a key of its own"

Greet = Callable[[Address, Hello], Welcome | NotWelcome | RunOver]
"""How a guest is answered that says hello."""

Arrival = tuple[Address, Message]
"""For which role of the service, and what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PortTerms:
    """What may come in at a port, and how much of it.

    Args:
        listen: Where it listens, as ZeroMQ writes it: "tcp://*:7070".
        pair: The service's own key.
        roles: The roles of the service.
        says: All kinds of messages that guests may send.
        largest: Bytes of the tensors of the largest message, either way.
        unread: How many messages of one guest may lie unread.
    """

    listen: str
    pair: Pair
    roles: Sequence[Address]
    says: Collection[type[Message]]
    largest: int
    unread: int = UNREAD


class ServicePort:
    """One socket for all guests. What is refused is counted by name; whoever sends nonsense is cut off."""

    def __init__(self, terms: PortTerms, welcome: Mapping[str, Address], greet: Greet, refusals: Refusals) -> None:
        """`welcome` has the guests that may come, by their public keys."""
        self.terms, self.greet, self.refusals = terms, greet, refusals
        self.connections: dict[bytes, GuestConnection] = {}  # by ZeroMQ's name for each
        self.present: dict[Address, GuestConnection] = {}  # the newest of each guest that was greeted
        self.visits: Counter[Address] = Counter()
        self.seen_off: set[Address] = set()  # who has been told that the run is over
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=2)
        self._unread: Counter[Address] = Counter()
        self._gone: list[int] = []  # files of connections that have ended
        self._news: list[Arrival] = []
        self._leaving: deque[tuple[float, GuestConnection]] = deque()  # until when they may read why they must go
        ring = KeyRing(terms.pair, {})
        self.guard = KeyChecker(self.context, ring, refusals)
        self.guard.admit({who: public for public, who in welcome.items()})
        self.socket = self._open(ring)
        self.poller = zmq.Poller()
        for one in (self.socket, *self.guard.wakeups):
            self.poller.register(one, zmq.POLLIN)

    def _open(self, ring: KeyRing) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_MANDATORY, 1)  # it says so when a guest is gone
        socket.set(zmq.RCVHWM, FRAMES_AHEAD)
        socket.set(zmq.SNDHWM, 16 + MODELS * pieces(self.terms.largest))
        socket.set(zmq.MAXMSGSIZE, max(PIECE, MAX_HEADER + frames.SMALL) + ROOM)
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.LINGER, 1000)
        socket.set(zmq.HEARTBEAT_IVL, BEAT)
        socket.set(zmq.HEARTBEAT_TIMEOUT, FROZEN)
        ring.lock(socket)
        self.guard.watch(socket, self._gone.append)
        try:
            socket.bind(self.terms.listen)
        except zmq.ZMQError as error:
            raise PlanError(f"--listen: {self.terms.listen} cannot be used: {error}; choose another port") from None
        return socket

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT).replace("[::ffff:127.0.0.1]", "127.0.0.1")

    def poll(self, timeout: float, wakeup: int | None = None) -> list[Arrival]:
        """Wait until anything comes, or for `timeout` seconds; also `wakeup`, a file that becomes readable, ends it."""
        if wakeup is not None:
            self.poller.register(wakeup, zmq.POLLIN)
        ready = dict(self.poller.poll(0 if self._news else math.ceil(timeout * 1000)))
        if wakeup is not None:
            self.poller.unregister(wakeup)
        if any(one in ready for one in self.guard.wakeups):
            self.guard.answer()
        for _ in range(FRAMES_AT_ONCE):
            try:
                line = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._part()  # whatever they had sent has been read
                break
            self._take(line)
        while self._leaving and self._leaving[0][0] < time.monotonic():
            _, connection = self._leaving.popleft()
            if self.connections.get(connection.line) is connection:
                self._cut(connection)
        news, self._news = self._news, []
        return news

    def send(self, sender: Address, to: Address, message: Message, loan: bool = False) -> bool:
        """Hand a message to a guest; False if it is not there, or does not receive what it is sent."""
        connection = self.present.get(to)
        return connection is not None and self._pass(connection, sender, message, loan)

    def taken(self, message: Message) -> None:
        """A program has taken a guest's message, or none ever will."""
        if self._unread[message.sender] > 0 and type(message) in self.terms.says:
            self._unread[message.sender] -= 1

    def admit_only(self, welcome: Mapping[str, Address]) -> list[Address]:
        """Let these guests come, by their public keys, and no others; those that are here and may not be any more."""
        self.guard.names.clear()
        self.guard.admit({who: public for public, who in welcome.items()})
        known = set(welcome.values())
        unwelcome = [one for one in self.connections.values() if one.guest not in known]
        for connection in unwelcome:
            self._cut(connection)
        return [connection.guest for connection in unwelcome]

    def send_off(self, guest: Address, why: str) -> None:
        """Tell a guest that it must go, if it is here; it is cut off a moment later."""
        if (connection := self.present.get(guest)) and self._pass(connection, self.terms.roles[0], NotWelcome(why)):
            self._leave(connection)

    def close(self) -> None:
        """Send what waits, for a moment, and leave nothing behind."""
        self.context.destroy(linger=500)

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        """Receive one frame of a connection; a guest that breaks the rules is named, and cut off."""
        connection: GuestConnection | None = None
        who: object = "a connection"
        try:
            if not self.socket.get(zmq.RCVMORE):
                raise WireError("a frame without content is refused")
            head = self.socket.recv(copy=False)
            connection = self.connections.get(line) or self._connect(line, head)
            who = connection.guest
            arrival = connection.take(self.socket, head.bytes)
            if self.socket.get(zmq.RCVMORE):
                raise WireError("it sent more parts than a frame has")
            if arrival:
                self._admit(connection, *arrival)
        except WireError as error:
            self.refusals.note(str(error) if str(who) in str(error) else f"{who}: {error}")
            if connection:
                self._cut(connection)
        finally:
            while self.socket.get(zmq.RCVMORE):
                self.socket.recv(copy=False)

    def _connect(self, line: bytes, head: zmq.Frame) -> GuestConnection:
        guest, file = self.guard.who(head), int(head.get("__fd"))
        self.guard.answer()  # an older connection of the same file number has ended before: hear of it first
        if file in self._gone:
            self._part()
        if guest is None:  # its key was revoked after it had come in
            self._break_off(file)
            raise WireError("a frame of a guest whose key is not enrolled any more is refused")
        for other in [one for one in self.connections.values() if one.guest == guest and not one.greeted]:
            self._cut(other)  # each guest has one that was greeted, and one that says hello
        connection = GuestConnection(guest, line, file, self.terms.roles, 4 * self.terms.largest + MAX_HEADER)
        self.connections[line] = connection
        return connection

    def _admit(self, connection: GuestConnection, to: Address, message: Message) -> None:
        """Let a message pass that is of a kind which guests send, from one that has said hello."""
        if connection.closed:
            return
        if isinstance(message, Hello):
            return self._greet(connection, message)
        if isinstance(message, RunOver):
            self.seen_off.add(connection.guest)
            return None
        if not connection.greeted or self.present.get(connection.guest) is not connection:
            raise WireError(f"it sent a {type(message).__name__} without having been greeted")
        if type(message) not in self.terms.says:
            raise WireError(f"it sent a {type(message).__name__}, which is not for guests to send")
        if self._unread[connection.guest] >= self.terms.unread:
            raise WireError(f"it sent more than {self.terms.unread} messages without waiting for an answer")
        self._unread[connection.guest] += 1
        self._news.append((to, message))

    def _greet(self, connection: GuestConnection, hello: Hello) -> None:
        answer = self.greet(connection.guest, hello)
        if isinstance(answer, RunOver):
            self.seen_off.add(connection.guest)
        if isinstance(answer, NotWelcome):
            self.refusals.note(f"{connection.guest}: {answer.why}")
        if isinstance(answer, Welcome):
            if (before := self.present.get(connection.guest)) and before is not connection:
                self._take_leave(before)
            self.visits[connection.guest] += 1
            connection.greeted, self.present[connection.guest] = True, connection
        self._pass(connection, self.terms.roles[0], answer)

    def _take_leave(self, before: GuestConnection) -> None:
        """A guest dials again before its old connection was found to have ended, or there are two with its key."""
        self.guard.answer()
        if before.file in self._gone or not self._pass(before, self.terms.roles[0], NotWelcome(REPLACED)):
            self._cut(before)
            return
        self.refusals.note(f"{before.guest}: it came while it was there: two clients with one key, or a broken link")
        self._leave(before)

    def _leave(self, connection: GuestConnection) -> None:
        """A guest is here no more, and has a moment to read why."""
        self._forget(connection)
        connection.greeted, self.connections[connection.line] = False, connection
        self._leaving.append((time.monotonic() + LEAVES, connection))

    # -- what leaves --------------------------------------------------------------------------------------------------

    def _pass(self, connection: GuestConnection, sender: Address, message: Message, loan: bool = False) -> bool:
        try:
            for parcel in connection.parcels(sender, message, loan):
                self.socket.send_multipart([connection.line, *parcel], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.refusals.note(f"{connection.guest}: it does not receive what it is sent")
            self._cut(connection)
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(connection)
            return False
        return True

    # -- who goes -----------------------------------------------------------------------------------------------------

    def _part(self) -> None:
        """Forget the connections that have ended."""
        files, self._gone[:] = set(self._gone), []
        for connection in [one for one in self.connections.values() if one.file in files]:
            self._forget(connection)

    def _cut(self, connection: GuestConnection) -> None:
        """End a connection from here."""
        self._break_off(connection.file)
        self._forget(connection)

    def _break_off(self, file: int) -> None:
        """Another guest's connection may have this file's number, if the one that is meant has ended."""

        def ended() -> bool:
            self.guard.answer()  # ZeroMQ tells of an end before it closes the file
            return file in self._gone

        break_off(file, self.endpoint, ended)

    def _forget(self, connection: GuestConnection) -> None:
        """A connection has ended: all roles hear that its guest has departed, if it has no newer one."""
        connection.closed = True
        self.connections.pop(connection.line, None)
        if self.present.get(connection.guest) is connection:
            del self.present[connection.guest]
            for role in self.terms.roles:
                self._news.append((role, Departed(incarnation=self.visits[connection.guest], sender=connection.guest)))


def listening_at(text: str) -> str:
    """Where ZeroMQ should listen: at ":7070" on all addresses, at "10.0.0.1:7070" on one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise PlanError(f"--listen {text}: write HOST:PORT, or :PORT for all addresses of this machine")
    return f"tcp://{host or '*'}:{port}"

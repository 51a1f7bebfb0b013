"""A guest's link to a service: it dials out, proves its key, and hears whether the link still stands."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from covey.engines.service.greeting import Hello, NotWelcome, RunOver, Welcome
from covey.engines.service.guest_connection import BEAT, FROZEN, PIECE, parcels, received
from covey.engines.service.guest_keys import GuestKey
from covey.engines.transport import frames
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.link import FRAMES_AHEAD
from covey.engines.transport.refusals import shown
from covey.engines.transport.zmq import ROOM
from covey.errors import CoveyError, PeerLost, PlanError
from covey.message import MAX_HEADER, Address, Message, check_finite, stamped

ANSWER = 15.0  # seconds in which a service answers hello
HANDSHAKE = 10_000  # milliseconds
GOODBYE = 1000  # milliseconds
ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
ENDED |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH


class LinkLost(PeerLost):
    """The service cannot be reached, or the link to it broke: dialling again may help."""


class TurnedAway(CoveyError):
    """The service does not let this guest in; the message says why. Dialling again does not help."""


class ServiceEnded(CoveyError):
    """The service has said that the run is over."""


class DialledLink:
    """One connection to a service, from hello to its end; its messages name the service's roles by their places."""

    def __init__(self, endpoint: str, key: GuestKey, me: Address, roles: Sequence[Address], largest: int) -> None:
        """`largest` is the number of bytes of the largest tensors that may come."""
        self.endpoint, self.me, self.roles = endpoint, me, roles
        self.over = False  # the run has ended
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.socket = self.context.socket(zmq.DEALER)
        for option, value in (
            (zmq.RECONNECT_IVL, -1), (zmq.LINGER, 0), (zmq.IPV6, 1), (zmq.HEARTBEAT_IVL, BEAT),
            (zmq.HEARTBEAT_TIMEOUT, FROZEN), (zmq.HANDSHAKE_IVL, HANDSHAKE), (zmq.RCVHWM, FRAMES_AHEAD),
            (zmq.SNDHWM, 0), (zmq.MAXMSGSIZE, max(PIECE, MAX_HEADER + frames.SMALL) + ROOM),
        ):  # fmt: skip
            self.socket.set(option, value)
        self.socket.curve_serverkey = key.service.encode()
        self.socket.curve_publickey, self.socket.curve_secretkey = key.public.encode(), key.secret.encode()
        self.inbox = Inbox(list(roles), 4 * largest + MAX_HEADER)
        self._numbers = [0] * len(roles)
        self._monitor = self.socket.get_monitor_socket(ENDED | REFUSED)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self.socket.connect(endpoint)

    def greet(self, version: str, task: str, samples: int = 0) -> Welcome:
        """Say hello; LinkLost if nobody answers, TurnedAway if the answer is no. Without one the run is over."""
        self.send(self.roles[0], Hello(version, task, samples))
        until = time.monotonic() + ANSWER
        while (left := until - time.monotonic()) > 0:
            for message in self.poll(left):
                if isinstance(message, Welcome):
                    return message
            if self.over:
                raise ServiceEnded("the run is over")
        raise LinkLost(f"{self.endpoint} has not answered in {ANSWER:g} s", "the service")

    def send(self, to: Address, message: Message, loan: bool = False) -> None:
        """Hand a message to the link."""
        place = self.roles.index(to)
        number, self._numbers[place] = self._numbers[place], self._numbers[place] + 1
        for parcel in parcels(stamped(message, self.me, copy=False), place, number, loan):
            self.socket.send_multipart(parcel, copy=False)

    def poll(self, timeout: float, wakeup: int | None = None) -> list[Message]:
        """Wait until something comes, or `timeout` seconds; LinkLost if the link broke, TurnedAway if it must go."""
        if wakeup is not None:
            self._poller.register(wakeup, zmq.POLLIN)
        ready = dict(self._poller.poll(math.ceil(timeout * 1000)))
        if wakeup is not None:
            self._poller.unregister(wakeup)
        found = self._received() if self.socket in ready else []
        for message in found:
            if isinstance(message, NotWelcome):
                raise TurnedAway(f"the service does not let this client in: {shown(message.why)}")
        if self._monitor in ready and not found and not self.over:
            self._check()
        return found

    def say_goodbye(self) -> None:
        """Let the service know that this guest has heard of the end; there is a moment for it to leave."""
        self.send(self.roles[0], RunOver())
        self.socket.linger = GOODBYE
        self.socket.close()

    def close(self) -> None:
        """Hang up."""
        if not self.socket.closed:
            self.socket.disable_monitor()
        self.context.destroy()

    def _received(self) -> list[Message]:
        found: list[Message] = []
        for _ in range(64):
            try:
                head = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                frame, rest = frames.read(head)
                self.inbox.admit(frame)
                message = received(self.inbox, frame, rest, self.socket)
            finally:
                while self.socket.get(zmq.RCVMORE):
                    self.socket.recv(copy=False)
            if message is not None:
                check_finite(message, self.me)
                self.over = self.over or isinstance(message, RunOver)
                found.append(message)
        return found

    def _check(self) -> None:
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event & REFUSED:
                raise TurnedAway(
                    f"the service at {self.endpoint} does not know this key, or it was revoked: ask for a new one"
                )
            raise LinkLost(
                f"the link to {self.endpoint} is broken, nobody is there, or this key is of another service",
                "the service",
            )


def dialled(text: str) -> str:
    """Where ZeroMQ should dial: "HOST:PORT"."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise PlanError(f"{text}: write HOST:PORT, the address of the service")
    return f"tcp://{host}:{port}"

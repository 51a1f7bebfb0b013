"""Keys: links between machines are encrypted, and both ends prove that they belong to the run (CURVE)."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from covey.address import Address
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.secretive import Secretive

LAUNCHER = Address("launcher", 0)
ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks whether a key is welcome (its RFC 27)
HANDSHAKE = 10_000  # milliseconds that a peer has to prove who it is
AT_ONCE = 64  # questions that are answered in one go, so that a flood of strangers does not keep a role from its work
CROWD = 65_536  # files that a process with locked doors may have open: strangers take one each until they are refused
RUDE = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
FAILED = RUDE | zmq.EVENT_HANDSHAKE_FAILED_AUTH
PROVED, GONE, CAME = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED, zmq.EVENT_ACCEPTED
STRANGERS = 24  # connections that a door has at once, beyond two for each member; each may fill as much as one frame
EVENTS = 1000  # of a door that are heard in one go


class Pair(Secretive, frozen=True):
    """A member's key: the public half is its name in the run, the secret half never leaves the run's own processes."""

    public: str
    secret: str


def new_pair() -> Pair:
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


@dataclass(frozen=True, slots=True)
class KeyRing:
    """What one member holds: its own key, and the public keys of all."""

    mine: Pair
    public: Mapping[Address, str]

    def lock(self, door: zmq.Socket[bytes]) -> None:
        """Before `bind`: admit only holders of a known key."""
        door.curve_server = 1
        door.zap_domain = b"covey"
        door.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a checker no connection is accepted
        self._own(door)

    def open(self, link: zmq.Socket[bytes], peer: Address) -> None:
        """Before `connect`: speak to this peer and no impostor."""
        link.curve_serverkey = self.public[peer].encode()
        self._own(link)

    def _own(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_publickey = self.mine.public.encode()
        socket.curve_secretkey = self.mine.secret.encode()


class LockedSocket:
    """A socket and the connections that it has, as file numbers of this process."""

    def __init__(self, socket: zmq.Socket[bytes], broken: Callable[[int], None]) -> None:
        self.socket, self.broken = socket, broken
        self.open: dict[int, None] = {}  # in the order in which they came

    def clear(self, most: int) -> int:
        """Break off the newest connections of more than these: older ones may have proved who they are. How many."""
        if len(self.open) <= most:
            return 0
        endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        newest = list(self.open)[most:]
        for number in newest:
            del self.open[number]  # ZeroMQ closes it, and a member's comes again
            break_off(number, endpoint)
        return len(newest)


def break_off(number: int, endpoint: str, ended: Callable[[], bool] = lambda: False) -> None:
    """End a connection to this port, if that is what the file of this number still is.

    One that has `ended` by itself is left alone: its number may be that of a connection which came since.
    """
    port = endpoint.rpartition(":")[2]
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as line:
        # asked while the file is held, so that no other connection can take its place in between
        if str(line.getsockname()[1]) == port and not ended():
            line.shutdown(socket.SHUT_RDWR)


class ConnectionGuard:
    """Bounds the connections of all doors of one context; register `wakeups` in the poll, then `answer`.

    Alone it is for links without keys, where it cannot tell a stranger from a member: the newest have come too many.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], members: int, refusals: Refusals | None = None) -> None:
        self.context, self.members = context, members
        self.refusals = refusals or Refusals()
        self.monitors: list[zmq.Socket[bytes]] = []
        self.doors: list[LockedSocket] = []  # each has one of the monitors
        self.left = 0  # connections that ended without a reason known here
        _expect_a_crowd()

    @property
    def wakeups(self) -> list[zmq.Socket[bytes]]:
        return self.monitors

    def watch(self, door: zmq.Socket[bytes], broken: Callable[[int], None] = lambda file: None) -> None:
        """Before `bind`: count connections that fail before the check, without a key or without the protocol.

        More connections than the run can need are broken off. `broken` hears of each connection that has ended,
        by the number of its file.
        """
        door.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE)
        place = f"inproc://covey.guard.{len(self.monitors)}"
        door.monitor(place, FAILED | PROVED | GONE | CAME)
        monitor = self.context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.rcvhwm = 0  # a full line would hold up the door itself
        monitor.connect(place)
        self.monitors.append(monitor)
        self.doors.append(LockedSocket(door, broken))

    def admit(self, members: Mapping[Address, str]) -> None:
        """Welcome these too, each with its public key."""
        self.members += len(members)

    def answer(self) -> None:
        """Hear who came and went, and break off whoever is too many; never waits."""
        for monitor, door in zip(self.monitors, self.doors, strict=True):
            self._listen(monitor, door)
            broken_off = door.clear(2 * self.members + STRANGERS)
            if broken_off:
                self.left -= broken_off  # they will be reported as gone
                self.refusals.note("a connection: too many have not proved to be of this run", broken_off)

    def impostor(self, frame: zmq.Frame, claimed: Address) -> str:
        """Who has sent this frame in another's name; nobody, where nobody proves a name."""
        return ""

    def _listen(self, monitor: zmq.Socket[bytes], door: LockedSocket) -> None:
        for _ in range(EVENTS):
            if not monitor.poll(0):
                return
            told = parse_monitor_message(monitor.recv_multipart())
            event, number = told["event"], told["value"]
            if event & CAME:
                door.open[number] = None
                continue
            if event & GONE:
                door.open.pop(number, None)
                door.broken(number)
            self.left += 1 if event & GONE else -1
            if event & RUDE or self.left > 0:  # ZeroMQ does not report peers that do not speak ZeroMQ
                self.left = min(self.left, 0)
                self.refusals.note("a connection that did not speak as members of this run do")


class KeyChecker(ConnectionGuard):
    """Answers ZeroMQ's question whether a key is welcome, too."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], key_ring: KeyRing, refusals: Refusals | None = None
    ) -> None:
        self.names = {public: who for who, public in key_ring.public.items()}
        super().__init__(context, len(self.names), refusals)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP)

    @property
    def wakeups(self) -> list[zmq.Socket[bytes]]:
        return [self.socket, *self.monitors]

    def admit(self, members: Mapping[Address, str]) -> None:
        self.names.update({public: who for who, public in members.items()})
        self.members = len(self.names)

    def answer(self) -> None:
        """The questions that wait, or as many as can be had in one go; never waits itself."""
        for _ in range(AT_ONCE):
            if not self.socket.poll(0):
                break
            self._answer()
        super().answer()

    def _answer(self) -> None:
        version, number, _, origin, _, mechanism, *key = self.socket.recv_multipart()
        public = z85.encode(key[0]).decode() if mechanism == b"CURVE" and len(key) == 1 else ""
        welcome = public in self.names
        if not welcome:
            address = origin.decode(errors="replace").removeprefix("::ffff:")  # IPv4, as a socket for both sees it
            self.refusals.note(f"a connection from {address}: its key is not of this run")
        verdict = (b"200", b"", public.encode()) if welcome else (b"400", b"not of this run", b"")
        self.socket.send_multipart([version, number, *verdict, b""])

    def impostor(self, frame: zmq.Frame, claimed: Address) -> str:
        proved = self.who(frame)
        return "" if proved == claimed else str(proved)

    def who(self, frame: zmq.Frame) -> Address | None:
        """Whose key the sender of this frame has proved to hold."""
        return self.names.get(str(frame.get("User-Id")))


def guard_of(
    context: zmq.Context[zmq.Socket[bytes]], key_ring: KeyRing | None, endpoint: str, members: int, refusals: Refusals
) -> ConnectionGuard | None:
    """Who guards a role's door; nobody where it is a file in a private folder."""
    if key_ring:
        return KeyChecker(context, key_ring, refusals)
    return ConnectionGuard(context, members, refusals) if endpoint.startswith("tcp://") else None


def private(endpoint: str) -> None:
    """After `bind`: a local socket is for this user alone, as is the folder it lies in."""
    if endpoint.startswith("ipc://"):
        os.chmod(endpoint.removeprefix("ipc://"), 0o600)


def _expect_a_crowd() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD if hard == resource.RLIM_INFINITY else min(hard, CROWD)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

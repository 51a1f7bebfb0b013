"""Shared memory for several sites of one machine: one process creates it and passes it to the others over a socket.

The socket is of Linux's abstract kind (unix(7)): it reaches only processes of the same kernel and network, so whoever
comes through it is on this machine, and it has no file that could be left behind. Both ends must run as the same
user, and prove that they know the run's secret, which is not sent.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_bytes, token_hex
from struct import Struct
from threading import Thread

from covey.address import Address
from covey.engines.cluster.site_messages import FetchMemory, LayMemory, MemoryShared
from covey.engines.transport import handles
from covey.engines.transport.shared import segment as shared_segment
from covey.errors import WireError

SECRET = 32  # bytes
PATIENCE = 5.0  # seconds that either end waits for the other
GUESTS = 128  # that may knock at once
LONGEST = 64  # bytes that a broker says after its proof

_credentials = Struct("3i")  # process, user, group: what the kernel knows of the other end (SO_PEERCRED)
_count = Struct("<I")


def new_secret() -> bytes:
    return token_bytes(SECRET)


class Broker:
    """Answers one guest after another at a socket of this machine, on a thread, until it is closed."""

    patience = PATIENCE

    def __init__(self, listener: socket.socket, secret: bytes, name: str) -> None:
        self.socket, self.secret = listener, secret
        self.thread = Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def answer(self, line: socket.socket) -> None:
        """Give a guest what it came for."""
        raise NotImplementedError

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self.socket.accept()
            except OSError:  # closed
                return
            with line, suppress(OSError, WireError):  # it left, was a stranger, was too slow, or cannot be served
                line.settimeout(self.patience)
                self.answer(line)

    def close(self) -> None:
        """Guests keep what they have; no other gets anything."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # ends the thread's waiting
        self.thread.join()
        self.socket.close()


class MemoryBroker(Broker):
    """Has made memory for these roles, and hands it to sites that may have it until it is closed."""

    def __init__(self, roles: Sequence[Address], secret: bytes, common: bool) -> None:
        """With `common` there is one more file, for what all roles of the run have in common."""
        self.door, self.handles = f"covey-{token_hex(16)}", list[int]()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.handles += shared_segment.laid(roles)
            self.handles += [shared_segment.new_file()] if common else []
            listener.bind(f"\0{self.door}")
            listener.listen(GUESTS)
        except OSError:
            listener.close()
            handles.close(self.handles)
            raise
        super().__init__(listener, secret, "memory broker")

    def answer(self, line: socket.socket) -> None:
        line.send(admitted(line, self.secret) + _count.pack(len(self.handles)))
        handles.give(line, self.handles)

    def close(self) -> None:
        super().close()
        handles.close(self.handles)
        self.handles = []


def fetch(door: str, secret: bytes) -> list[int]:
    """What the broker behind this socket has created; OSError, with the reason, if it cannot be had."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(PATIENCE)
        line.connect(f"\0{door}")
        told = introduced(line, secret)
        if len(told) != _count.size:
            raise ConnectionError("the broker of the memory does not say how many files there are")
        return handles.take(line, _count.unpack(told)[0])


def admitted(line: socket.socket, secret: bytes) -> bytes:
    """(The broker) What proves to a guest that this end knows the secret, once the guest has proved it."""
    check_user(line)
    asked = token_bytes(SECRET)
    line.send(asked)
    told = line.recv(2 * SECRET)
    theirs, proof = told[:SECRET], told[SECRET:]
    check_proof(proof, secret, b"guest", asked + theirs)
    return proved(secret, b"broker", asked + theirs)


def introduced(line: socket.socket, secret: bytes) -> bytes:
    """(A guest) What the broker says after each has proved to the other that it knows the secret."""
    check_user(line)
    asked, mine = line.recv(SECRET), token_bytes(SECRET)
    line.send(mine + proved(secret, b"guest", asked + mine))
    told = line.recv(SECRET + LONGEST)
    if not told:
        raise ConnectionRefusedError("the broker of the memory has refused it")
    check_proof(told[:SECRET], secret, b"broker", asked + mine)
    return told[SECRET:]


def check_user(line: socket.socket) -> int:
    """The number of the process at the other end, which runs as the same user, as the kernel says."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _credentials.size)
    process, user, _ = _credentials.unpack(data)
    if user != os.geteuid():
        raise PermissionError(f"user {user} is not user {os.geteuid()}")
    return int(process)


def proved(secret: bytes, who: bytes, asked: bytes) -> bytes:
    return hmac.digest(secret, who + asked, "sha256")


def check_proof(proof: bytes, secret: bytes, who: bytes, asked: bytes) -> None:
    """The other end knows the secret; each has chosen half of what it is asked, so an answer is good only once."""
    if len(asked) != 2 * SECRET or not hmac.compare_digest(proof, proved(secret, who, asked)):
        raise PermissionError("the other end does not know the secret of this run")


class SiteMemory:
    """A site's part in the memory of its machine: made by it, or fetched from the site that made it."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.broker: MemoryBroker | None = None
        self.fetched: list[int] = []

    @property
    def handles(self) -> list[int]:
        return self.broker.handles if self.broker else self.fetched

    def obey(self, word: LayMemory | FetchMemory) -> MemoryShared:
        """Do it; what the launcher should know."""
        try:
            if isinstance(word, FetchMemory):
                self.fetched = fetch(word.door, self.secret)
                return MemoryShared()
            self.broker = MemoryBroker(word.roles, self.secret, word.common)
            return MemoryShared(self.broker.door)
        except OSError as error:
            return MemoryShared(why=error.strerror or str(error) or type(error).__name__)

    def passed_on(self) -> SiteMemory:
        """All of it; the caller closes it."""
        other = SiteMemory(self.secret)
        other.broker, other.fetched = self.broker, self.fetched
        self.broker, self.fetched = None, []
        return other

    def close(self) -> None:
        """The roles that were started with it keep it."""
        if self.broker:
            self.broker.close()
        handles.close(self.fetched)
        self.broker, self.fetched = None, []

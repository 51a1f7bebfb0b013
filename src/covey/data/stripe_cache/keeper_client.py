"""A reader's line to the keeper of its host: a socket in the folder of the cache, which only its user can enter."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.data.stripe_cache.keeper import read_stripe
from covey.data.stripe_cache.keeper_messages import KEEPER, READER
from covey.data.stripe_cache.stripe import LARGEST, Stripe
from covey.errors import WireError
from covey.message import Address, Message, MessageStream, stamped, streamed
from covey.program import Compute, Effect, Receive, Send

SOCKET = "keeper.socket"
ME, HERE = Address(READER, 0), Address(KEEPER, 0)  # what both are called on this line
PATIENCE = 60.0  # seconds in which a keeper answers
AGAIN = 5.0  # seconds before another try to reach a keeper that was not there
LEFT_OUT = 600.0  # seconds in which one is not asked that did not answer in time
CHUNK = 1 << 20


class KeeperGone(Exception):
    """There is no keeper on this host, or it does not answer: whoever reads goes on without it."""


class KeeperSilent(KeeperGone):
    """It took a question, and did not answer in time."""


class KeeperClient:
    """Asks the keeper. Every thread has a line of its own, and so has a process that was forked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lines = folder, threading.local()
        self._asked_again = 0.0  # when a keeper that was not there, or was silent, is asked again

    def read(self, stripe: Stripe, first: int, last: int, fetch: Callable[[], bytes]) -> tuple[bytes, bool]:
        """Bytes of a stripe, and whether `fetch` had to read it from its source; KeeperGone if nobody answers."""

        async def fetched() -> bytes:
            data: bytes = await Compute(fetch)
            return data

        if time.monotonic() < self._asked_again:
            self.hang_up()
            raise KeeperGone
        line: KeeperLine | None = getattr(self._lines, "line", None)
        if line is None or line.process != os.getpid():
            line = self._lines.line = self._dial()
        try:
            return line.perform(read_stripe(HERE, stripe, first, last, fetched))
        except BaseException as error:
            if isinstance(error, KeeperSilent):
                self._asked_again = time.monotonic() + LEFT_OUT
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Close this thread's line, if it has one; the next question is asked on a new one."""
        if line := getattr(self._lines, "line", None):
            self._lines.line = None
            line.close()

    def _dial(self) -> KeeperLine:
        try:
            return KeeperLine(self._folder)
        except KeeperGone:
            self._asked_again = time.monotonic() + AGAIN
            raise


class KeeperLine:
    """One connection: performs a reader's program on it."""

    def __init__(self, folder: Path) -> None:
        self.process = os.getpid()
        self._stream = MessageStream(HERE, LARGEST)
        self._came: list[Message] = []
        try:
            self._socket = socket.socket(socket.AF_UNIX)
        except OSError:  # too many open files
            raise KeeperGone from None
        self._socket.settimeout(PATIENCE)
        try:
            with socket_path(folder) as path:
                self._socket.connect(path)
            if user_of(self._socket) != os.geteuid():
                raise KeeperGone
        except OSError:
            self._socket.close()
            raise KeeperGone from None

    def perform(self, program: Coroutine[Effect[Any], Any, tuple[bytes, bool]]) -> tuple[bytes, bool]:
        """Its result; what its work raises passes through it."""
        resume, value = program.send, None
        while True:
            try:
                effect = resume(value)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            try:
                resume, value = program.send, self._do(effect)
            except Exception as error:
                resume, value = program.throw, error

    def close(self) -> None:
        self._socket.close()

    def _do(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Compute):
            return effect.work()
        try:
            if isinstance(effect, Send):
                return self._socket.sendall(streamed(stamped(effect.body, ME, copy=False)))
            assert isinstance(effect, Receive), "a reader sends, receives and fetches"
            return self._receive()
        except TimeoutError:
            raise KeeperSilent from None
        except (OSError, WireError):
            raise KeeperGone from None

    def _receive(self) -> Message:
        while not self._came:
            if not (data := self._socket.recv(CHUNK)):
                raise KeeperGone
            self._came += self._stream.feed(data)
        return self._came.pop(0)


@contextmanager
def socket_path(folder: Path) -> Iterator[str]:
    """The socket's path in a form that is short enough for the kernel, however long the folder's is."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def user_of(line: socket.socket) -> int:
    """The user whose process is at the other end."""
    told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # its process, user and group
    return int.from_bytes(told[4:8], sys.byteorder)

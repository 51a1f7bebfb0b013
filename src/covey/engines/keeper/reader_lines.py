"""The lines on which readers of this host ask its keeper."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path

from covey.data.stripe_cache.keeper_client import CHUNK, HERE, ME, SOCKET, socket_path, user_of
from covey.data.stripe_cache.keeper_messages import READER, TO_KEEPERS, FetchStripe, HungUp, StripeBytes, WantStripe
from covey.data.stripe_cache.stripe import LARGEST
from covey.errors import PlanError, WireError
from covey.message import Address, Message, MessageStream, stamped, streamed

LOCK = "keeper.lock"
MOST = 4096  # readers at once


class ReaderLine:
    """One reader: what it has sent so far, and the answer that it has not received yet.

    It asks for one stripe at a time, and brings only what it was told to fetch, so at most one stripe waits for it, or
    of it.
    """

    def __init__(self, line: socket.socket, who: Address) -> None:
        self.line, self.who = line, who
        self.stream = MessageStream(ME, LARGEST)
        self.unsent: deque[memoryview] = deque()
        self._waits, self._fetches = False, False

    def heard(self, message: Message) -> None:
        """Refuse what a reader may not send now."""
        asks = isinstance(message, WantStripe)
        if asks and (self._waits or self._fetches or self.unsent):
            raise WireError(f"{self.who} asked for a stripe before it had received the last one")
        if not asks and (not self._fetches or not isinstance(message, TO_KEEPERS)):
            raise WireError(f"{self.who} sent a {type(message).__name__}, which nobody had asked it for")
        self._waits, self._fetches = asks, False

    def told(self, message: Message) -> None:
        """Note what the reader is sent."""
        self._fetches = self._fetches or isinstance(message, FetchStripe)
        self._waits = self._waits and not isinstance(message, StripeBytes | FetchStripe)


class ReaderLines:
    """All of them, and the socket on which new ones come; `ready` is a file that becomes readable when one has news."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET
        self._lock = _locked(folder / LOCK)
        self._listening = socket.socket(socket.AF_UNIX)
        self._lines: dict[int, ReaderLine] = {}
        self._readers: dict[Address, ReaderLine] = {}
        self._numbers = count()
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.ready = select.epoll()
        self._listen(folder)

    def _listen(self, folder: Path) -> None:
        with socket_path(folder) as path:
            self._path.unlink(missing_ok=True)  # of a keeper that was killed
            self._listening.bind(path)
        self._listening.setblocking(False)
        self._listening.listen(64)
        self.ready.register(self._listening, select.EPOLLIN)

    def poll(self) -> list[Message]:
        """What readers have said, and who of them is gone, without waiting."""
        news: list[Message] = []
        for number, events in self.ready.poll(0):
            if number == self._listening.fileno():
                self._accept()
            elif line := self._lines.get(number):
                if events & select.EPOLLOUT:
                    self._flush(line)
                if events & ~select.EPOLLOUT:
                    news += self._hear(line)
        return news

    def send(self, to: Address, message: Message) -> None:
        """Hand a reader a message; one that is gone hears nothing."""
        if line := self._readers.get(to):
            line.told(message)
            line.unsent.append(memoryview(streamed(stamped(message, HERE, copy=False))))
            self._flush(line)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        for line in self._lines.values():
            line.line.close()
        self._listening.close()
        self.ready.close()
        os.close(self._lock)
        os.close(self._spare)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            try:
                line, _ = self._listening.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                return self._turn_away()
            if user_of(line) != os.geteuid() or len(self._lines) >= MOST:
                line.close()
                return
            line.setblocking(False)
            reader = ReaderLine(line, Address(READER, next(self._numbers)))
            self._lines[line.fileno()] = self._readers[reader.who] = reader
            self.ready.register(line, select.EPOLLIN)

    def _turn_away(self) -> None:
        """Hang up on a reader for whom there is no file left, in place of a spare one; it goes on without."""
        os.close(self._spare)
        try:
            self._listening.accept()[0].close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _hear(self, line: ReaderLine) -> list[Message]:
        news: list[Message] = []
        try:
            if not (data := line.line.recv(CHUNK)):
                return self._drop(line)
            for message in line.stream.feed(data):
                line.heard(message)
                news.append(stamped(message, line.who, copy=False))
        except BlockingIOError:
            pass
        except (OSError, WireError):
            return [*news, *self._drop(line)]
        return news

    def _flush(self, line: ReaderLine) -> None:
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):  # whose end is heard of as it is read
            while line.unsent:
                sent = line.line.send(line.unsent[0])
                line.unsent[0] = line.unsent[0][sent:]
                if not line.unsent[0]:
                    line.unsent.popleft()
        more = select.EPOLLOUT if line.unsent else 0
        self.ready.modify(line.line, select.EPOLLIN | more)

    def _drop(self, line: ReaderLine) -> list[Message]:
        self.ready.unregister(line.line)
        del self._lines[line.line.fileno()], self._readers[line.who]
        line.line.close()
        return [HungUp(sender=line.who)]


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise PlanError(f"{path.parent} has a keeper already, which all jobs of this host use") from None
    return handle

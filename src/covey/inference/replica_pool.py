"""The processes of replicas: started, linked to the front, and replaced when they are lost."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from covey.engines.process.forking.die_with_parent import leashed
from covey.errors import CoveyError, RoleFailed, WireError
from covey.inference.messages import EndReplica, ReplicaLost, ReplicaReady
from covey.inference.replica_link import MessageStream, encode
from covey.inference.replica_process import ReplicaConfig
from covey.message import Address, Message

PAUSE = 0.5  # seconds before a lost replica is replaced
TRIES = 3  # starts of a replica, one after the other, that may fail


class ReplicaPool:
    """A few replicas, each a process that ends with this one.

    Args:
        configs: What each must know.
    """

    def __init__(self, configs: list[ReplicaConfig]) -> None:
        self._configs = {Address("replica", config.rank): config for config in configs}
        self.deliver: Callable[[Message], None] = lambda message: None  # takes what they send
        self._links: dict[Address, _ReplicaConnection] = {}
        self._failures = dict.fromkeys(self._configs, 0)
        self._starts: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed: asyncio.Future[CoveyError] = asyncio.get_running_loop().create_future()
        self.present: set[Address] = set()
        self.lost = 0
        self._open = True

    async def start(self) -> None:
        """Return when all are ready; RoleFailed if one cannot be."""
        for who in self._configs:
            self._begin(who)
        both: list[asyncio.Future[Any]] = [self._ready, self.failed]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            raise self.failed.result()

    def send(self, to: Address, message: Message) -> None:
        """Pass a message on; to one that has just been lost, nothing: the front will hear of its loss."""
        if link := self._links.get(to):
            if isinstance(message, EndReplica):
                link.end()
            else:
                link.transport.write(encode(message))

    def close(self) -> None:
        """End all processes."""
        self._open = False
        for start in self._starts:
            start.cancel()
        for link in list(self._links.values()):
            link.end()

    def _begin(self, who: Address, after: float = 0.0) -> None:
        task = asyncio.get_running_loop().create_task(self._start(who, after))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start(self, who: Address, after: float) -> None:
        await asyncio.sleep(after)
        mine, theirs = socket.socketpair()
        words = leashed([sys.executable, "-m", "covey.inference.replica_process", str(theirs.fileno())], signal.SIGKILL)
        with theirs:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], start_new_session=True)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._configs[who]) + b"\n")
        process.stdin.close()
        connection = _ReplicaConnection(who, process, self._heard, self._lost)
        self._links[who] = connection
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=mine)

    def _heard(self, message: Message) -> None:
        if isinstance(message, ReplicaReady):
            self._failures[message.sender] = 0
            self.present.add(message.sender)
            if len(self.present) == len(self._configs) and not self._ready.done():
                self._ready.set_result(None)
        self.deliver(message)

    def _lost(self, who: Address) -> None:
        self._links.pop(who).end()
        if not self._open:
            return
        self.lost += who in self.present
        self.present.discard(who)
        self.deliver(ReplicaLost(sender=who))
        self._failures[who] += 1
        if self._failures[who] < TRIES:
            self._begin(who, PAUSE)
        elif not self.present and not self.failed.done():
            self.failed.set_result(RoleFailed(f"{who} ended {TRIES} times before it was ready, for the reason above"))


class _ReplicaConnection(asyncio.Protocol):
    """The link to one process."""

    transport: asyncio.WriteTransport

    def __init__(
        self, who: Address, process: subprocess.Popen[bytes], heard: Callable[[Message], None],
        lost: Callable[[Address], None],
    ) -> None:  # fmt: skip
        self.who, self.process = who, process
        self._heard, self._gone = heard, lost
        self._stream = MessageStream(who)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._stream.feed(data):
                self._heard(message)
        except WireError as error:
            print(f"{self.who} is replaced: {error}", file=sys.stderr)
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone(self.who)

    def end(self) -> None:
        """End the process, if it has not ended yet."""
        self.process.kill()
        self.process.wait()
        if hasattr(self, "transport"):
            self.transport.abort()

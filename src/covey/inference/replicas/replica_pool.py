"""The replicas of a service: started, linked to the front, replaced when they are lost, and ended."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from covey.errors import CoveyError, RoleFailed, WireError
from covey.inference.endpoint_log import log
from covey.inference.messages import EndReplica, ReplicaLost, ReplicaReady, RetireReplica, StartReplica
from covey.message import Address, Message, MessageStream, streamed

PAUSE = 0.5  # seconds before a replica is started again that was lost before it was ready
LONG = 30.0  # seconds after which the log has a line about a replica that is not ready yet
TRIES = 3  # starts of a replica, one after the other, that may fail


class ReplicaStarter(Protocol):
    """Starts and ends the processes of replicas."""

    def start(self, rank: int) -> socket.socket:
        """Start a replica; the front's end of its link, which hangs up when the replica has ended."""
        ...

    def end(self, rank: int) -> None:
        """Kill a replica, if there is one."""
        ...

    def begin(self) -> None:
        """The first replicas are ready."""
        ...

    def close(self, gently: bool = False) -> None:
        """End all of them."""
        ...


class ReplicaPool:
    """Replicas, each a process that ends with this one.

    Args:
        forks: Start and end processes, one for each version of the model; ranks of replicas say whose they are.
    """

    def __init__(self, forks: Sequence[ReplicaStarter]) -> None:
        self._forks = forks
        self.deliver: Callable[[Message], None] = lambda message: None  # takes what they send
        self._links: dict[Address, _ReplicaConnection] = {}
        self._failures: dict[Address, int] = {}  # starts that have failed, one after the other, of each that is wanted
        self._starts: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed: asyncio.Future[CoveyError] = asyncio.get_running_loop().create_future()
        self.present: set[Address] = set()
        self._gone: dict[Address, float] = {}  # when those were lost that are not back yet
        self.lost = 0
        self._told = False  # that one takes long; said again only after some replica was ready
        self._open = True

    async def ready(self) -> None:
        """Return when all that are wanted are ready; RoleFailed if one cannot be."""
        both: list[asyncio.Future[Any]] = [self._ready, self.failed]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            raise self.failed.result()

    def send(self, to: Address, message: Message) -> None:
        """Pass a message on; to one that has just been lost, nothing: the front will hear of its loss."""
        if isinstance(message, StartReplica):
            return self.start(message.rank)
        if isinstance(message, RetireReplica):
            self._failures.pop(to, None)
            self._gone.pop(to, None)
        if link := self._links.get(to):
            if isinstance(message, EndReplica | RetireReplica):
                self._end(link)
            else:
                link.send(message)
        return None

    def start(self, rank: int) -> None:
        """Another replica is wanted, and another one in its place whenever it is lost."""
        who = Address("replica", rank)
        self._failures[who] = 0
        self._begin(who)

    def close(self) -> None:
        """End all processes."""
        self._open = False
        for start in self._starts:
            start.cancel()
        for forks in self._forks:
            forks.close(gently=bool(self.present))
        for link in list(self._links.values()):
            link.hang_up()

    def _begin(self, who: Address, after: float = 0.0) -> None:
        task = asyncio.get_running_loop().create_task(self._start(who, after))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start(self, who: Address, after: float) -> None:
        await asyncio.sleep(after)
        told = False
        while who in self._failures:
            try:
                link = self._forks[who.rank % len(self._forks)].start(who.rank)
                break
            except OSError as error:  # such as too many open files, while clients have them
                if not told:
                    log(f"{who} cannot be started now, and is tried again every {PAUSE} s: {error.strerror or error}")
                told = True
                await asyncio.sleep(PAUSE)
        else:
            return  # it was retired
        self._links[who] = connection = _ReplicaConnection(who, self._heard, self._lost)
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=link)
        asyncio.get_running_loop().call_later(LONG, self._takes_long, who, connection)

    def _takes_long(self, who: Address, link: _ReplicaConnection) -> None:
        """Until the first replicas are ready nobody can ask yet, and the model may be large."""
        late = self._links.get(who) is link and who not in self.present
        if late and self._open and self._ready.done() and not self._told:
            self._told = True
            log(
                f"{who} is not ready {LONG:g} s after its start; {len(self.present)} others are ready. "
                "The process that starts replicas may be stopped, or the machine too busy"
            )

    def _end(self, link: _ReplicaConnection) -> None:
        self._forks[link.who.rank % len(self._forks)].end(link.who.rank)
        link.hang_up()

    def _heard(self, message: Message) -> None:
        if isinstance(message, ReplicaReady):
            self._failures[message.sender], self._told = 0, False
            if (since := self._gone.pop(message.sender, None)) is not None:
                log(f"{message.sender} is back after {time.monotonic() - since:.2f} s")
            self.present.add(message.sender)
            if len(self.present) == len(self._failures) and not self._ready.done():
                self._ready.set_result(None)
        self.deliver(message)

    def _lost(self, who: Address) -> None:
        self._end(self._links.pop(who))
        if not self._open:
            return
        ready = who in self.present
        self.present.discard(who)
        self.deliver(ReplicaLost(sender=who))
        if who not in self._failures:
            return  # it was retired
        if ready:
            self.lost += 1
            self._gone[who] = time.monotonic()
            log(f"{who} was lost, and is replaced; {len(self.present)} others are ready, {self.lost} were lost so far")
        self._failures[who] += 1
        if self._failures[who] < TRIES:
            self._begin(who, 0.0 if ready else PAUSE)
        elif not self.present and not self.failed.done():
            self.failed.set_result(RoleFailed(f"{who} ended {TRIES} times before it was ready, for the reason above"))


class _ReplicaConnection(asyncio.Protocol):
    """The link to one process."""

    def __init__(self, who: Address, heard: Callable[[Message], None], lost: Callable[[Address], None]) -> None:
        self.who = who
        self._heard, self._gone = heard, lost
        self._stream = MessageStream(who)
        self._transport: asyncio.WriteTransport | None = None

    def send(self, message: Message) -> None:
        assert self._transport is not None, f"{self.who} was not linked yet"
        self._transport.write(streamed(message))

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._stream.feed(data):
                self._heard(message)
        except WireError as error:
            log(f"{self.who} is replaced: {error}")
            self.hang_up()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone(self.who)

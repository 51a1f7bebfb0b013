"""A site: covey's process on a host of the cluster, which bears the roles placed there and tells how each ends.

Whatever starts it hands it a letter. It leaves when the launcher says so, or when the launcher is gone, and takes its
roles with it; when it dies itself, they die too (see the nursery).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from covey.engines.cluster import here, shipping
from covey.engines.cluster.keeper import Share
from covey.engines.cluster.words import (
    Arrived,
    Bear,
    Beat,
    Downward,
    Failed,
    Gone,
    Leave,
    Letter,
    Upward,
    downward,
    letters,
)
from covey.engines.process.brood import Brood, Start
from covey.engines.process.lines import MOST_DOWN
from covey.engines.process.liveness import STATES, Silence
from covey.engines.process.nursery import Job
from covey.engines.transport.keys import LAUNCHER, Ring
from covey.engines.transport.token import seal, unseal
from covey.errors import CoveyError, PeerLost
from covey.message import Address

BEAT = 0.5  # seconds between signs of life
COMING = 3  # times the silence that is allowed: to reach the launcher for the first time
GONE = 5.0  # seconds without a connection, after which the launcher is taken for dead
REFUSED = 2.0  # the same where its machine says that nobody hears there any more
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Roles(Protocol):
    """The roles of a site, before and while they live."""

    directory: Path

    @property
    def alive(self) -> set[Address]: ...

    @property
    def bells(self) -> Sequence[int]:
        """Readable when one of them may have ended."""
        ...

    def bear(self, job: Job, memory: Sequence[int] = ()) -> None: ...
    def exits(self) -> list[tuple[Address, str]]: ...
    def sign(self, who: Address) -> object: ...
    def state(self, who: Address) -> str: ...
    def abandon(self) -> None: ...


def host(letter: Letter, handed: bytes = b"", start: Start | None = None) -> bool:
    """Be a site until the run is over, and tell whether all went well; `handed` is a task of the launcher's memory."""
    with Brood(letter.warm, letter.threads, start, letter.stall) as brood:
        return host_in(brood, letter, handed).well


def host_in(brood: Roles, letter: Letter, handed: bytes = b"") -> Leave:
    """Be a site whose roles are borne like this, and tell how the run ended."""
    with Line(letter) as line:
        try:
            letter, handed = shipping.settled(letter, handed, brood.directory / "task")
            address = here.address_towards(letter.launcher, letter.interface)
            cores = len(os.sched_getaffinity(0))
            versions = here.versions(letter.task)
            line.tell(Arrived(socket.gethostname(), address, cores, versions, here.machine()))
            with closing(Share(letter.secret)) as share:
                return _stay(line, brood, share, handed)
        except CoveyError as error:
            line.tell(Failed(str(error), isinstance(error, PeerLost)))
            raise


def _stay(line: Line, brood: Roles, share: Share, handed: bytes) -> Leave:
    poller = zmq.Poller()
    poller.register(line.socket, zmq.POLLIN)
    for bell in brood.bells:
        poller.register(bell, zmq.POLLIN)
    pulse = Pulse(brood)
    while True:
        poller.poll(round(min(BEAT, line.silence.every) * 1000))
        line.watch()
        if line.due:
            line.tell(pulse.beat())
        for who, how in brood.exits():
            line.tell(Gone(who, how))
        for word in line.heard():
            if isinstance(word, Leave):
                if not word.well:
                    brood.abandon()
                return word
            if isinstance(word, Bear):
                job = Job(
                    entry=word.entry, roles=word.roles, work=word.work, alone=word.alone, sharing=word.sharing,
                    handed=handed,
                )  # fmt: skip
                Thread(target=_bear, args=(brood, job, share.passed_on()), daemon=True).start()
            else:
                line.tell(share.obey(word))


def _bear(brood: Roles, job: Job, share: Share) -> None:
    """(Beside the signs of life) A nursery that still imports torch, or a large task, can take longer than they may."""
    with closing(share), suppress(PeerLost, OSError):  # `exits` tells of a dead nursery
        brood.bear(job, share.handles if job.sharing else ())


class Pulse:
    """What the launcher must know of the roles of a site: which of them use the CPU, and which are stopped."""

    def __init__(self, brood: Roles) -> None:
        self.brood = brood
        self.signs: dict[Address, object] = {}

    def beat(self) -> Beat:
        roles = sorted(self.brood.alive)
        before, self.signs = self.signs, {who: self.brood.sign(who) for who in roles}
        states = [(who, self.brood.state(who)) for who in roles]
        return Beat(
            busy=[who for who in roles if before.get(who) != self.signs[who]],
            stopped=[(who, how) for who, how in states if how in STATES],
        )


class Line:
    """A site's end of the line to its launcher, which notices when the other end is gone."""

    def __init__(self, letter: Letter) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.token = letter.token
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_DOWN)
        self.socket.setsockopt(zmq.IDENTITY, f"site/{letter.site}".encode())
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.silence: Silence[str] = Silence(letter.stall)
        # a host that vanished, or a launcher that was stopped, sends no farewell
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, round(min(2.0, self.silence.stall / 4) * 1000))
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(self.silence.stall * 1000))
        self.socket.ipv6 = True
        if letter.pair:
            Ring(letter.pair, {LAUNCHER: letter.key}).open(self.socket, LAUNCHER)
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        self.launcher, self.met, self.refused = letter.launcher, False, False
        self.alone: float | None = 0.0  # since when there is no connection, by the clock of that silence
        self.told = 0.0
        self.socket.connect(letter.launcher)

    def __enter__(self) -> Line:
        return self

    def tell(self, word: Upward) -> None:
        self.told = time.monotonic()
        self.socket.send(seal(self.token, word))

    def heard(self) -> list[Downward]:
        found = []
        while self.socket.poll(0):
            found.append(unseal(self.token, self.socket.recv(), downward))
        return found

    @property
    def due(self) -> bool:
        """Whether the launcher should have a sign of life."""
        return time.monotonic() - self.told >= BEAT

    def watch(self) -> None:
        """Look whether the launcher still gives any."""
        self.silence.tick()
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())
            came = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.met = self.met or came
            self.refused = event["event"] == zmq.EVENT_CLOSED
            if came or self.alone is None:
                self.alone = None if came else self.silence.awake
        patience = REFUSED if self.refused else GONE if self.met else COMING * self.silence.stall
        if self.alone is not None and self.silence.awake - self.alone > patience:
            raise PeerLost(
                f"the launcher at {self.launcher} is gone" if self.met else f"no launcher answers at {self.launcher}"
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(1000 if not isinstance(error, PeerLost) else 0)
        self.context.term()


def main() -> None:
    """A site of its own process: the letter comes on its standard input, then what was handed over."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    letter = letters.read(sys.stdin.buffer.read(size), "the launcher")
    handed = sys.stdin.buffer.read()
    with suppress(KeyboardInterrupt):
        host(letter, handed)


def posted(letter: Letter, handed: bytes) -> bytes:
    """What `main` reads."""
    data = msgspec.msgpack.encode(letter)
    return len(data).to_bytes(8, "big") + data + handed


if __name__ == "__main__":
    main()

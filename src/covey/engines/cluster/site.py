"""A site: the covey process on a host of the cluster, which starts the roles placed there and reports their ends.

Whatever starts it hands it its config. It leaves when the launcher says so, or when the launcher is gone, and takes its
roles with it; when it dies itself, they die too (see the fork server).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from covey.address import Address
from covey.engines.cluster import fork_broker, shipping, this_host
from covey.engines.cluster.losses.reachability import reached
from covey.engines.cluster.memory_broker import SiteMemory
from covey.engines.cluster.site_messages import (
    Arrived,
    Downward,
    Heartbeat,
    LeaveRun,
    ProcessGone,
    ReachSites,
    RenewRole,
    SignalRole,
    SiteConfig,
    SiteFailed,
    SitesReached,
    StartRoles,
    Upward,
    configs,
    downward,
)
from covey.engines.process.forking.fork_server import RoleJob
from covey.engines.process.forking.role_processes import RoleProcesses, Start
from covey.engines.process.liveness import STATES, Silence
from covey.engines.transport.keys import LAUNCHER, KeyRing
from covey.engines.transport.token import seal, unseal
from covey.errors import CoveyError, PeerLost

MOST_DOWN = 16 << 20  # bytes of a word of the launcher; ZeroMQ refuses more before it takes memory
BEAT = 0.5  # seconds between signs of life
COMING = 3  # times the silence that is allowed: to reach the launcher for the first time
GONE = 5.0  # seconds without a connection, after which the launcher is taken for dead
REACH = 1.0  # seconds in which another host must answer
REFUSED = 2.0  # the same where its machine refuses connections
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Roles(Protocol):
    """The roles of a site, before and while they live."""

    directory: Path

    @property
    def alive(self) -> set[Address]: ...

    @property
    def wakeups(self) -> Sequence[int]:
        """Readable when one of them may have ended."""
        ...

    def start_roles(self, job: RoleJob, memory: Sequence[int] = ()) -> None: ...
    def renew(self, who: Address, work: bytes) -> None: ...
    def signal_role(self, who: Address, number: int) -> None: ...
    def exits(self) -> list[tuple[Address, str]]: ...
    def sign(self, who: Address) -> object: ...
    def state(self, who: Address) -> str: ...
    def abandon(self) -> None: ...


def host(config: SiteConfig, handed: bytes = b"", start: Start | None = None) -> bool:
    """Be a site until the run is over; whether all went well. `handed` is a task of the launcher's memory."""
    start = start or partial(fork_broker.forked, config.secret, config.threads, apart=config.apart)
    with RoleProcesses(config.warm, start=start, stall=config.stall) as processes:
        return host_in(processes, config, handed).well


def host_in(processes: Roles, config: SiteConfig, handed: bytes = b"") -> LeaveRun:
    """Be a site with these processes for its roles; how the run ended."""
    with SiteLine(config) as line:
        try:
            config, handed = shipping.settled(config, handed, processes.directory / "task")
            address = this_host.address_towards(config.launcher, config.interface)
            cores = len(os.sched_getaffinity(0))
            versions = this_host.versions(config.task)
            line.tell(Arrived(socket.gethostname(), address, cores, versions, this_host.machine()))
            with closing(SiteMemory(config.secret)) as share:
                return _stay(line, processes, share, handed)
        except CoveyError as error:
            line.tell(SiteFailed(str(error), isinstance(error, PeerLost)))
            raise


def _stay(line: SiteLine, processes: Roles, share: SiteMemory, handed: bytes) -> LeaveRun:
    poller = zmq.Poller()
    poller.register(line.socket, zmq.POLLIN)
    for wakeup in processes.wakeups:
        poller.register(wakeup, zmq.POLLIN)
    pulse, starts = RoleSigns(processes), RoleStarts()
    while True:
        poller.poll(round(min(BEAT, line.silence.every) * 1000))
        line.watch()
        if line.due:
            line.tell(pulse.beat())
        for who, how in processes.exits():
            line.tell(ProcessGone(who, how))
        for word in line.heard():
            if isinstance(word, LeaveRun):
                if not word.well:
                    processes.abandon()
                return word
            if isinstance(word, StartRoles | RenewRole | SignalRole):
                starts.put(_start_of(word, processes, share, handed))
            elif isinstance(word, ReachSites):
                line.tell(SitesReached(reached(word.addresses, min(REACH, line.silence.stall / 4))))
            else:
                line.tell(share.obey(word))


class RoleStarts:
    """Starts roles in order, beside the signs of life.

    A fork server that still imports torch, or a large task, can take longer than those may be silent.
    """

    def __init__(self) -> None:
        self.orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.thread: Thread | None = None

    def put(self, start: Callable[[], None]) -> None:
        self.orders.put(start)
        if self.thread is None:
            self.thread = Thread(target=self._obey, daemon=True)
            self.thread.start()

    def _obey(self) -> None:
        while True:
            with suppress(PeerLost, OSError):  # `exits` reports a dead fork server
                self.orders.get()()


def _start_of(
    word: StartRoles | RenewRole | SignalRole, processes: Roles, share: SiteMemory, handed: bytes
) -> Callable[[], None]:  # fmt: skip
    """What starts these roles, or this one again; or sends it a signal, when it has started."""
    if isinstance(word, SignalRole):
        return partial(processes.signal_role, word.who, word.number)
    if isinstance(word, RenewRole):
        return partial(processes.renew, word.who, word.work)
    job = RoleJob(
        entry=word.entry, roles=word.roles, work=word.work, alone=word.alone, sharing=word.sharing, handed=handed
    )
    return partial(_start_roles, processes, job, share.passed_on())


def _start_roles(processes: Roles, job: RoleJob, share: SiteMemory) -> None:
    with closing(share):
        processes.start_roles(job, share.handles if job.sharing else ())


class RoleSigns:
    """What the launcher must know of the roles of a site: which of them use the CPU, and which are stopped."""

    def __init__(self, processes: Roles) -> None:
        self.processes = processes
        self.signs: dict[Address, object] = {}

    def beat(self) -> Heartbeat:
        roles = sorted(self.processes.alive)
        before, self.signs = self.signs, {who: self.processes.sign(who) for who in roles}
        states = [(who, self.processes.state(who)) for who in roles]
        return Heartbeat(
            busy=[who for who in roles if before.get(who) != self.signs[who]],
            stopped=[(who, how) for who, how in states if how in STATES],
        )


class SiteLine:
    """A site's end of the line to its launcher, which notices when the other end is gone."""

    def __init__(self, config: SiteConfig) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.token = config.token
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_DOWN)
        self.socket.setsockopt(zmq.IDENTITY, config.identity)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.silence: Silence[str] = Silence(config.stall)
        # a host that vanished, or a launcher that was stopped, does not close the connection
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, round(min(2.0, self.silence.stall / 4) * 1000))
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(self.silence.stall * 1000))
        self.socket.ipv6 = True
        if config.pair:
            KeyRing(config.pair, {LAUNCHER: config.key}).open(self.socket, LAUNCHER)
        self.monitor = self.socket.get_monitor_socket(EVENTS)
        self.launcher, self.met, self.refused = config.launcher, False, False
        self.alone: float | None = 0.0  # since when there is no connection, by the clock of that silence
        self.told = 0.0
        self.socket.connect(config.launcher)

    def __enter__(self) -> SiteLine:
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


def main(start: Start | None = None) -> None:
    """A site of its own process: the config comes on its standard input, then what was handed over."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    config = configs.read(sys.stdin.buffer.read(size), "the launcher")
    handed = sys.stdin.buffer.read()
    with suppress(KeyboardInterrupt):
        host(config, handed, start)


if __name__ == "__main__":
    main()

"""The roles of a rank: the worker runs in this process, with the user's loop; the others are child processes.

A process that has run the user's code is never forked: servers are forked from a fork server that has run nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from types import TracebackType

import msgspec

from covey.engines.cluster import fork_broker
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.process import liveness
from covey.engines.process.forking.fork_server import RoleJob, create_shared_memory
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.errors import PlanError
from covey.message import Address

WELL = "exited with code 0"


class RankRoles:
    """The roles of a site in a rank's process: `jobs` has the work of the role that runs here."""

    directory = Path(os.devnull)  # nothing is shipped here: every rank has run the script

    def __init__(self, config: SiteConfig, me: Address) -> None:
        self.me = me
        self.jobs: SimpleQueue[RoleJob] = SimpleQueue()
        others = any(name != str(me) for name in config.roles)
        start = partial(fork_broker.forked, config.secret, config.threads)
        self.others = RoleProcesses(config.warm, start=start, stall=config.stall) if others else None
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.playing = False
        self.how = ""  # the role of this process has ended
        self._ending = Lock()  # two threads know of the bell

    def __enter__(self) -> RankRoles:
        return self

    @property
    def wakeups(self) -> tuple[int, ...]:
        return (self.wakeup, *(self.others.wakeups if self.others else ()))

    def abandon(self) -> None:
        if self.others:
            self.others.abandon()

    def start_roles(self, job: RoleJob, memory: Sequence[int] = ()) -> None:
        """Start the other roles, and give the user's thread the work of its own."""
        beside = [who for who in job.roles if who != self.me]
        self.playing = True
        if beside:
            assert self.others is not None, "the config had said who comes"
            self.others.start_roles(msgspec.structs.replace(job, roles=beside), memory)
        if job.sharing:
            create_shared_memory(job, [os.dup(handle) for handle in memory])
        self.jobs.put(job)

    def renew(self, who: Address, work: bytes) -> None:
        """Refuse: the process of a rank belongs to the user's loop, and is started by another program."""
        raise PlanError(f"{who} cannot be started again: its process is a rank, which another program starts")

    def signal_role(self, who: Address, number: int) -> None:
        """Refuse: faults are for engines whose processes can be started again."""
        raise PlanError(f"{who} is the process of a rank, and gets no signals")

    def leave(self, how: str = WELL) -> None:
        """(The user's thread) The role of this process has ended."""
        with self._ending:
            if not self.how:
                self.how = how
                if self.wakeup >= 0:
                    os.eventfd_write(self.wakeup, 1)

    @property
    def alive(self) -> set[Address]:
        return ({self.me} if self.playing else set()) | (self.others.alive if self.others else set())

    def sign(self, who: Address) -> object:
        return self.others.sign(who) if self.others and who != self.me else liveness.sign(os.getpid())

    def state(self, who: Address) -> str:
        return self.others.state(who) if self.others and who != self.me else liveness.state(os.getpid())

    def exits(self) -> list[tuple[Address, str]]:
        gone = self.others.exits() if self.others else []
        if self.how and self.playing:
            self.playing = False
            os.eventfd_read(self.wakeup)
            gone.append((self.me, self.how))
        return gone

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.others:
            self.others.__exit__(kind, error, tb)
        with self._ending:
            os.close(self.wakeup)
            self.wakeup = -1

"""Processes on this machine: a private directory of sockets, roles forked from a warm parent, nothing left behind."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec
import zmq

from covey.engines.interrupt import JoinRequests, asked_to_join, suspendable
from covey.engines.process.contacts import Contacts
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.forking.fork_server import RoleJob
from covey.engines.process.forking.fork_server_client import forked_by_server
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.engines.process.liveness import STALL
from covey.engines.process.role.notice import NOTICE
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.signal_faults import SignalFaults
from covey.engines.transport.token import new_token
from covey.message import Address
from covey.strategy import Role


class LocalProcesses:
    """All roles of a run, on this machine."""

    patience = math.inf  # seconds that others may wait until a lost role can be started again

    def __init__(
        self, warm: str, threads: int = 1, stall: float = STALL, faults: SignalFaults | None = None,
        joins: JoinRequests | None = None, frozen: float = math.inf,
    ) -> None:  # fmt: skip
        """`frozen` is for how many seconds this process may do nothing before its roles end, where `stall` is more."""
        self.faults, self.joins = faults, joins
        self.processes = RoleProcesses(warm, start=partial(forked_by_server, threads, frozen=frozen), stall=stall)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.wakeups = (self.processes.line.fileno(),)
        self.paused = 0.0
        self.contacts: Contacts
        self.pack: Callable[[Contacts], bytes]
        self.stack = ExitStack()
        self.stack.callback(lambda: self.context.destroy(linger=0))
        self.stack.push(self.processes.__exit__)

    def __enter__(self) -> LocalProcesses:
        self.stack.enter_context(suspendable(self._suspend))
        if self.joins:
            self.stack.enter_context(asked_to_join(self.joins))
        return self

    @property
    def directory(self) -> Path:
        return self.processes.directory

    @property
    def pids(self) -> list[int]:
        return list(self.processes.pids.values())

    @property
    def alive(self) -> set[Address]:
        return self.processes.alive

    def start(
        self, roles: Sequence[Role], entry: str, pack: Callable[[Contacts], bytes], handed: bytes = b""
    ) -> Switchboard:
        """Start the roles; each calls `entry` with what `pack` makes of the contacts, and its own address."""
        everybody = [*(role.address for role in roles), SCORER]
        book = {str(who): f"ipc://{self.directory}/{who.role}-{who.rank}" for who in everybody}
        contacts = Contacts(book=book, launcher=f"ipc://{self.directory}/launcher", token=new_token())
        board = Switchboard(self.context, contacts.launcher, everybody, token=contacts.token)
        self.processes.start_roles(RoleJob(entry=entry, roles=everybody, work=pack(contacts), handed=handed))
        self.contacts, self.pack = contacts, pack
        return board

    def renew(self, who: Address, incarnations: Mapping[Address, int]) -> str:
        """Start a lost role again, in the newest of these incarnations; its endpoint, where no earlier one is heard."""
        endpoint = f"ipc://{self.directory}/{who.role}-{who.rank}.{incarnations[who]}"
        book = {**self.contacts.book, str(who): endpoint}
        known = {str(address): incarnation for address, incarnation in incarnations.items()}
        self.contacts = msgspec.structs.replace(self.contacts, book=book, incarnations=known)
        self.processes.renew(who, self.pack(self.contacts))
        return endpoint

    def renewable(self, who: Address) -> bool:
        """Whether a lost role can be started again: on this machine, always."""
        return True

    def joining(self, empty: Sequence[Address]) -> list[Address]:
        """Which of the empty seats are to be taken now: by the plan of faults, or because a person asked."""
        planned = self.faults.joining(empty) if self.faults else []
        others = [who for who in empty if who not in planned]
        return [*planned, *others[: self.joins.taken(len(others))]] if self.joins else planned

    def release(self, who: Address) -> None:
        """Let a worker go when its batch is through."""
        with suppress(ProcessLookupError):
            os.kill(self.processes.pids[who], NOTICE)

    def exits(self) -> list[tuple[Address, str]]:
        if not self.faults:
            return self.processes.exits()
        self.faults.strike({who: pid for who, pid in self.processes.pids.items() if who in self.alive})
        return [(who, self.faults.told(who, how)) for who, how in self.processes.exits()]

    def sign(self, who: Address) -> object:
        return self.processes.sign(who)

    def state(self, who: Address) -> str:
        return self.processes.state(who)

    def begin(self) -> None:
        if self.faults:
            self.faults.begin()

    def _suspend(self, number: signal.Signals) -> None:
        self.processes.signal(number)
        self.paused += time.monotonic() if number == signal.SIGCONT else -time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stack.__exit__(kind, error, tb)

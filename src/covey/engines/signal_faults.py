"""Faults of a run on real processes: roles are killed and stopped by signals, and machines depart, at their time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from covey.engines.process.forking.role_processes import OUT_OF_MEMORY
from covey.engines.process.role.notice import NOTICE
from covey.errors import PlanError
from covey.message import Address
from covey.simulate.faults import OF_SEATS, Fault, FaultPlan
from covey.simulate.units import AT_ONCE, Seconds

BY_SIGNALS = ("kill", "stop", "leave", "join", "notice")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM, "notice": NOTICE}
KILLED = signal.SIGKILL.name

Send = Callable[[Address, signal.Signals, Fault | None], None]
"""Sends the process of a role a signal, because of this fault; None: because a stop is over."""


class SignalFaults:
    """A plan of faults at work, through all attempts at a run: each strikes once, so long after training began."""

    def __init__(self, plan: FaultPlan, roles: Sequence[Address], ranged: bool = False) -> None:
        names = [str(role) for role in roles]
        plan.check(names, names)
        for fault in plan.faults:
            if fault.kind not in BY_SIGNALS or (fault.kind == "notice" and not ranged):
                possible = BY_SIGNALS if ranged else BY_SIGNALS[:-1]
                raise PlanError(
                    f"'{fault}': on real processes only {', '.join(possible)} are possible, by signals; links, "
                    "disks and speeds are real ones: use covey simulate for the others"
                )
            if fault.kind == "kill" and fault.lasts:
                raise PlanError(f"'{fault}': a real process takes its time to start: omit 'for', or use covey simulate")
            if fault.at is None:
                raise PlanError(f"'{fault}': effects are counted only in virtual time; give a time, such as @5s")
        if absent := plan.absent:
            raise PlanError(
                f"'{plan}': on real processes a run begins with a worker in every seat, and {absent[0]} would join "
                "before it leaves: let it leave first, or use covey simulate"
            )
        self._waiting: list[tuple[float, Fault]] = [(fault.at, fault) for fault in plan.faults if fault.at is not None]
        self._stopped: list[tuple[float, Address, int]] = []  # (until when, role, its process)
        self._killed: dict[Address, Fault] = {}  # whose end has not been heard of yet
        self._leaving: set[str] = set()  # whose seats will be empty in a moment
        self._vain: list[str] = []  # what did nothing
        self._since: float | None = None
        self.departing = {fault.who[0] for fault in plan.faults if fault.optional and fault.kind != "join"}

    def begin(self) -> None:
        """Training begins, or begins again: the clock starts with the first time."""
        self._since = time.monotonic() if self._since is None else self._since

    def strike(self, living: Mapping[Address, int], send: Send | None = None) -> None:
        """Do what is due, to the processes that live: each has a number that no other process of its role has."""
        if self._since is None:
            return
        send = send or (lambda who, number, fault: _send(living[who], number))
        now = time.monotonic() - self._since
        for until, role, process in [one for one in self._stopped if one[0] <= now]:
            self._stopped.remove((until, role, process))
            if living.get(role) == process:
                send(role, signal.SIGCONT, None)
        for at, fault in [one for one in self._waiting if one[0] <= now and one[1].kind != "join"]:
            who = next((one for one in living if str(one) == fault.who[0]), None)
            if who is None:
                continue  # it has ended, or starts again and is struck when it is there
            self._waiting.remove((at, fault))
            send(who, SIGNALS[fault.kind], fault)
            if fault.kind in ("leave", "notice"):
                self._leaving.add(str(who))
            if fault.kind == "notice":  # it goes by itself before that
                until = Seconds(at + fault.lasts)
                end = replace(fault, kind="leave", at=until, lasts=AT_ONCE, optional=True)
                self._waiting.append((until, end))
            if fault.kind == "kill":
                self._killed[who] = fault
            if fault.kind == "stop":
                self._stopped.append((now + fault.lasts, who, living[who]))

    def joining(
        self, empty: Sequence[Address], departs: Callable[[Address], object] = lambda who: None
    ) -> list[Address]:  # fmt: skip
        """Which of these seats somebody is to take now; who is to join where somebody is, does not.

        `departs` is told of the machines that depart after their workers have left.
        """
        now = time.monotonic() - self._since if self._since is not None else -1.0
        seats, found = {str(who): who for who in empty}, list[Address]()
        self._leaving -= seats.keys()
        leaving = {*self._leaving}
        for at, fault in sorted((one for one in self._waiting if one[0] <= now), key=lambda one: one[0]):
            name = fault.who[0]
            if fault.kind in ("leave", "notice") and name not in seats:
                leaving.add(name)  # it is struck when it is there
            elif fault.kind in OF_SEATS and name not in leaving:
                self._waiting.remove((at, fault))
                if fault.optional and fault.kind == "leave":
                    departs(seats[name])
                    continue
                if fault.kind == "leave" or name not in seats:
                    self._vain.append(f"{fault}: {name} was {'not ' if fault.kind == 'leave' else ''}there")
                else:
                    found.append(seats.pop(name))
        return found

    def told(self, who: Address, how: str) -> str:
        """How a role ended, in words: a planned kill is called that."""
        fault = self._killed.pop(who, None)
        return f"{how.removesuffix(OUT_OF_MEMORY)}, as planned ({fault})" if fault and KILLED in how else how

    @property
    def unmet(self) -> list[str]:
        """The faults that did nothing, and why."""
        return self._vain + [f"{fault}: the run ended before it" for _, fault in self._waiting if not fault.optional]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

"""Cores in virtual time: whatever runs on a machine shares them equally, and a quota stops it when it is used up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import floor, inf
from typing import Any, Literal

from covey.engines.virtual.agenda import Agenda
from covey.simulate import Machine

Act = Callable[[Any, Any], None]
What = Literal["done", "spent", "renewed"]
NOTHING = 1e-12  # seconds of CPU: less is none


class Cores:
    """The cores of one machine (processor sharing: each job has an equal part, and at most one core).

    `served` is the CPU time that a job would have got which is there since the beginning: a job that needs w more ends
    when it is w larger. A quota (`period`) is spent at full speed, and what is over waits for the next period, as in
    the groups of Linux; periods begin at a `phase` of their own, from 0 to 1.
    """

    def __init__(self, agenda: Agenda, machine: Machine | None, phase: float = 0.0) -> None:
        self._agenda = agenda
        self._cores = machine.cores if machine else inf
        self._period = machine.period if machine else 0.0
        self._wake = machine.wake if machine and not machine.period else 0.0
        self._phase = phase
        self._jobs: list[tuple[float, int, int, Act, Any, Any]] = []  # when served: width, and what then
        self._width = 0  # cores that the jobs could use
        self._served = self._since = 0.0
        self._turn, self._left = 0, self._cores * self._period  # of the quota, in the period of that number
        self._serial = count()
        self._plan: object = None  # the event that is expected; an earlier one means nothing

    def run(self, work: float, width: int, act: Act, subject: Any, value: Any) -> None:
        """Call `act(subject, value)` when `work` seconds of CPU time, on `width` cores each, have been had."""
        if self._wake and self._width + width > self._cores:
            self._agenda.at(self._agenda.now + self._wake, self._enter, (work, width), (act, subject, value))
        else:
            self._enter((work, width), (act, subject, value))

    def _enter(self, wanted: tuple[float, int], given: tuple[Act, Any, Any]) -> None:
        (work, width), (act, subject, value) = wanted, given
        self._pass()
        heappush(self._jobs, (self._served + work, next(self._serial), width, act, subject, value))
        self._width += width
        self._expect()

    def _rate(self) -> float:
        if not self._period:
            return min(1.0, self._cores / self._width)
        return 1.0 if self._left > NOTHING else 0.0

    def _pass(self) -> None:
        """Serve the jobs up to now."""
        now = self._agenda.now
        if self._jobs:
            passed = (now - self._since) * self._rate()
            self._served += passed
            self._left -= passed * self._width
        self._since = now
        if self._period and (turn := floor(now / self._period + self._phase)) > self._turn:
            self._renew(turn)

    def _renewal(self) -> float:
        """When the next period begins."""
        return (self._turn + 1 - self._phase) * self._period

    def _renew(self, turn: int) -> None:
        self._turn, self._left = turn, self._cores * self._period

    def _expect(self) -> None:
        """Ask to be woken when the first job is done, the quota used up, or a new one begins."""
        if not self._jobs:
            self._served = 0.0  # so that it stays exact in a long run
            return
        now, rate = self._agenda.now, self._rate()
        moments: list[tuple[float, What]] = []
        if rate:
            moments.append((now + max(0.0, self._jobs[0][0] - self._served) / rate, "done"))
        if rate and self._period:
            moments.append((now + self._left / self._width, "spent"))
        if self._period:
            moments.append((self._renewal(), "renewed"))
        when, what = min(moments)
        self._plan = plan = object()
        self._agenda.at(max(now, when), self._happen, plan, what)

    def _happen(self, plan: object, what: What) -> None:
        if plan is not self._plan:
            return
        self._pass()
        # What was expected is true now, whatever was lost in rounding.
        if what == "done":
            self._served = max(self._served, self._jobs[0][0])
        elif what == "spent":
            self._left = 0.0
        elif self._agenda.now >= self._renewal():
            self._renew(self._turn + 1)
        done = []
        while self._jobs and self._jobs[0][0] <= self._served + NOTHING:
            job = heappop(self._jobs)
            self._width -= job[2]
            done.append(job)
        self._expect()
        for _, _, _, act, subject, value in done:
            act(subject, value)


class RoleThread:
    """One thread of a role: does one thing after the other, on the cores of its machine."""

    __slots__ = ("_busy", "_cores", "_queue", "_urgent")

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._urgent: deque[tuple[float, Act, Any, Any]] = deque()
        self._queue: deque[tuple[float, Act, Any, Any]] = deque()
        self._busy = False

    def do(self, work: float, act: Act, subject: Any, value: Any = None, first: bool = False) -> None:
        """Call `act(subject, value)` after this much work, and after what waits already, unless this comes `first`.

        What comes first stays in its order: two programs of a role send in the order in which they wanted to.
        """
        if not self._busy:
            self._begin(work, act, subject, value)
        elif first:
            self._urgent.append((work, act, subject, value))
        else:
            self._queue.append((work, act, subject, value))

    def _begin(self, work: float, act: Act, subject: Any, value: Any) -> None:
        self._busy = True
        if work > 0:
            self._cores.run(work, 1, self._done, act, (subject, value))
        else:
            self._done(act, (subject, value))

    def _done(self, act: Act, given: tuple[Any, Any]) -> None:
        act(*given)
        while waiting := self._urgent or self._queue:
            work, act, subject, value = waiting.popleft()
            if work > 0:
                self._cores.run(work, 1, self._done, act, (subject, value))
                return
            act(subject, value)
        self._busy = False

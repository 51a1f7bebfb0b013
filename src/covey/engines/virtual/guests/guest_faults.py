"""Faults of a run to which guests come: guests and roles are killed, links are cut, messages are late or come twice."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.link_faults import Armed, LinkFaults
from covey.engines.virtual.virtual_actor import WAIT, MessageInFlight, RoleProgram, VirtualActor
from covey.errors import PlanError
from covey.message import Address
from covey.simulate.faults import ON_LINKS, SILENCE, Fault, FaultKind, FaultPlan

Act = Callable[[RoleProgram, Any], Any]

OF_GUESTS: tuple[FaultKind, ...] = ("kill", "partition", "delay", "duplicate", "slow")
"""The faults that a run with guests survives. A link that loses a message breaks, as if its guest were lost."""


class StruckEngine(Protocol):
    """What faults reach into."""

    @property
    def agenda(self) -> Agenda: ...
    @property
    def actors(self) -> Mapping[Address, VirtualActor]: ...
    def lose(self, who: Address) -> None: ...


class GuestLinkFaults(LinkFaults):
    """Links on which a message may really come twice: whoever sends to a service need not follow its protocol."""

    def _again(self, flight: MessageInFlight, _: Any) -> None:
        del self._doubled[flight.serial]
        self.hand_over(flight, None)


class GuestFaults:
    """A plan of faults at work. Guests that are not there when a fault strikes are spared."""

    def __init__(self, plan: FaultPlan, role: str) -> None:
        self.plan, self._role = plan, role
        self.struck: list[Fault] = []  # those that met somebody
        self._counts: Counter[str] = Counter()  # of effects, by role
        self._armed: Armed = {}
        self._slowed: dict[str, list[tuple[float, float]]] = {}  # until when, by which factor
        self._at_effect: dict[tuple[str, int], list[Fault]] = {}
        for fault in plan.faults:
            if fault.kind not in OF_GUESTS:
                raise PlanError(f"'{fault}': runs with clients know the faults {', '.join(OF_GUESTS)}")
            if fault.effect is not None:
                self._at_effect.setdefault((fault.who[0], fault.effect), []).append(fault)

    def attach(self, engine: StruckEngine, handlers: dict[type, Act], links: Any) -> None:
        """Strike in the run of this engine."""
        self._engine = engine
        self._links = GuestLinkFaults(engine.agenda, self._armed, lambda line: None)
        links.attach(self._links)
        for fault in self.plan.faults:
            if fault.at is not None:
                engine.agenda.from_outside(fault.at, self._strike, fault)
        for kind, act in list(handlers.items()) if self._at_effect else ():
            handlers[kind] = partial(self._gate, act)

    def slowness(self, name: str) -> float:
        """By how much a guest's compute takes longer now."""
        now = self._engine.agenda.now
        return math.prod(factor for until, factor in self._slowed.get(name, ()) if now < until)

    def _gate(self, act: Act, thread: RoleProgram, effect: Any) -> Any:
        """Perform an effect, unless its role is killed before it."""
        name = thread.actor.name
        self._counts[name] += 1
        for fault in self._at_effect.pop((name, self._counts[name]), ()):
            if fault.kind == "kill":  # the engine hears of it when it is out of this program
                self._engine.agenda.at(self._engine.agenda.now, self._strike, fault)
                thread.block(self._engine.agenda.now, effect)
                return WAIT
            self._strike(fault)
        return act(thread, effect)

    def _strike(self, fault: Fault, _: Any = None) -> None:
        now = self._engine.agenda.now
        if fault.kind in ON_LINKS:
            sender, receiver = fault.who
            self._armed.setdefault((sender, receiver), deque()).append(fault)
        elif fault.kind == "slow":
            self._slowed.setdefault(fault.who[0], []).append((now + fault.lasts, fault.by))
        elif fault.kind == "partition":
            self._links.cuts.append((frozenset(fault.who), now + fault.lasts))
            if fault.lasts > SILENCE:  # who is not heard for so long counts as lost
                self._engine.agenda.from_outside(now + SILENCE, self._lose_all, fault)
        else:
            self._lose(fault, fault.who[0])
            return
        self.struck.append(fault)

    def _lose_all(self, fault: Fault, _: Any) -> None:
        for name in fault.who:
            self._lose(fault, name)

    def _lose(self, fault: Fault, name: str) -> None:
        role, _, rank = name.rpartition(" ")
        who = Address(role, int(rank))
        if who in self._engine.actors and not self._engine.actors[who].ended:
            self.struck.append(fault)
            self._engine.lose(who)

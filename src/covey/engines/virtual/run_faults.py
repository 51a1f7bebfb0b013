"""Faults of a run in virtual time: they strike at their time, or before a role's effect of their number."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from covey.checkpoint import RoleState
from covey.data.stripe_cache.virtual_reads import VirtualReads
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.auto_workers import AutoWorkers
from covey.engines.virtual.computing import Computing
from covey.engines.virtual.keeping import RunKeeper
from covey.engines.virtual.link_faults import Armed, LinkFaults
from covey.engines.virtual.stall import clock, obituary
from covey.engines.virtual.virtual_actor import WAIT, RoleProgram, VirtualActor
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.engines.virtual.virtual_membership import Replacement, VirtualMembership
from covey.errors import PeerLost
from covey.membership import LeaveNotice
from covey.message import Address
from covey.observe.membership import MembershipLog
from covey.observe.tally import Tally, Teller
from covey.program import Compute
from covey.simulate import Host, Seconds
from covey.simulate.faults import SILENCE, Fault, FaultPlan

Act = Callable[[RoleProgram, Any], Any]
Performing = tuple[RoleProgram, Act, Any]
"""A program, and how to perform the effect that it awaits."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What of an engine faults and checkpoints reach into."""

    agenda: Agenda
    actors: Mapping[Address, VirtualActor]
    links: VirtualLinks
    computing: Computing
    teller: Teller
    advance: Callable[[RoleProgram, Any], None]
    members: VirtualMembership

    def perform(self, pending: Performing, _: Any = None) -> None:
        """Perform an effect that was held up, and let its program go on."""
        thread, act, effect = pending
        if not thread.done:
            thread.since = self.agenda.now
            value = act(thread, effect)
            if value is not WAIT:
                self.advance(thread, value)


class RunFaults:
    """A plan of faults at work, through all attempts at a run: each strikes once."""

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self.told: list[str] = []  # what was noticed and did not end the attempt
        self.counts: Counter[Host] = Counter()  # of effects, in all attempts
        self.full_until = 0.0  # of the disk
        self._waiting = list(plan.faults)
        self._armed: Armed = {}
        self._at_effect: dict[tuple[Host, int], list[Fault]] = {}
        for fault in plan.faults:
            if fault.effect is not None:
                self._at_effect.setdefault((fault.who[0], fault.effect), []).append(fault)

    @property
    def unmet(self) -> list[str]:
        """The faults that the run ended before."""
        left = [*self._waiting, *(fault for armed in self._armed.values() for fault in armed), *self._links.unmet]
        return [f"{fault}: the run ended before it" for fault in left if not fault.optional]

    def attach(self, parts: EngineParts, handlers: dict[type, Act], keeper: RunKeeper | None) -> None:
        """Strike in this attempt; effects are looked at only where a fault, or a checkpoint, may hold them up."""
        self._parts, self._keeper = parts, keeper
        self._names = {actor.name: actor.address for actor in parts.actors.values()}
        trainers = [actor.name for actor in parts.actors.values() if actor.role.trains]
        self.plan.check(list(self._names), trainers)
        coming = FaultPlan(tuple(self._waiting)).absent  # in a later attempt others have come already
        for name in filter(coming.__contains__, self.plan.absent):
            parts.agenda.at(parts.agenda.now, self._begin_empty, name)
        self._frozen: dict[VirtualActor, float] = {}  # until when
        self._owed: dict[RoleProgram, float] = {}  # seconds for which its compute stood still
        self._queues: dict[VirtualActor, deque[Performing]] = {}
        self._slowed: dict[VirtualActor, list[tuple[float, float]]] = {}  # until when, by which factor
        self._noticed: dict[Host, Fault] = {}  # who goes before its next batch
        links = LinkFaults(parts.agenda, self._armed, self.told.append)
        if any(fault.kind in ("partition", "delay", "drop", "duplicate") for fault in self.plan.faults):
            parts.links.attach(links)
        self._links = links
        if any(fault.kind == "slow" for fault in self.plan.faults):
            parts.computing.slowness = self._slowness
        if parts.members.ranges:
            handlers[Compute] = partial(self._before_batch, handlers[Compute])
        for fault in self._waiting:
            if fault.at is not None:
                parts.agenda.from_outside(max(parts.agenda.now, fault.at), self._strike, fault)
        if keeper or any(fault.effect or fault.kind == "stop" for fault in self.plan.faults):
            for kind, act in list(handlers.items()):
                handlers[kind] = partial(self._gate, act)

    def check_lost(self) -> None:
        """Name a message that was lost, if the run ends or stands still without having noticed."""
        self._links.check()

    def _gate(self, act: Act, thread: RoleProgram, effect: Any) -> Any:
        """Perform an effect, unless its role is stopped, or stands before a step at which all are held."""
        actor = thread.actor
        self.counts[actor.name] += 1
        self._count(actor)
        if thread in self._owed:
            late = self._parts.agenda.now + self._owed.pop(thread)
            self._parts.agenda.at(late, self._parts.perform, (thread, act, effect))
            return WAIT
        if actor in self._frozen:
            self._queues.setdefault(actor, deque()).append((thread, act, effect))
            return WAIT
        if self._keeper and self._keeper.holds((thread, act, effect)):
            return WAIT
        return act(thread, effect)

    def _count(self, actor: VirtualActor) -> None:
        for fault in self._at_effect.pop((actor.name, self.counts[actor.name]), ()):
            if fault.kind in ("kill", "leave"):
                self._frozen[actor] = math.inf  # it does nothing more; the engine hears of it when it is out of here
                self._parts.agenda.at(self._parts.agenda.now, self._strike, fault)
            else:
                self._strike(fault)

    # -- what each fault does -----------------------------------------------------------------------------------------

    def _strike(self, fault: Fault, _: Any = None) -> None:
        self._waiting.remove(fault)
        if fault.kind in ("delay", "drop", "duplicate"):
            sender, receiver = fault.who
            self._armed.setdefault((sender, receiver), deque()).append(fault)
        else:
            STRIKES[fault.kind](self, fault, self._actor(fault.who[0]) if fault.who else None)

    def _actor(self, name: str) -> VirtualActor:
        """The role of this name, in its present incarnation."""
        return self._parts.actors[self._names[name]]

    def _kill(self, fault: Fault, actor: VirtualActor) -> None:
        if actor.ended:
            self.told.append(f"{fault}: {actor.name} had ended before")
        else:
            how = obituary(self._parts.agenda.now, actor, self._parts.actors)
            self._parts.members.lose(actor.address, how, starting=fault.lasts)

    def _notice(self, fault: Fault, actor: VirtualActor) -> None:
        """Keep the run while the role is still there, if that is possible in time.

        Where workers come and go, it goes before its next batch, so that nothing of it is done in vain.
        """
        agenda = self._parts.agenda
        if self._parts.members.ranges:
            self._warn(actor, fault)
            return agenda.from_outside(agenda.now + fault.lasts, self._end_notice, actor.name)
        agenda.from_outside(agenda.now + fault.lasts, self._leave, actor, fault)
        if self._keeper and not actor.ended:
            self._keeper.begin(then=lambda: agenda.at(agenda.now, self._leave, actor, fault))

    def _leave(self, actor: VirtualActor, fault: Fault) -> None:
        if actor.ended:
            self.told.append(f"{fault}: {actor.name} had ended before")
        else:
            how = f"{actor.name} left at {clock(self._parts.agenda.now)}, after a notice"
            self._parts.members.lose(actor.address, how)

    def _before_batch(self, act: Act, thread: RoleProgram, effect: Any) -> Any:
        if thread.actor.name not in self._noticed or (thread.actor.role.warned and effect.load):
            return act(thread, effect)
        agenda = self._parts.agenda
        agenda.at(agenda.now, self._end_notice, thread.actor.name)
        return WAIT

    def release(self, who: Address) -> None:
        """Let a worker go before its next batch; one that was told so already stays told."""
        name = str(who)
        if name not in self._noticed:
            self._warn(self._actor(name), Fault(kind="notice", who=(name,), optional=True))

    def _warn(self, actor: VirtualActor, fault: Fault) -> None:
        self._noticed[actor.name] = fault
        if actor.role.warned and not actor.ended:
            self._parts.members.deliver(actor, LeaveNotice(sender=actor.address))

    def _end_notice(self, name: Host, _: Any) -> None:
        if fault := self._noticed.pop(name, None):
            self._depart(fault, self._actor(name))

    def _begin_empty(self, name: str, _: Any) -> None:
        self._parts.members.vacate(self._actor(name))

    def _depart(self, fault: Fault, actor: VirtualActor) -> None:
        if self._parts.members.away(actor.address) or (actor.ended and not actor.lost):
            self.told += [] if fault.optional else [f"{fault}: {actor.name} was not there"]
        else:
            self._parts.members.leave(actor.address, "left after a notice" if fault.kind == "notice" else "left")

    def _join(self, fault: Fault, actor: VirtualActor) -> None:
        if self._parts.members.away(actor.address):
            self._parts.members.join(actor.address)
        else:
            self.told.append(f"{fault}: {actor.name} was there")

    def _stop(self, fault: Fault, actor: VirtualActor) -> None:
        agenda = self._parts.agenda
        until, stands = agenda.now + fault.lasts, max(agenda.now, self._frozen.get(actor, 0.0))
        self._frozen[actor] = max(until, stands)
        for thread in actor.threads:
            if isinstance(thread.want, Compute):  # two stops that overlap hold it up only once
                self._owed[thread] = self._owed.get(thread, 0.0) + max(0.0, until - stands)
        agenda.at(until, self._thaw, actor)
        self._unheard(fault, actor.name)

    def _thaw(self, actor: VirtualActor, _: Any) -> None:
        if self._parts.agenda.now < self._frozen.get(actor, math.inf):
            return
        del self._frozen[actor]
        for pending in self._queues.pop(actor, ()):
            if not (self._keeper and self._keeper.holds(pending)):
                self._parts.perform(pending)

    def _partition(self, fault: Fault, actor: VirtualActor) -> None:
        self._links.cuts.append((frozenset(fault.who), self._parts.agenda.now + fault.lasts))
        self._unheard(fault, actor.name)

    def _unheard(self, fault: Fault, name: str) -> None:
        agenda = self._parts.agenda
        if fault.lasts > SILENCE:
            agenda.at(agenda.now + SILENCE, self._silent, name)

    def _silent(self, name: str, _: Any) -> None:
        if not self._actor(name).ended:
            raise PeerLost(f"{name} was not heard for {SILENCE:g} s, at {clock(self._parts.agenda.now)}", name)

    def _slow(self, fault: Fault, actor: VirtualActor) -> None:
        self._slowed.setdefault(actor, []).append((self._parts.agenda.now + fault.lasts, fault.by))

    def _slowness(self, actor: VirtualActor) -> float:
        now = self._parts.agenda.now
        return math.prod(factor for until, factor in self._slowed.get(actor, ()) if now < until)

    def _fill(self, fault: Fault, _: Any) -> None:
        self.full_until = max(self.full_until, self._parts.agenda.now + fault.lasts)


STRIKES: Mapping[str, Callable[[RunFaults, Fault, Any], None]] = {
    "kill": RunFaults._kill, "notice": RunFaults._notice, "stop": RunFaults._stop, "partition": RunFaults._partition,
    "slow": RunFaults._slow, "disk full": RunFaults._fill, "leave": RunFaults._depart, "join": RunFaults._join,
}  # fmt: skip


@dataclass(slots=True)
class VirtualAttempt:
    """One attempt at a run in virtual time: where it begins, what goes wrong in it, and how it is kept."""

    clock: float = 0.0
    states: Mapping[Address, RoleState] = field(default_factory=dict)  # of a checkpoint
    tallies: Sequence[Tally] = ()  # of the same
    place: Path = Path()  # of the same
    before: str = ""  # its strategy, where that divided the model in another way
    faults: RunFaults | None = None
    keeper: RunKeeper | None = None
    replacement: Replacement | None = None  # how lost workers are replaced
    auto: AutoWorkers | None = None  # who decides how many workers there are
    log: MembershipLog = field(default_factory=MembershipLog)  # of all attempts
    reads: VirtualReads | None = None  # of all attempts: what reading samples takes, where the cluster says so
    parts: EngineParts | None = None  # once it has begun

    def attach(self, parts: EngineParts, handlers: dict[type, Act], kills: Mapping[Host, Seconds]) -> None:
        """Reach into the engine that makes this attempt; without faults and checkpoints there is nothing to do."""
        self.parts = parts
        if self.faults is None and (kills or self.keeper or self.auto):
            self.faults = RunFaults(killing(kills))
        if self.faults is not None:
            self.faults.attach(parts, handlers, self.keeper)
        if self.auto is not None and self.faults is not None:
            self.auto.attach(parts.members, self.faults.release)
        if self.keeper is not None:
            self.keeper.attach(parts)

    def check_lost(self) -> None:
        if self.faults is not None:
            self.faults.check_lost()


def killing(kills: Mapping[Host, Seconds]) -> FaultPlan:
    """The kills of a cluster as a plan of faults."""
    return FaultPlan(tuple(Fault(kind="kill", who=(host,), at=at) for host, at in kills.items()))

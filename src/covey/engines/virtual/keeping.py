"""Checkpoints in virtual time: every worker stands before a step, no message is on its way, all states are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from covey.checkpoint import RoleState
from covey.engines.pace import rests
from covey.engines.process.role.saving import state_of
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.virtual_actor import RoleProgram, VirtualActor
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.engines.virtual.virtual_membership import VirtualMembership
from covey.message import Address
from covey.observe.tally import Teller
from covey.program import Receive, Sleep

AGAIN = 8  # tries in an interval, while a lost worker is being replaced
Pending = tuple[RoleProgram, Callable[[RoleProgram, Any], Any], Any]
Write = Callable[[Mapping[Address, RoleState], float, Teller], None]


class KeptEngine(Protocol):
    """What is kept of an engine, and how its programs go on."""

    @property
    def agenda(self) -> Agenda: ...
    @property
    def actors(self) -> Mapping[Address, VirtualActor]: ...
    @property
    def links(self) -> VirtualLinks: ...
    @property
    def teller(self) -> Teller: ...
    @property
    def members(self) -> VirtualMembership: ...
    def perform(self, pending: Pending, _: Any = None) -> None: ...


class RunKeeper:
    """Keeps a run at intervals: at a common step where workers wait for one another, else each before its next one."""

    def __init__(self, every: float, lockstep: bool, write: Write) -> None:
        self._every, self._lockstep, self._write = every, lockstep, write
        self._held: dict[VirtualActor, Pending] = {}
        self._keeping = self._waiting = False
        self._cast: dict[Address, VirtualActor] = {}  # who was there when it began to keep
        self._then: list[Callable[[], None]] = []

    def attach(self, engine: KeptEngine) -> None:
        """Keep the run of this engine."""
        self._engine, self._agenda = engine, engine.agenda
        self._agenda.from_outside(self._agenda.now + self._every, self._due, None)

    def _due(self, _: Any, __: Any) -> None:
        self._agenda.from_outside(self._agenda.now + self._every, self._due, None)
        self.begin()

    def begin(self, then: Callable[[], None] | None = None) -> None:
        """Have every worker stand before a step; `then` is called when the run is kept, or cannot be."""
        self._then += [then] if then else []
        if not self._keeping and not self._waiting:
            self._begin()

    def _begin(self, _: Any = None, __: Any = None) -> None:
        """Begin, or after some time, when all know each other again."""
        self._waiting = not self._settled()
        if self._waiting:
            return self._agenda.from_outside(self._agenda.now + self._every / AGAIN, self._begin, None)
        self._cast = self._present()
        ready = [actor for actor in self._trainers() if not actor.pace.over(actor.pace.step)]
        paces = [actor.pace for actor in ready if not _rests(actor)]
        foremost = max((pace.next for pace in paces), default=0)
        for pace in paces:
            pace.hold_at = foremost if self._lockstep else pace.next
        for actor in filter(_rests, ready):
            actor.pace.hold_at = actor.pace.step  # it does not even begin again
        self._keeping = True
        self._look()

    def holds(self, pending: Pending) -> bool:
        """Whether this program stands before a step at which it is to be held."""
        thread = pending[0]
        if not self._keeping or not thread.main or not thread.actor.pace.holds():
            return False
        self._held[thread.actor] = pending
        thread.actor.held = True
        self._engine.links.awaited(thread.actor)
        return True

    def _settled(self) -> bool:
        """Whether nobody is lost, and every new incarnation knows where it goes on."""
        return all(not actor.lost and (actor.ended or actor.settled) for actor in self._present().values())

    def _present(self) -> dict[Address, VirtualActor]:
        """All but those whose seats are empty."""
        empty = self._engine.members.empty
        return {who: actor for who, actor in self._engine.actors.items() if who not in empty}

    def _broken_off(self) -> bool:
        """Whether somebody was lost or came meanwhile: then nothing is kept."""
        return self._present() != self._cast or any(actor.lost for actor in self._cast.values())

    def _trainers(self) -> list[VirtualActor]:
        return [actor for actor in self._engine.actors.values() if actor.role.trains and not actor.ended]

    def _late(self) -> list[VirtualActor]:
        """Who does not stand before its step yet; one that begins no more, or has no batch, is not waited for."""
        there = [actor for actor in self._trainers() if actor not in self._held and not _rests(actor)]
        return [actor for actor in there if not actor.pace.over(actor.pace.step)]

    def _look(self, _: Any = None, __: Any = None) -> None:
        """Write if nothing moves; else look again after the next event."""
        if self._broken_off():
            self._release()
            return self.begin()
        late = self._late()
        if not late and self._quiet():
            if self._engine.links.faults is not None:
                self._engine.links.faults.check()  # what was sent and has not arrived would be in no role's state
            self._write(self._states(), self._agenda.now, self._engine.teller)
            return self._release()
        if self._agenda.still and (not late or not self._advance_held()):
            return self._release()  # it cannot be kept now: whatever the reason, the run goes on as it would have
        when = self._agenda.due[0][0] if self._agenda.due else self._agenda.now
        self._agenda.at(when, self._look, None)

    def _advance_held(self) -> bool:
        """Those that are late wait for those that hold: these do a step more, where workers may differ."""
        if self._lockstep or not self._held:
            return False
        for actor in list(self._held):
            assert actor.pace.hold_at is not None
            actor.pace.hold_at += 1
            self._let_go(actor, self._held.pop(actor))
        return True

    def _quiet(self) -> bool:
        """Whether no message is on its way, and no program is about to do something."""
        if self._agenda.due and self._agenda.due[0][0] <= self._agenda.now:
            return False
        for actor in self._engine.actors.values():
            if any(link.under_way or link.line or link.held for link in actor.links.values()):
                return False
            held = self._held.get(actor)
            threads = [thread for thread in actor.threads if not thread.done and not (held and thread is held[0])]
            if not actor.ended and (actor.compute.busy or actor.compute.line):
                return False
            if not all(isinstance(thread.want, Receive | Sleep) for thread in threads):
                return False
        return True

    def _states(self) -> dict[Address, RoleState]:
        now = self._agenda.now
        return {
            address: state_of(actor, actor.replica, held=actor in self._held, ended=actor.ended, seconds=now)
            for address, actor in self._present().items()
        }

    def _release(self) -> None:
        self._keeping = False
        for actor in self._engine.actors.values():
            actor.pace.hold_at = None
        held, self._held = self._held, {}  # what one does now may begin the next checkpoint, or break it off
        for actor, pending in held.items():
            self._let_go(actor, pending)
        then, self._then = self._then, []
        for call in then:
            call()

    def _let_go(self, actor: VirtualActor, pending: Pending) -> None:
        actor.held = False
        self._engine.perform(pending)


def _rests(actor: VirtualActor) -> bool:
    """Whether it waits until there is a batch for it."""
    return any(thread.main and not thread.done and rests(thread.want) for thread in actor.threads)

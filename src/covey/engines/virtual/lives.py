"""Roles that are lost in virtual time: the run ends, or a lost worker is born again in its place."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from covey.engines.broken_rounds import Breakable, in_round
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.stall import clock, obituary
from covey.engines.virtual.virtual_actor import WAIT, RoleProgram, VirtualActor
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.errors import PeerLost
from covey.membership import Deaths, Joined, Life, ViewChanged
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.membership import MembershipEvent, MembershipLog
from covey.program import Effect, Receive
from covey.strategy import Role

Act = Callable[[RoleProgram, Any], Any]


@dataclass(frozen=True, slots=True)
class Rebirth:
    """What a run needs so that lost workers are born again: new replicas, and how often one may die."""

    replica: Callable[[Role], Replica]
    most: int = 2
    say: Callable[[str], None] = lambda line: None
    told: Callable[[MembershipEvent], None] | None = None  # hears of each loss at once


@dataclass(slots=True, eq=False)
class VirtualLives:
    """The lives of all roles. `make` seats a new life where an older one was, `begin` starts its program."""

    agenda: Agenda
    actors: dict[Address, VirtualActor]
    wires: VirtualLinks
    rebirth: Rebirth | None
    make: Callable[[VirtualActor, Replica, Life], VirtualActor]
    begin: Callable[[VirtualActor], None]
    deliver: Callable[[VirtualActor, Message], None]
    advance: Callable[[RoleProgram, Any], None]
    deaths: Deaths = field(init=False)
    log: MembershipLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = MembershipLog(self.rebirth.told if self.rebirth else None)
        self.deaths = Deaths(self.rebirth.most if self.rebirth else 0)

    def opened(self, actor: VirtualActor) -> Coroutine[Effect[Any], Any, None]:
        """The program of a role; where workers are born again, its rounds can be broken off."""
        program = actor.role.program(actor.node, actor.replica)
        return Breakable(program) if self.rebirth and actor.role.together else program

    def watch(self, handlers: dict[type, Act]) -> None:
        """Let no program begin to wait in a round that is broken off."""
        if self.rebirth:
            handlers[Receive] = partial(self._receive, handlers[Receive])

    def _receive(self, act: Act, thread: RoleProgram, effect: Receive) -> Any:
        if not thread.actor.role.together or not in_round(effect, thread.actor.mailbox):
            return act(thread, effect)
        self.agenda.at(self.agenda.now, self.advance, thread, ViewChanged())
        return WAIT

    def _break_off(self, actor: VirtualActor) -> None:
        """Nobody sends any more what this role waits for in a round."""
        for thread in actor.waiting[:] if actor.role.together else ():
            if in_round(thread.want, actor.mailbox):
                actor.waiting.remove(thread)
                self.agenda.at(self.agenda.now, self.advance, thread, ViewChanged())

    def lose(self, who: Address, how: str = "") -> None:
        """The role's process is gone, with all that it knew; what it has sent still arrives."""
        actor = self.actors[who]
        if self.rebirth is None or not actor.role.trains:
            raise PeerLost(how or obituary(self.agenda.now, actor, self.actors), actor.name)
        pause = self.deaths.note(who, actor.pace.step, "was killed")
        actor.end()
        actor.lost = True
        actor.replica.weigh(0.0)  # nothing of it is scored
        many = sum(other.role.trains for other in self.actors.values())
        self.log.add("rebirth", actor.name, "was killed", seconds=self.agenda.now, workers=many, stalled=pause)
        self.agenda.at(self.agenda.now + pause, self._born, actor, self.agenda.now)

    def _born(self, lost: VirtualActor, since: float) -> None:
        assert self.rebirth is not None
        who, now = lost.address, self.agenda.now
        ended = frozenset(address for address, other in self.actors.items() if other.ended and not other.lost)
        step = max(0, lost.pace.step, lost.life.step)  # one that was lost before it could begin knows of the one before
        life = Life(self.deaths.lives[who], step, ended, elastic=True)
        actor = self.make(lost, self.rebirth.replica(lost.role), life)
        actor.pace.stop_at = lost.pace.stop_at
        self.actors[who] = actor
        self.wires.replaced(lost)
        for address, other in self.actors.items():
            if address != who and not other.ended:
                self.deliver(other, Joined(life.number, sender=who))
                self._break_off(other)
        self.rebirth.say(f"{who} was killed at {clock(since)}; born again after {clock(now - since)}")
        self.begin(actor)

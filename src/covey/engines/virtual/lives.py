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
from covey.membership import Deaths, Departed, Joined, Life, ViewChanged, copies_lost, go_on, too_few, workers
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.membership import MembershipLog
from covey.observe.tally import Teller
from covey.program import Effect, Receive
from covey.strategy import Role

Act = Callable[[RoleProgram, Any], Any]


@dataclass(frozen=True, slots=True)
class Rebirth:
    """What a run needs so that lost workers are born again: new replicas, and how often one may die."""

    replica: Callable[[Role], Replica]
    most: int = 2
    say: Callable[[str], None] = lambda line: None
    log: MembershipLog = field(default_factory=MembershipLog)  # of the run, in all its attempts
    least: int = 0  # workers, where a seat may stay empty


@dataclass(slots=True, eq=False)
class VirtualLives:
    """The lives of all roles. `make` seats a new life where an older one was, `begin` starts its program."""

    agenda: Agenda
    actors: dict[Address, VirtualActor]
    wires: VirtualLinks
    rebirth: Rebirth | None
    teller: Teller
    make: Callable[[VirtualActor, Replica, Life], VirtualActor]
    begin: Callable[[VirtualActor], None]
    deliver: Callable[[VirtualActor, Message], None]
    advance: Callable[[RoleProgram, Any], None]
    empty: set[Address] = field(default_factory=set)  # seats that nobody takes for now
    deaths: Deaths = field(init=False)
    log: MembershipLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.rebirth.log if self.rebirth else MembershipLog()
        copies = {who: actor.role.copies for who, actor in self.actors.items() if actor.role.copies}
        self.deaths = Deaths(self.rebirth.most if self.rebirth else 0, copies=copies)

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
        if self.rebirth is None or not (actor.role.trains or actor.role.copies):
            raise PeerLost(how or obituary(self.agenda.now, actor, self.actors), actor.name)
        if actor.role.copies and not any(self.holds(other) for other in actor.role.copies if other != who):
            raise copies_lost(who)
        try:
            # where workers come and go, a new one enters at a step that others have done
            tally = self.teller.tallies.get(who)
            reached = actor.pace.step if not self.rebirth.least else tally.samples if tally else 0
            reached = self.teller.samples if actor.role.copies else reached
            pause = self.deaths.note(who, reached, "was killed")
        except PeerLost:
            if not self.rebirth.least:
                raise
            return self.leave(who, f"was killed {self.rebirth.most + 1} times without a new step")
        self._gone(actor)
        self.log.add("rebirth", actor.name, "was killed", seconds=self.agenda.now, workers=self.workers, stalled=pause)
        self.agenda.at(self.agenda.now + pause, self._born, actor, self.agenda.now)

    def leave(self, who: Address, cause: str = "left") -> None:
        """A worker goes, and its seat stays empty until somebody joins."""
        assert self.rebirth is not None
        actor = self.actors[who]
        left = self.workers - (who not in self.empty)
        if left < self.rebirth.least:
            raise too_few(who, f"{cause} at {clock(self.agenda.now)}", left, self.rebirth.least)
        self.vacate(actor)
        self.log.add("leave", actor.name, cause, seconds=self.agenda.now, workers=self.workers)
        self.rebirth.say(f"{who} {cause} at {clock(self.agenda.now)}; {go_on(self.workers)}")

    def vacate(self, actor: VirtualActor) -> None:
        """Nobody is in this seat: all others hear of it after what its last worker sent and they have had."""
        self._gone(actor)
        self.empty.add(actor.address)
        self.wires.replaced(actor)
        for address, other in self.actors.items():
            if address != actor.address and not other.ended:
                self.deliver(other, Departed(actor.life.number, sender=actor.address))
                self._break_off(other)

    def join(self, who: Address) -> None:
        """A new worker takes an empty seat."""
        lost = self.actors[who]
        self.empty.discard(who)
        self.deaths.joined(who)
        self.log.add("join", lost.name, "joined", seconds=self.agenda.now, workers=self.workers)
        self._born(lost, None)

    def holds(self, who: Address) -> bool:
        """Whether this copy is there, and has what the others have."""
        return not self.actors[who].lost and self.actors[who].settled

    @property
    def ranges(self) -> bool:
        """Whether workers come and go."""
        return self.rebirth is not None and self.rebirth.least > 0

    @property
    def workers(self) -> int:
        """Seats that are taken, or will be in a moment."""
        return sum(actor.role.trains and who not in self.empty for who, actor in self.actors.items())

    def _gone(self, actor: VirtualActor) -> None:
        actor.end()
        actor.lost = True
        actor.replica.weigh(0.0)  # nothing of it is scored

    def _born(self, lost: VirtualActor, since: float | None) -> None:
        assert self.rebirth is not None
        who, now = lost.address, self.agenda.now
        if who in self.empty or self.actors[who] is not lost:
            return  # its seat was given up meanwhile
        ended = frozenset(address for address, other in self.actors.items() if other.ended and not other.lost)
        # one that was lost before it could begin knows of the one before, or of the checkpoint
        step = max(0, lost.pace.step, lost.life.step, lost.begun or 0)
        others = {address: other.life.number for address, other in self.actors.items() if other.life.number}
        life = lost.life._replace(number=self.deaths.lives[who], step=step, ended=ended, others=others)
        actor = self.make(lost, self.rebirth.replica(lost.role), life)
        actor.pace.stop_at = lost.pace.stop_at
        self.actors[who] = actor
        self.wires.replaced(lost)
        for address, other in self.actors.items():
            if address != who and not other.ended:
                self.deliver(other, Joined(life.number, sender=who))
                self._break_off(other)
        for empty in sorted(self.empty):
            self.deliver(actor, Departed(self.actors[empty].life.number, sender=empty))
        if since is None:
            self.rebirth.say(f"{who} joined at {clock(now)}; now {workers(self.workers)}")
        else:
            self.rebirth.say(f"{who} was killed at {clock(since)}; born again after {clock(now - since)}")
        self.begin(actor)

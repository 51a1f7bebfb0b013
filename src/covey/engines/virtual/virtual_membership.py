"""Roles that are lost in virtual time: the run ends, or a lost worker is restarted in its place.

As on real processes, a new process needs some time to start. Where enough others are left they go on without the lost
worker until it is back; else they hear of its next incarnation at once, and wait for it.
"""

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
from covey.membership import Deaths, Departed, Incarnation, Joined, ViewChanged, copies_lost, go_on, too_few, workers
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.membership import MembershipLog
from covey.observe.tally import Teller
from covey.program import Effect, Receive
from covey.strategy import Role

Act = Callable[[RoleProgram, Any], Any]
STARTING = 0.3  # seconds until a new process has started: about what the engine `local` needs


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a run needs so that lost workers are restarted: new replicas, and how often one may die."""

    replica: Callable[[Role], Replica]
    most: int = 2
    say: Callable[[str], None] = lambda line: None
    log: MembershipLog = field(default_factory=MembershipLog)  # of the run, in all its attempts
    least: int = 0  # workers, where a seat may stay empty
    starting: float = STARTING  # seconds, where a fault does not say another number


@dataclass(slots=True, eq=False)
class VirtualMembership:
    """The incarnations of all roles. `make` seats a new one where an older one was, `begin` starts its program."""

    agenda: Agenda
    actors: dict[Address, VirtualActor]
    wires: VirtualLinks
    replacement: Replacement | None
    teller: Teller
    make: Callable[[VirtualActor, Replica, Incarnation], VirtualActor]
    begin: Callable[[VirtualActor], None]
    deliver: Callable[[VirtualActor, Message], None]
    advance: Callable[[RoleProgram, Any], None]
    empty: set[Address] = field(default_factory=set)  # seats that nobody takes for now
    returning: dict[Address, tuple[float, float]] = field(default_factory=dict)  # when these died, and are back
    building: set[Address] = field(default_factory=set)  # whose next incarnations are known to others, not begun
    deaths: Deaths = field(init=False)
    log: MembershipLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.replacement.log if self.replacement else MembershipLog()
        copies = {who: actor.role.copies for who, actor in self.actors.items() if actor.role.copies}
        self.deaths = Deaths(self.replacement.most if self.replacement else 0, copies=copies)

    def opened(self, actor: VirtualActor) -> Coroutine[Effect[Any], Any, None]:
        """The program of a role; where workers are restarted, its rounds can be broken off."""
        program = actor.role.program(actor.node, actor.replica)
        return Breakable(program) if self.replacement and actor.role.together else program

    def watch(self, handlers: dict[type, Act]) -> None:
        """Let no program begin to wait in a round that is broken off."""
        if self.replacement:
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

    def lose(self, who: Address, how: str = "", starting: float = 0.0) -> None:
        """The role's process is gone, with all that it knew; what it has sent still arrives.

        `starting` is the seconds that its next process needs to start; 0: as many as any.
        """
        actor, now = self.actors[who], self.agenda.now
        if self.replacement is None or not (actor.role.trains or actor.role.copies):
            raise PeerLost(how or obituary(now, actor, self.actors), actor.name)
        if actor.role.copies and not any(self.holds(other) for other in actor.role.copies if other != who):
            raise copies_lost(who)
        try:
            # where workers come and go, a new one enters at a step that others have done
            tally = self.teller.tallies.get(who)
            reached = actor.pace.step if not self.replacement.least else tally.samples if tally else 0
            reached = self.teller.samples if actor.role.copies else reached
            pause = self.deaths.note(who, reached, "was killed")
        except PeerLost:
            if not self.replacement.least:
                raise
            return self._leave(who, f"was killed {self.replacement.most + 1} times without a new step")
        starting = starting or self.replacement.starting
        left = sum(self._trains_on(other) for other in self.actors if other != who)
        missed = not actor.role.trains or not self.replacement.least or left < self.replacement.least
        stalled = pause + starting if missed else 0.0
        self.log.add("rebirth", actor.name, "was killed", seconds=now, workers=self.workers, stalled=stalled)
        if not missed:
            self.vacate(actor)
            self.returning[who] = now, now + pause + starting
            self.replacement.say(f"{who} was killed at {clock(now)}; {go_on(left)} until it is back")
            return self.agenda.at(now + pause + starting, self._return, actor, now)
        self._gone(actor)
        self.agenda.at(now + pause, self._replace, actor, (now, now + pause + starting))

    def _await_returning(self) -> None:
        """Too few are left: who died and comes back is waited for from now on."""
        for who in sorted(self.returning):
            self.empty.remove(who)
            self._replace(self.actors[who], self.returning.pop(who))

    def _trains_on(self, who: Address) -> bool:
        """Whether a worker is in this seat now, and has not ended."""
        actor = self.actors[who]
        return actor.role.trains and who not in self.building and not actor.ended

    def leave(self, who: Address, cause: str = "left") -> None:
        """A worker goes, and its seat stays empty until somebody joins; if all others have ended, it is replaced."""
        there = [actor for other, actor in self.actors.items() if actor.role.trains and other not in self.empty]
        others = [actor for actor in there if actor.address != who]
        if others and all(actor.ended and not actor.lost for actor in others):
            return self.lose(who)
        self._leave(who, cause)

    def _leave(self, who: Address, cause: str) -> None:
        assert self.replacement is not None
        actor = self.actors[who]
        left = self.workers - (not self.away(who))
        if left < self.replacement.least:
            raise too_few(who, f"{cause} at {clock(self.agenda.now)}", left, self.replacement.least)
        self.returning.pop(who, None)
        if sum(self._trains_on(other) for other in self.actors if other != who) < self.replacement.least:
            self._await_returning()
        self.vacate(actor)
        self.log.add("leave", actor.name, cause, seconds=self.agenda.now, workers=self.workers)
        self.replacement.say(f"{who} {cause} at {clock(self.agenda.now)}; {go_on(self.workers)}")

    def vacate(self, actor: VirtualActor) -> None:
        """Nobody is in this seat: all others hear of it after what its last worker sent and they have had."""
        if actor.address in self.empty:
            return
        self._gone(actor)
        actor.gone = True
        self.empty.add(actor.address)
        self.wires.replaced(actor)
        for address, other in self.actors.items():
            if address != actor.address and not other.ended:
                self.deliver(other, Departed(actor.incarnation.number, sender=actor.address))
                self._break_off(other)

    def join(self, who: Address) -> None:
        """A new worker takes an empty seat."""
        lost = self.actors[who]
        self.empty.discard(who)
        self.deaths.joined(who)
        self.log.add("join", lost.name, "joined", seconds=self.agenda.now, workers=self.workers)
        self._begin(self._replacement(lost), f"{who} joined at {clock(self.agenda.now)}; now {workers(self.workers)}")

    def away(self, who: Address) -> bool:
        """Whether this seat is empty, and nobody comes back to it by himself."""
        return who in self.empty and who not in self.returning

    def holds(self, who: Address) -> bool:
        """Whether this copy is there, and has what the others have."""
        return not self.actors[who].lost and self.actors[who].settled

    @property
    def ranges(self) -> bool:
        """Whether workers come and go."""
        return self.replacement is not None and self.replacement.least > 0

    @property
    def workers(self) -> int:
        """Seats that are taken, or will be in a moment."""
        return sum(actor.role.trains and not self.away(who) for who, actor in self.actors.items())

    def _gone(self, actor: VirtualActor) -> None:
        self.building.discard(actor.address)
        actor.end()
        actor.lost = True
        actor.replica.weigh(0.0)  # nothing of it is scored

    def _return(self, lost: VirtualActor, since: float) -> None:
        """One that died takes its seat again, where others have gone on meanwhile."""
        who, now = lost.address, self.agenda.now
        if who not in self.returning or self.actors[who] is not lost:
            return  # its seat was given up meanwhile
        del self.returning[who]
        self.empty.remove(who)
        told = f"{who} is back at {clock(now)}, after {clock(now - since)}; now {workers(self.workers)}"
        self._begin(self._replacement(lost), told)

    def _replace(self, lost: VirtualActor, times: tuple[float, float]) -> None:
        """Have all others speak to the next incarnation of a lost role, which begins when its process has started."""
        since, begins = times
        if lost.address not in self.empty and self.actors[lost.address] is lost:
            self.building.add(lost.address)
            self.agenda.at(begins, self._started, self._replacement(lost), since)

    def _started(self, actor: VirtualActor, since: float) -> None:
        if actor.address in self.building and self.actors[actor.address] is actor:
            told = f"replaced after {clock(self.agenda.now - since)}"
            self._begin(actor, f"{actor.address} was killed at {clock(since)}; {told}")

    def _replacement(self, lost: VirtualActor) -> VirtualActor:
        """The next incarnation in a seat, of which all others hear."""
        assert self.replacement is not None
        who = lost.address
        # one that was lost before it could begin knows of the one before, or of the checkpoint
        step = max(0, lost.pace.step, lost.incarnation.step, lost.begun or 0)
        numbers = {address: other.incarnation.number for address, other in self.actors.items()}
        others = {address: number for address, number in numbers.items() if number}
        incarnation = lost.incarnation._replace(number=self.deaths.incarnations[who], step=step, others=others)
        actor = self.make(lost, self.replacement.replica(lost.role), incarnation)
        actor.pace.stop_at = lost.pace.stop_at
        self.actors[who] = actor
        lost.gone = True
        self.wires.replaced(lost)
        for address, other in self.actors.items():
            if address != who and not other.ended:
                self.deliver(other, Joined(incarnation.number, sender=who))
                self._break_off(other)
        for empty in sorted(self.empty):
            self.deliver(actor, Departed(self.actors[empty].incarnation.number, sender=empty))
        return actor

    def _begin(self, actor: VirtualActor, told: str) -> None:
        assert self.replacement is not None
        self.building.discard(actor.address)
        ended = frozenset(address for address, other in self.actors.items() if other.ended and not other.lost)
        actor.incarnation = actor.incarnation._replace(ended=ended)
        self.replacement.say(told)
        self.begin(actor)

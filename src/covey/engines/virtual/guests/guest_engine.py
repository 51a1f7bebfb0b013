"""Virtual time with guests: roles that exist only while they are there, of which there may be a million."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.engines.random_streams import chance
from covey.engines.virtual.agenda import Agenda, few_collections
from covey.engines.virtual.computing import Computing
from covey.engines.virtual.engine import VirtualEngine, VirtualOutcome
from covey.engines.virtual.guests.guest_computing import GroupedWork, GuestComputing
from covey.engines.virtual.guests.guest_faults import GuestFaults
from covey.engines.virtual.guests.guest_links import GuestLinks
from covey.engines.virtual.guests.guest_tally import GuestTeller
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.engines.virtual.run_scores import Score
from covey.engines.virtual.virtual_actor import RoleProgram, VirtualActor
from covey.membership import Departed, Incarnation
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.observe.tally import Tally, Teller
from covey.program import Effect, Node, SavePoint
from covey.simulate import Cluster, Network
from covey.strategy import Plan, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestPlan:
    """Who comes to a run from outside.

    Args:
        role: What they are called.
        count: How many there are; they are numbered from 0.
        visit: The program of one visit, which gives the seconds until the next one.
        window: The first window of a guest that ends after a time, in which it may be there; None: it stays away.
        first: After how many seconds a guest comes for the first time, if it may.
        grouped: Which of their work is done together.
    """

    role: str
    count: int
    visit: Callable[[Node], Coroutine[Effect[Any], Any, float]]
    window: Callable[[int, float], tuple[float, float] | None]
    first: Callable[[int], float]
    grouped: GroupedWork | None = None


Keep = Callable[[VirtualActor, Teller], None]
"""Keeps a role, and what was counted so far."""


def _nobody(message: Message) -> None:
    """Hears of what a guest has taken that is gone."""


GONE: Any = None  # the host of a node whose guest is gone
BACK = 1.0  # seconds after which who was killed is there again


class GuestEngine(VirtualEngine):
    """Runs a plan to which guests come.

    A guest is a role from the beginning of a visit to its end. Where its window ends before that, its program ends,
    what it was sending is lost, and those to whom it had a link hear of it: `Departed`.
    """

    def __init__(
        self, plan: Plan, replicas: Mapping[Address, Replica], cluster: Cluster, instruments: Sequence[Instrument],
        referee: Referee, score: Score | None, guests: GuestPlan, faults: GuestFaults | None = None,
        attempt: VirtualAttempt | None = None, keep: Keep | None = None,
    ) -> None:  # fmt: skip
        """`attempt` says where the run begins; `keep` is called before each step of the role that trains."""
        self._guests, self._faults = guests, faults
        super().__init__(plan, replicas, cluster, instruments, referee, score, attempt=attempt)
        self._own = list(self._actors.values())
        if keep:
            self._keep_between_steps(keep)
        self._visits: dict[int, int] = {}  # how many a guest has begun
        self._windows: dict[int, float] = {}  # when the window ends in which a guest was last
        self._jitter = chance(plan.seed, Address(f"{guests.role}s", 0), "jitter")  # of all guests
        self._away: dict[int, float] = {}  # how long a guest stays away whose visit is over
        if faults:
            faults.attach(self, self._perform, self._links)

    def _keep_between_steps(self, keep: Keep) -> None:
        teller = self._scores.teller
        for actor in self._own:
            if actor.role.trains:
                actor.between = lambda actor: keep(actor, teller)
        self._perform[SavePoint] = lambda thread, effect: thread.actor.between and thread.actor.between(thread.actor)

    @property
    def agenda(self) -> Agenda:
        return self._agenda

    @property
    def actors(self) -> Mapping[Address, VirtualActor]:
        return self._actors

    def _make_teller(self, kept: Sequence[Tally]) -> Teller:
        return GuestTeller(kept, self._guests.role)

    def _make_wires(self, net: Network, window: int) -> GuestLinks:
        self._links = GuestLinks(net, window, self._agenda, self._watch)
        self._links.gone = self._gone
        return self._links

    def _make_computing(self) -> Computing:
        parts = self._cluster, self._agenda, self._watch, self._advance, self._deliver
        slowness = self._faults.slowness if self._faults else None
        return GuestComputing(self._guests.role, self._guests.grouped, slowness, *parts)

    def run(self) -> VirtualOutcome:
        for number in range(self._guests.count):
            self._expect(number, self._agenda.now + self._guests.first(number))
        with few_collections(self._guests.count):
            return super().run()

    def _expect(self, number: int, after: float) -> None:
        """Let a guest come at this time, or as soon as it may then."""
        if window := self._guests.window(number, after):
            self._agenda.at(max(after, window[0]), self._come, number, window[1])

    def _come(self, number: int, until: float) -> None:
        address = Address(self._guests.role, number)
        visit = self._visits[number] = self._visits.get(number, 0) + 1
        role = Role(address, lambda node, replica: self._visit(number, node))
        # a guest has no replica of its own here: whatever trains guests has one for all of them
        actor = VirtualActor(role, self._own[0].replica, self._world, Incarnation(number=visit), jitter=self._jitter)
        self._actors[address] = actor
        if until < math.inf and self._windows.get(number) != until:
            self._windows[number] = until
            self._agenda.at(until, self._end_window, number, until)
        self._agenda.at(self._agenda.now, self._advance, actor.open(role.program(actor.node, actor.replica), main=True))

    async def _visit(self, number: int, node: Node) -> None:
        self._away[number] = await self._guests.visit(node)

    def _wake(self, thread: RoleProgram, value: Any, wire: float = 0.0) -> None:
        if thread.actor.address.role == self._guests.role:  # nobody is told for what a guest has waited
            self._advance(thread, value)
        else:
            super()._wake(thread, value, wire)

    def _finished(self, thread: RoleProgram) -> None:
        actor = thread.actor
        if actor.address.role != self._guests.role:
            return super()._finished(thread)
        thread.done = True
        actor.threads.remove(thread)
        if thread.main:
            self._leave(actor)
            number = actor.address.rank
            self._expect(number, self._agenda.now + max(0.0, self._away.pop(number)))

    def _end_window(self, number: int, until: float) -> None:
        """A guest may no longer be there: if it is, it is lost."""
        actor = self._actors.get(Address(self._guests.role, number))
        if actor is not None:
            self._lose_guest(actor, until)

    def _lose_guest(self, actor: VirtualActor, back: float) -> None:
        """A guest is gone in the middle of its visit; it comes again at this time, or as soon as it may then."""
        known = [other for other in self._own if other.address in actor.links or actor.address in other.links]
        self._leave(actor)
        for other in known:
            self._tell_departed(other, actor.address)
        self._expect(actor.address.rank, back)

    def lose(self, who: Address) -> None:
        """Somebody is killed: a guest comes again after a while, a role of the run's own begins a new incarnation.

        That has the replica and the memories of the one before, as if it had kept both after each change.
        """
        lost = self._actors[who]
        if who.role == self._guests.role:
            return self._lose_guest(lost, self._agenda.now + BACK)
        others = [other for other in self._actors.values() if other.address in lost.links or who in other.links]
        lost.end()
        if all(actor.ended for actor in self._own if actor.role.trains and actor is not lost) and not lost.role.trains:
            self._open -= 1  # nobody needs it any more
            return None
        incarnation = lost.incarnation._replace(number=lost.incarnation.number + 1, step=max(0, lost.pace.step))
        actor = self._replaced(lost, lost.replica, incarnation)
        lost.memories.begin_again()
        actor.memories, actor.between = lost.memories, lost.between
        if lost.role.trains:  # it begins again with the step in which it was lost
            actor.pace.step, actor.pace.stop_at = max(-1, lost.pace.step - 1), lost.pace.stop_at
        self._actors[who] = actor
        lost.gone = True
        self._own[self._own.index(lost)] = actor
        for other in others:
            self._links.forget(lost, [other])
            self._tell_departed(other, who, lost.incarnation.number)
        self._agenda.at(self._agenda.now + BACK, self._start, actor)

    def _start(self, actor: VirtualActor, _: Any) -> None:
        if not actor.ended:
            self._begin(actor)

    def _leave(self, actor: VirtualActor) -> None:
        actor.end()
        actor.gone = True
        del self._actors[actor.address]
        self._links.forget(actor, self._own)
        actor.mailbox.taken = _nobody  # no circle is left that only the garbage collector could find
        actor.node.host = GONE

    def _gone(self, sender: VirtualActor, to: Address) -> bool:
        """Whether a message is for a guest that is not there; its sender then hears that it has departed."""
        if to.role != self._guests.role or to in self._actors:
            return False
        self._tell_departed(sender, to)
        return True

    def _tell_departed(self, other: VirtualActor, gone: Address, incarnation: int | None = None) -> None:
        message = Departed(
            incarnation=self._visits.get(gone.rank, 0) if incarnation is None else incarnation, sender=gone
        )
        self._agenda.at(self._agenda.now, self._hear_departed, other, message)

    def _hear_departed(self, other: VirtualActor, message: Departed) -> None:
        if not other.ended:
            self._links.from_outside(message)
            self._deliver(other, message)

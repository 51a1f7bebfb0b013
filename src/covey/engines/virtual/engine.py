"""The virtual engine: performs the effects of all roles in one process, on an agenda instead of a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop
from random import Random
from typing import Any

from covey.data.stripe_cache import read_counts
from covey.engines.interrupt import interruptible
from covey.engines.virtual.agenda import Agenda, few_collections
from covey.engines.virtual.computing import Computing
from covey.engines.virtual.group_sums import GroupSums
from covey.engines.virtual.run_faults import EngineParts, VirtualAttempt
from covey.engines.virtual.run_scores import RunScores, Score
from covey.engines.virtual.stall import blame, picture
from covey.engines.virtual.virtual_actor import WAIT, MessageInFlight, RoleProgram, VirtualActor, VirtualWorld, received
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.engines.virtual.virtual_membership import VirtualMembership
from covey.errors import Stalled
from covey.membership import Incarnation
from covey.message import Address, Message, check_finite
from covey.model.replica import Replica
from covey.model.scored import Snapshot
from covey.observe.instruments import Instrument, Instruments
from covey.observe.membership import MembershipEvent
from covey.observe.referee import Referee
from covey.observe.result import Stopped
from covey.observe.tally import Tally, Teller
from covey.program import Collective, Compute, Note, Now, Receive, SavePoint, Send, Sleep, Spawn
from covey.simulate import Cluster, Network, network
from covey.strategy import Plan


class Handlers(dict[type, Callable[[RoleProgram, Any], Any]]):
    """How each effect is performed."""

    def __missing__(self, kind: type) -> Any:
        raise TypeError(f"a program awaited a {kind.__name__}; it may only await what covey.program lists")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualOutcome:
    """What came of a run; the snapshots are those that make the scored model."""

    seconds: float
    samples: int
    stopped: Stopped
    snapshots: list[Snapshot]
    tallies: dict[Address, Tally]
    membership: list[MembershipEvent]


class VirtualEngine:
    """Runs a plan in virtual time. The same plan, replicas and cluster give the same run, event for event."""

    def __init__(
        self, plan: Plan, replicas: Mapping[Address, Replica], cluster: Cluster, instruments: Sequence[Instrument],
        referee: Referee, score: Score | None = None, formulas_from: int | None = None,
        attempt: VirtualAttempt | None = None,
    ) -> None:  # fmt: skip
        cluster.check(len(plan.limits))
        attempt = attempt or VirtualAttempt()
        self._cluster, self._attempt = cluster, attempt
        teller = self._make_teller(attempt.tallies)
        self._actors: dict[Address, VirtualActor] = {}
        self._watch = Instruments([teller, *instruments])
        self._agenda = Agenda(attempt.clock)
        self._scores = RunScores(plan, self._actors, teller, self._agenda, referee, score)
        self._wires = self._make_wires(network(cluster), plan.window)
        self._wires.allowance = plan.allowance
        self._computing = self._make_computing()
        self._together = GroupSums(cluster, self._agenda, self._watch, self._wake, formulas_from)
        self._world = VirtualWorld(plan, self._agenda, self._wires, self._actors, self._deliver)
        self._undrawn = None if cluster.jitter else Random(0)  # from which nobody draws: one does for all
        leased, elastic = plan.least > 0, attempt.replacement is not None
        incarnation = Incarnation(
            elastic=elastic, leased=leased, replicas=plan.replicas, resumed=leased and bool(attempt.states)
        )
        for role in plan.roles:
            who, kept = role.address, attempt.states.get(role.address)
            self._actors[who] = VirtualActor(role, replicas[who], self._world, incarnation, kept, self._undrawn)
        self._members = VirtualMembership(
            self._agenda, self._actors, self._wires, attempt.replacement, teller, self._replaced, self._begin,
            self._deliver, self._advance,
        )  # fmt: skip
        self._wires.connect(self._actors, self._arrived, self._admitted)
        for actor in self._actors.values():
            plan.check(actor.role, actor.replica)
        self._open = len(self._actors)
        agenda = self._agenda
        self._perform = Handlers({
            Send: self._wires.send, Receive: self._receive, Compute: self._computing.ask, Collective: self._collective,
            Sleep: self._sleep, Now: lambda thread, effect: agenda.now, Note: self._note, Spawn: self._spawn,
            SavePoint: lambda thread, effect: None,
        })  # fmt: skip
        self._scores.attach(self._perform)
        self._members.watch(self._perform)
        parts = EngineParts(
            self._agenda, self._actors, self._wires, self._computing, teller, self._advance, self._members
        )
        attempt.attach(parts, self._perform, cluster.kills)
        self._scores.keeper = attempt.keeper

    def _make_teller(self, kept: Sequence[Tally]) -> Teller:
        return Teller(kept)

    def _make_wires(self, net: Network, window: int) -> VirtualLinks:
        return VirtualLinks(net, window, self._agenda, self._watch)

    def _make_computing(self) -> Computing:
        return Computing(self._cluster, self._agenda, self._watch, self._advance, self._deliver)

    def _replaced(self, lost: VirtualActor, replica: Replica, incarnation: Incarnation) -> VirtualActor:
        """The next incarnation of a lost role, on the same machine."""
        actor = VirtualActor(lost.role, replica, self._world, incarnation, jitter=self._undrawn)
        actor.machine = lost.machine
        return actor

    def _begin(self, actor: VirtualActor) -> None:
        self._agenda.at(self._agenda.now, self._advance, actor.open(self._members.opened(actor), main=True))

    def run(self) -> VirtualOutcome:
        """Perform the plan to its end; the initial weights are scored before, where there is a score."""
        with few_collections(len(self._actors)):
            return self._run()

    def _run(self) -> VirtualOutcome:
        if reads := self._attempt.reads:
            machines = [actor.machine for actor in self._actors.values() if actor.replica.batch_source.reads]
            reads.settle({machine: self._cluster.link_of(machine) for machine in machines})
            self._computing.reads = reads
        if not self._attempt.states and self._scores.begin():
            return self._outcome()
        for actor in self._actors.values():
            self._begin(actor)
        try:
            with interruptible(lambda: self._agenda.at(self._agenda.now, self._scores.stop, "interrupted")):
                agenda, empty = self._agenda, self._members.empty
                due = agenda.due
                while self._open > len(empty):
                    if len(due) == agenda.outside:  # nothing more will happen by itself
                        self._attempt.check_lost()
                        raise Stalled(picture(agenda.now, self._actors))
                    agenda.now, _, act, subject, value = heappop(due)
                    act(subject, value)
            self._attempt.check_lost()
            self._scores.end()
        finally:
            for actor in self._actors.values():
                actor.close()
        return self._outcome()

    def _outcome(self) -> VirtualOutcome:
        scores = self._scores
        return VirtualOutcome(
            seconds=self._agenda.now, samples=scores.teller.samples, stopped=scores.stopped or "budget",
            snapshots=scores.model(), tallies=scores.teller.tallies, membership=self._members.log.events,
        )  # fmt: skip

    def _advance(self, thread: RoleProgram, value: Any) -> None:
        """Run a program until it has to wait, or is through."""
        if thread.done:
            return
        thread.want = None
        resume, perform = thread.resume, self._perform
        try:
            while value is not WAIT:
                try:
                    effect = resume(value)
                except StopIteration:  # only the program's own: work that runs dry raises the same
                    return self._finished(thread)
                value = perform[type(effect)](thread, effect)
        except (Exception, SystemExit) as error:
            blame(error, thread.actor.name, self._agenda.now)
            raise

    def _wake(self, thread: RoleProgram, value: Any, wire: float = 0.0) -> None:
        """Go on after a wait; `wire` seconds of it, at most, the awaited thing was on its way."""
        now = self._agenda.now
        waited = now - thread.since
        if thread.main and waited > 0 and not thread.done:
            watch = self._watch
            what = thread.waits_for() if watch.explained else ""
            watch.waited(thread.since, now, thread.actor.address, what, wire if wire < waited else waited)
        self._advance(thread, value)

    def _finished(self, thread: RoleProgram) -> None:
        thread.done = True
        actor = thread.actor
        actor.threads.remove(thread)
        if not thread.main:
            return
        actor.end()
        self._open -= 1
        for loss in actor.replica.compute.losses.told(every=True):  # those of a GPU may come after their steps
            self._watch.noted(self._agenda.now, actor.address, "loss", loss)
        self._watch.noted(self._agenda.now, actor.address, "memory", actor.footprint())
        read = read_counts.notes()
        for kind, size in (self._attempt.reads.notes(actor.name) if self._attempt.reads else read).items():
            self._watch.noted(self._agenda.now, actor.address, kind, size)
        self._watch.ended(self._agenda.now, actor.address)
        self._scores.role_ended()

    def _admitted(self, thread: RoleProgram) -> None:
        # The link was full all that time: the whole wait is exchange.
        self._wake(thread, None, wire=self._agenda.now - thread.since)

    def _receive(self, thread: RoleProgram, want: Receive) -> Any:
        actor = thread.actor
        if actor.mailbox.waiting and (message := actor.mailbox.take(want)) is not None:
            return message if want.into is None else received(message, want)
        thread.want, thread.since = want, self._agenda.now
        thread.turn += 1
        actor.waiting.append(thread)
        if self._wires.full:
            self._wires.awaited(actor)
        if want.timeout is not None:
            self._agenda.at(self._agenda.now + max(0.0, want.timeout), self._timed_out, thread, thread.turn)
        return WAIT

    def _timed_out(self, thread: RoleProgram, turn: int) -> None:
        if thread.turn == turn and thread in thread.actor.waiting:
            thread.actor.waiting.remove(thread)
            self._wake(thread, None)

    def _arrived(self, flight: MessageInFlight, _: Any = None) -> None:
        link, message = flight.link, flight.message
        if link.latest:
            link.landed(flight)
        actor, sender = link.receiver, link.sender
        if actor.ended or sender.gone:
            return self._wires.dropped(flight)
        if flight.carries:
            check_finite(message, actor.address)
        actor.heard[sender.address] = now = self._agenda.now
        if self._watch.follows:
            self._watch.delivered(now, sender.address, actor.address, message, flight.payload)
        link.under_way -= flight.weight
        if not link.line:  # nobody waits for room: what is taken at once need not be laid down
            for thread in actor.waiting:
                want: Any = thread.want  # a Receive
                if want.matches(message):
                    actor.waiting.remove(thread)
                    taken = message if want.into is None else received(message, want)
                    return self._wake(thread, taken, now - flight.left_at)
        link.unread += flight.weight
        if not link.line:
            actor.mailbox.waiting.append(message)
        else:
            self._wires.look(link)
            self._deliver(actor, message, now - flight.left_at)
        return None

    def _deliver(self, actor: VirtualActor, message: Message, wire: float = 0.0) -> None:
        """Hand a message to the program that waits for it, or lay it in the mailbox."""
        for thread in actor.waiting:
            want = thread.want
            assert isinstance(want, Receive)
            if want.matches(message):
                actor.waiting.remove(thread)
                self._wires.taken(actor, message)
                return self._wake(thread, received(message, want), wire)
        actor.mailbox.put(message)

    def _collective(self, thread: RoleProgram, effect: Collective) -> Any:
        if not self._together.takes(thread, effect):
            return False
        self._wires.awaited(thread.actor)
        return WAIT

    def _sleep(self, thread: RoleProgram, effect: Sleep) -> Any:
        thread.block(self._agenda.now, effect)
        self._agenda.at(self._agenda.now + max(0.0, effect.seconds), self._wake, thread, None)
        return WAIT

    def _note(self, thread: RoleProgram, effect: Note) -> None:
        self._watch.noted(self._agenda.now, thread.actor.address, effect.kind, effect.value)
        if effect.kind == "samples":
            self._scores.noted_samples()
        elif effect.kind == "resumed":
            thread.actor.settled = True

    def _spawn(self, thread: RoleProgram, effect: Spawn) -> None:
        self._agenda.at(self._agenda.now, self._advance, thread.actor.open(effect.program, main=False))

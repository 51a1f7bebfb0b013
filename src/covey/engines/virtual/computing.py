"""Work in virtual time: it runs at once, and its result is due after the time of the cluster model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from covey.data.stripe_cache.virtual_reads import VirtualReads
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.interrupted_work import Asked, InterruptedWork
from covey.engines.virtual.stall import blame
from covey.engines.virtual.virtual_actor import WAIT, RoleProgram, VirtualActor
from covey.message import Message
from covey.observe.instruments import Instrument
from covey.program import Compute
from covey.simulate.cluster import Cluster

Later = Callable[[Any, Any], None]
Moment = tuple[float, Later, Any, Any]
"""When, if nothing else takes the role's cores, and what to call then with which two things."""


@dataclass(frozen=True, slots=True)
class WorkStretch:
    """Work that talks, between two questions: how long all of it takes, how much is done, when this part began."""

    thread: RoleProgram
    duration: float
    done: float = 0.0
    begin: float = 0.0


class Computing:
    """The compute of every role: one piece of work at a time, in the order of asking."""

    shares: ClassVar[bool] = False
    """Whether work shares cores with other work, so that nobody knows yet when it ends."""

    def __init__(self, cluster: Cluster, agenda: Agenda, watch: Instrument, resume: Later, deliver: Later) -> None:
        self._cluster, self._agenda, self._watch = cluster, agenda, watch
        self._resume, self._deliver = resume, deliver
        self.slowness: Callable[[VirtualActor], float] | None = None  # by how much faults slow a worker down now
        self.reads: VirtualReads | None = None  # what reading samples takes, where the cluster says so

    def ask(self, thread: RoleProgram, effect: Compute[Any]) -> object:
        """Begin the work, or get in line behind what the role computes already; its program waits for the result."""
        thread.want, thread.since = effect, self._agenda.now
        thread.turn += 1
        if thread.actor.compute.busy:
            thread.actor.compute.line.append((thread, effect))
        else:
            self._begin(thread, effect)
        return WAIT

    def _begin(self, thread: RoleProgram, effect: Compute[Any]) -> None:
        """Begin the work when its samples are there."""
        thread.actor.compute.busy = True
        if effect.reads is None or self.reads is None:
            return self._start(thread, effect)
        actor, now = thread.actor, self._agenda.now
        at = self.reads.read(now, actor.name, actor.machine, effect.reads())
        if at > now:
            self._agenda.at(at, self._read, thread, (now, effect))
        else:
            self._start(thread, effect)

    def _read(self, thread: RoleProgram, asked: tuple[float, Compute[Any]]) -> None:
        """The samples are there. On real processes the compute thread reads them, so it counts as computing."""
        begin, effect = asked
        if not thread.actor.ended:
            self._watch.computed(begin, self._agenda.now, thread.actor.address)
            self._start(thread, effect)

    def _start(self, thread: RoleProgram, effect: Compute[Any]) -> None:
        """Do the work now, with the weights as they are; its result and its posts come in their time."""
        actor = thread.actor
        if effect.talks:
            actor.compute.talk = InterruptedWork(effect.work)
            self._stretch(WorkStretch(thread, self._duration(actor, effect)), None)
            return
        begin = self._agenda.now
        result, posts = self._do(actor, effect.work)
        end = begin + self._duration(actor, effect)
        if posts or self.shares:
            late = [(min(end, begin + done * (end - begin)), self._deliver, actor, it) for it, done in posts]
            self._take(actor, (end, self._end, thread, (begin, result)), late)
        else:
            self._agenda.at(end, self._end, thread, (begin, result))

    def _take(self, actor: VirtualActor, end: Moment, posts: Sequence[Moment]) -> None:
        """Let the end of the work come, and what it posts before.

        The result comes before a post of the same moment: who got the last bucket finds the batch complete.
        """
        self._agenda.at(*end)
        for moment in posts:
            self._agenda.at(*moment)

    def _do(self, actor: VirtualActor, work: Callable[[], Any]) -> tuple[Any, list[tuple[Message, float]]]:
        """The result of work, and what it posted."""
        compute = actor.compute
        posts: list[tuple[Message, float]] = []
        compute.posts = posts
        try:
            return work(), posts
        except (Exception, SystemExit) as error:
            blame(error, actor.name, self._agenda.now)
            raise
        finally:
            compute.posts = None

    # -- work that asks in its middle ---------------------------------------------------------------------------------

    def _stretch(self, stretch: WorkStretch, answer: Any) -> None:
        """Do the work up to its next question, which is then asked in its time, or up to its end."""
        thread, begin = stretch.thread, self._agenda.now
        actor, talk = thread.actor, thread.actor.compute.talk
        assert talk is not None
        said, posts = self._do(actor, lambda: talk.go_on(answer))
        if not isinstance(said, Asked):
            actor.compute.talk = None
            if said.error is not None:
                blame(said.error, actor.name, begin)
                raise said.error
        done = max(stretch.done, said.progress) if isinstance(said, Asked) else 1.0
        until = begin + (done - stretch.done) * stretch.duration
        if isinstance(said, Asked):
            end: Moment = (until, self._ask, WorkStretch(thread, stretch.duration, done, begin), said)
        else:
            end = (until, self._end, thread, (begin, said.result))
        reached = [begin + max(0.0, progress - stretch.done) * stretch.duration for _, progress in posts]
        messages = [message for message, _ in posts]
        self._take(
            actor, end, [(min(until, at), self._deliver, actor, it) for at, it in zip(reached, messages, strict=True)]
        )

    def _ask(self, stretch: WorkStretch, asked: Asked) -> None:
        """Run the program that finds the answer, beside the role's others."""
        actor, since = stretch.thread.actor, self._agenda.now
        if since > stretch.begin:
            self._watch.computed(stretch.begin, since, actor.address)

        async def find() -> None:
            answer = await asked.program
            if self._agenda.now > since:
                self._watch.waited(since, self._agenda.now, actor.address, "an answer for its work", 0.0)
            self._agenda.at(self._agenda.now, self._stretch, stretch, answer)

        self._resume(actor.open(find(), main=False), None)

    def _end(self, thread: RoleProgram, begun: tuple[float, Any]) -> None:
        begin, result = begun
        actor = thread.actor
        if actor.ended:
            return
        if (now := self._agenda.now) > begin:
            self._watch.computed(begin, now, actor.address)
        self._resume(thread, result)
        compute = actor.compute
        compute.busy = False
        while compute.line and not compute.busy:
            waiting, effect = compute.line.pop(0)
            if not waiting.done:
                self._begin(waiting, effect)

    def _duration(self, actor: VirtualActor, effect: Compute[Any]) -> float:
        cluster = self._cluster
        if actor.role.trains:
            rank = actor.address.rank
            usual = cluster.compute_time(rank, effect.load, actor.compute.jitter)
            if effect.prepares:
                usual += cluster.prepare * effect.prepares * cluster.slowdowns.get(rank, 1.0)
            return usual if self.slowness is None else usual * self.slowness(actor)
        held = actor.replica.snapshot().params.nbytes if cluster.update else 0
        return cluster.update * held * effect.load + cluster.prepare * effect.prepares

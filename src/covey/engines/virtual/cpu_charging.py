"""The virtual engine where also covey's own work takes time: messages, sums and steps, on cores that roles share.

As on real processes, a role has three threads: one drives its programs and handles its messages, one computes, and one
belongs to the network. Each does one thing after the other; all of one machine share its cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, partial
from math import ceil
from typing import Any

from covey.engines.cluster.placement import place, sites_of
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.computing import Computing, Moment
from covey.engines.virtual.cores import Cores, RoleThread
from covey.engines.virtual.effort import Effort
from covey.engines.virtual.engine import VirtualEngine, VirtualOutcome
from covey.engines.virtual.stall import blame
from covey.engines.virtual.virtual_actor import WAIT, MessageInFlight, RoleProgram, VirtualActor, VirtualLink
from covey.engines.virtual.virtual_links import Later, VirtualLinks
from covey.membership import Incarnation
from covey.message import Message, vectors
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.program import Effect, Note, Now, SavePoint, Send
from covey.simulate import Cluster, Network
from covey.simulate.machines import FREE, CpuTime, machine_name

REPORTS = 0.02  # seconds between two reports of a role to its launcher
PIECE = 2 << 20  # bytes: larger messages are worked on piece by piece, while others of their pieces travel
PORTION = 5e-3  # seconds: and so are those that take longer on their link, whose bytes leave and come in small portions


class RoleThreads:
    """The threads of one role."""

    __slots__ = ("cores", "debt", "driver", "network", "reported")

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.driver, self.network = RoleThread(cores), RoleThread(cores)
        self.debt = 0.0  # CPU time of what the program has done since its last effect
        self.reported = 0.0


class SharedComputing(Computing):
    """Compute that has to share the cores of its machine."""

    shares = True
    desks: Mapping[VirtualActor, RoleThreads]

    def _take(self, actor: VirtualActor, end: Moment, posts: Sequence[Moment]) -> None:
        early = sorted((post for post in posts if post[0] < end[0]), key=lambda moment: moment[0])
        late = [post for post in posts if post[0] >= end[0]]
        self._next(actor, deque([*early, end, *late]), self._agenda.now)

    def _next(self, actor: VirtualActor, moments: deque[Moment], before: float) -> None:
        work, width = moments[0][0] - before, self._cluster.threads if actor.role.trains else 1
        self.desks[actor].cores.run(work, width, self._came, actor, moments)

    def _came(self, actor: VirtualActor, moments: deque[Moment]) -> None:
        when, act, subject, value = moments.popleft()
        if moments:
            self._next(actor, moments, when)
        act(subject, value)


class ChargedLinks(VirtualLinks):
    """Links whose two ends have to work for every message."""

    desks: Mapping[VirtualActor, RoleThreads]
    tolls: Mapping[bool, CpuTime]  # whether it stays on its machine

    def __init__(self, net: Network, window: int, agenda: Agenda, watch: Instrument, cluster: Cluster) -> None:
        super().__init__(net, window, agenda, watch)
        self._order: dict[
            tuple[VirtualLink, int], deque[MessageInFlight]
        ] = {}  # what is under way with each priority, as it left
        self._portion = cache(partial(_portion, cluster))

    def _choose_ways(self) -> None:
        super()._choose_ways()
        self._before = self._let_out  # which lets it depart: a sender has to work for it

    def _depart(self, flight: MessageInFlight, _: Any = None) -> None:
        """The first piece is worked on before it leaves, the others while it travels."""
        first, rest = self._pieces(flight)
        flight.stages = 1 + (rest > 0)
        self._order.setdefault((flight.link, flight.priority), deque()).append(flight)
        self.desks[flight.link.sender].network.do(first, self._gone, flight, rest)

    def _gone(self, flight: MessageInFlight, rest: float) -> None:
        super()._depart(flight)
        if rest:
            self.desks[flight.link.sender].network.do(rest, self._through, flight, first=True)
            self.desks[flight.link.receiver].network.do(rest, _nothing, None)

    @property
    def _land(self) -> Later:
        return self._through

    def _through(self, flight: MessageInFlight, _: Any = None) -> None:
        """It has crossed the network, or its sender has worked through all of it: when both is done it is there.

        A short one waits for the long ones that left before it.
        """
        flight.stages -= 1
        order = self._order[flight.link, flight.priority]
        while order and not order[0].stages:
            first = order.popleft()
            self.desks[first.link.receiver].network.do(self._pieces(first)[0], self._arrive, first)

    def _pieces(self, flight: MessageInFlight) -> tuple[float, float]:
        inside = flight.src == flight.dst
        toll, portion = self.tolls[inside], PIECE if inside else self._portion(flight.src, flight.dst)
        first = min(flight.size, portion)
        return toll.of(first), toll.byte * (flight.size - first)


def _portion(cluster: Cluster, src: str, dst: str) -> int:
    """The bytes of a message that are worked on before they leave, or after they have come, as a whole."""
    rate = min(cluster.link_of(src).outward, cluster.link_of(dst).goodput)
    return ceil(min(PIECE, PORTION * rate))


class CpuChargingEngine(VirtualEngine):
    """Runs a plan in virtual time, and charges what the cluster says of messages, sums, steps and shared cores."""

    _computing: SharedComputing
    _wires: ChargedLinks

    def _settle(self) -> None:
        """Give every role its machine and its threads."""
        cluster = self._cluster
        self._effort = Effort(cluster)
        # Machines do not begin their periods together, or roles would march in step with them.
        many = len(cluster.machines)
        machines = [Cores(self._agenda, machine, place / many) for place, machine in enumerate(cluster.machines)]
        sites = sites_of([machine_name(number) for number in range(len(machines))])
        homes = place(self._world.plan.roles, sites, cluster.place) if sites else {}
        self._desks: dict[VirtualActor, RoleThreads] = {}
        own: dict[str, Cores] = {}
        for address, actor in self._actors.items():
            if address in homes:
                actor.machine = homes[address].host
                self._desks[actor] = RoleThreads(machines[homes[address].number])
            else:
                self._desks[actor] = RoleThreads(own.setdefault(actor.host, Cores(self._agenda, None)))
        self._computing.desks = self._wires.desks = self._desks
        self._wires.moved()
        self._wires.tolls = {True: cluster.local.cpu if cluster.local else FREE, False: cluster.link.cpu}

    def _replaced(self, lost: VirtualActor, replica: Replica, incarnation: Incarnation) -> VirtualActor:
        actor = super()._replaced(lost, replica, incarnation)
        self._desks[actor] = RoleThreads(self._desks[lost].cores)
        return actor

    def _make_wires(self, net: Network, window: int) -> VirtualLinks:
        return ChargedLinks(net, window, self._agenda, self._watch, self._cluster)

    def _make_computing(self) -> Computing:
        return SharedComputing(self._cluster, self._agenda, self._watch, self._resumed, self._posted)

    def run(self) -> VirtualOutcome:
        self._settle()
        with self._effort.watching():
            return super().run()

    def _work(
        self, actor: VirtualActor, seconds: float, act: Any, subject: Any, value: Any, first: bool = False
    ) -> None:
        """Have the role's driver do something."""
        threads = self._desks[actor]
        if self._agenda.now - threads.reported >= REPORTS:
            threads.reported = self._agenda.now
            seconds += self._cluster.handling.report
        threads.driver.do(seconds, act, subject, value, first)

    def _advance(self, thread: RoleProgram, value: Any) -> None:
        """Run a program until it has to wait; its arithmetic is charged before its next effect."""
        threads = self._desks[thread.actor]
        if value is not WAIT:
            thread.want = None
        try:
            while value is not WAIT and not thread.done:
                try:
                    with self._effort:
                        effect = thread.program.send(value)
                except StopIteration:
                    threads.debt += self._effort.take()
                    return self._work(thread.actor, threads.debt, self._ended, thread, None, first=True)
                threads.debt += self._effort.take()
                value = self._asked(thread, effect, threads)
        except (Exception, SystemExit) as error:
            blame(error, thread.actor.name, self._agenda.now)
            raise

    def _asked(self, thread: RoleProgram, effect: Effect[Any], threads: RoleThreads) -> Any:
        """Perform an effect once the work for it is done; what costs nothing and waits for nothing comes at once."""
        if isinstance(effect, Note) or (isinstance(effect, Now | SavePoint) and not threads.debt):
            return self._perform[type(effect)](thread, effect)
        cost, threads.debt = threads.debt, 0.0
        if isinstance(effect, Send):
            toll, size = self._cluster.handling.send, sum(vector.nbytes for vector in vectors(effect.body))
            cost += toll.of(0 if effect.loan else size)
        if not cost:
            return self._perform[type(effect)](thread, effect)
        self._work(thread.actor, cost, self._performed, thread, effect, first=True)
        return WAIT

    def _ended(self, thread: RoleProgram, _: Any) -> None:
        if not thread.done:
            self._finished(thread)

    def _performed(self, thread: RoleProgram, effect: Effect[Any]) -> None:
        if not thread.done:
            self._advance(thread, self._perform[type(effect)](thread, effect))

    def _arrived(self, flight: MessageInFlight, _: Any = None) -> None:
        self._work(flight.link.receiver, self._cluster.handling.receive.of(flight.size), super()._arrived, flight, None)

    def _resumed(self, thread: RoleProgram, value: Any) -> None:
        """Compute is done: its program goes on when the driver comes to it."""
        self._work(thread.actor, 0.0, self._advance, thread, value)

    def _posted(self, actor: VirtualActor, message: Message) -> None:
        self._work(actor, 0.0, self._deliver, actor, message)


def _nothing(_: Any, __: Any) -> None:
    pass

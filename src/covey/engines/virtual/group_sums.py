"""Sums of large groups in timing-only runs: a formula gives the time at which each member continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.virtual_actor import RoleProgram
from covey.exchange.collectives.ring_slices import ring_sent, ring_slices
from covey.exchange.collectives.sums import ring
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.program import Collective
from covey.simulate.around import ring_ends
from covey.simulate.cluster import Cluster

LARGE = 65  # ranks: below, every message is sent

Waiting = dict[Address, RoleProgram]


class RingSum(Message):
    """Stands for all that a rank sends in a ring, in the account of traffic."""

    wire_name = "together.ring_sum"


class GroupSums:
    """The sums that wait for their last member."""

    def __init__(
        self, cluster: Cluster, agenda: Agenda, watch: Instrument, wake: Callable[[RoleProgram, Any], None],
        large: int | None,
    ) -> None:  # fmt: skip
        self._cluster, self._agenda, self._watch, self._wake = cluster, agenda, watch, wake
        self._large = large  # None: no sum is charged by a formula
        self._waiting: dict[tuple[Address, int], Waiting] = {}

    def takes(self, thread: RoleProgram, effect: Collective) -> bool:
        """Whether this sum is charged by its formula; its member then waits until it is woken."""
        group = effect.group
        if self._large is None or len(group) < self._large or effect.fallback is not ring or self._cluster.charges_cpu:
            return False
        key = group[0], len(group)  # a rank is in one sum at a time, so its group cannot be in two
        waiting = self._waiting.setdefault(key, {})
        thread.block(self._agenda.now, effect)
        waiting[thread.actor.address] = thread
        if len(waiting) == len(group):
            del self._waiting[key]
            self._sum(effect, [waiting[member] for member in group])
        return True

    def _sum(self, effect: Collective, members: list[RoleProgram]) -> None:
        sizes = ring_slices(effect.vector, len(members))
        links = [self._cluster.link_of(thread.actor.host) for thread in members]
        ends = ring_ends([thread.since for thread in members], links, sizes)
        now = self._agenda.now
        self._watch.noted(now, members[0].actor.address, "rings by formula", 1)
        for place, (thread, end, size) in enumerate(zip(members, ends, ring_sent(sizes), strict=True)):
            onward = members[(place + 1) % len(members)].actor.address
            self._watch.sent(now, thread.actor.address, onward, RingSum(), size)
            # no member has the sum before the last has come
            self._agenda.at(max(end, now), self._wake, thread, True)

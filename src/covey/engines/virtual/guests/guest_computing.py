"""How guests compute: each takes the time of its own machine, and what many of them compute is done together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey.engines.virtual.computing import Computing
from covey.engines.virtual.virtual_actor import RoleProgram, VirtualActor
from covey.program import Compute
from covey.simulate import Cluster


@dataclass(frozen=True, slots=True)
class GroupedWork:
    """Work of guests that can be done together: of which kind it is, and what gives the results of several pieces."""

    kind: type
    do: Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(slots=True, eq=False)
class PendingWork:
    """Work whose result is due later, and may be computed at any time until then."""

    thread: RoleProgram
    begin: float
    work: Callable[[], Any]
    result: Any = None


class GuestComputing(Computing):
    """The compute of all roles, in which work that guests do together waits until the first result of it is due.

    Then all of it is done at once, except that of guests who have gone meanwhile.
    """

    def __init__(
        self, role: str, grouped: GroupedWork | None, slowed: Callable[[str], float] | None, cluster: Cluster,
        *parts: Any,
    ) -> None:  # fmt: skip
        super().__init__(cluster, *parts)
        self._role, self._grouped, self._slowed = role, grouped, slowed
        self._pending: dict[PendingWork, None] = {}  # in the order in which it began

    def _duration(self, actor: VirtualActor, effect: Compute[Any]) -> float:
        if actor.address.role != self._role:
            return super()._duration(actor, effect)
        usual = self._cluster.compute_time(actor.address.rank, effect.load, actor.compute.jitter)
        return usual * self._slowed(actor.name) if self._slowed else usual

    def _begin(self, thread: RoleProgram, effect: Compute[Any]) -> None:
        actor = thread.actor
        if self._grouped is None or type(effect.work) is not self._grouped.kind:
            return super()._begin(thread, effect)
        actor.compute.busy = True
        pending = PendingWork(thread, self._agenda.now, effect.work)
        self._pending[pending] = None
        self._agenda.at(self._agenda.now + self._duration(actor, effect), self._due, pending)

    def _due(self, pending: PendingWork, _: Any) -> None:
        if pending.thread.done:  # its guest has gone
            self._pending.pop(pending, None)
            return
        if pending in self._pending:
            self._do_all(pending.thread.actor)
        self._end(pending.thread, (pending.begin, pending.result))

    def _do_all(self, actor: VirtualActor) -> None:
        """Do all work that has begun; `actor` is whose result is due."""
        assert self._grouped is not None
        waiting = [pending for pending in self._pending if not pending.thread.done]
        self._pending.clear()
        works, do = [pending.work for pending in waiting], self._grouped.do
        results, _ = self._do(actor, lambda: do(works))
        for pending, result in zip(waiting, results, strict=True):
            pending.result = result

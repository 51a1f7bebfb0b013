"""The model after a certain step, in virtual time: each worker's part is copied as it comes there, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.engines.virtual.virtual_actor import RoleProgram, VirtualActor
from covey.message import Address
from covey.model.scored import Snapshot
from covey.observe.referee import Referee
from covey.observe.tally import Teller
from covey.program import Compute
from covey.strategy.roles import Role, leader

Handler = Callable[[RoleProgram, Any], Any]


class ScoredStates:
    """Copies a worker's part before it computes its next gradient, and all other parts when the last one does so.

    Then every worker has the result of the steps before, and no server has a later one: that needs all workers.
    """

    def __init__(
        self, actors: Mapping[Address, VirtualActor], shown: Sequence[Role], teller: Teller, referee: Referee,
        judge: Callable[[list[Snapshot], int], None],
    ) -> None:  # fmt: skip
        self._actors, self._shown, self._teller, self._referee = actors, shown, teller, referee
        self._judge = judge
        self._parts = {role.address for role in shown}
        self._came: dict[Address, tuple[int, Snapshot | None]] = {}  # its samples, and its part of the model
        self._missing: VirtualActor | None = None  # one that had not come when this was last looked at

    def attach(self, handlers: dict[type, Handler]) -> None:
        """Look at each gradient that is asked for, where scores are due after certain steps."""
        if self._referee.steps is None:
            return
        compute = handlers[Compute]

        def look(thread: RoleProgram, effect: Any) -> Any:
            self._reached(thread.actor)
            return compute(thread, effect)

        handlers[Compute] = look

    def now(self) -> list[Snapshot]:
        """The model as it is; one that is lost shows no counters."""
        parts = [(role, self._actors[role.address]) for role in self._showing()]
        return [_part(actor) for role, actor in parts if role.scored or not actor.lost]

    def _showing(self) -> list[Role]:
        """Those that show their parts; of the copies of a server, the one that leads."""
        incarnations = {who: actor.incarnation.number for who, actor in self._actors.items()}
        there = {who for who, actor in self._actors.items() if actor.settled and not actor.lost}
        return [role for role in self._shown if role.address == leader(role, there, incarnations)]

    def spread(self, score: float | None) -> None:
        """Let all roles know the last score, where a scheduler follows it."""
        if score is not None:
            for actor in self._actors.values():
                actor.replica.progress.hear(score)

    def ended(self) -> None:
        """A worker that has ended is not waited for."""
        if self._came:
            self._look()

    def _reached(self, actor: VirtualActor) -> None:
        step = self._referee.next_step
        if step is None or not actor.role.trains or actor.pace.step < step or actor.address in self._came:
            return
        mine = actor.address in self._parts
        self._came[actor.address] = self._samples(actor), _part(actor) if mine else None
        self._look()

    def _look(self) -> None:
        """Score when no worker is missing; of thousands, one that was is looked at first."""
        step, last = self._referee.next_step, self._missing
        if step is None or (last and self._actors.get(last.address) is last and self._misses(last)):
            return
        trainers = [actor for actor in reversed(list(self._actors.values())) if actor.role.trains]
        self._missing = next(filter(self._misses, trainers), None)
        if self._missing:
            return
        came, self._came = self._came, {}
        samples = sum(came[actor.address][0] if actor.address in came else self._samples(actor) for actor in trainers)
        showing = self._showing()
        parts = [came.get(role.address, (0, None))[1] or _part(self._actors[role.address]) for role in showing]
        self._referee.passed(step)
        self._judge(parts, samples)

    def _misses(self, actor: VirtualActor) -> bool:
        return actor.address not in self._came and not _over(actor)

    def _samples(self, actor: VirtualActor) -> int:
        return self._teller.of(actor.address).samples


def _over(actor: VirtualActor) -> bool:
    """Whether it will never begin another step; one that is lost comes back."""
    return not actor.lost and (actor.ended or actor.pace.over(actor.pace.step))


def _part(actor: VirtualActor) -> Snapshot:
    return actor.replica.snapshot(actor.role.scored, counts=actor.role.trains)

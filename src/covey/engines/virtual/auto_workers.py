"""A run in virtual time that finds out itself how many workers are worth it."""

from __future__ import annotations

from collections.abc import Callable

from covey.engines.virtual.virtual_membership import VirtualMembership
from covey.engines.worker_scaling import ScaledSeats
from covey.message import Address
from covey.observe.instruments import Instrument


class AutoWorkers(Instrument):
    """Looks after each batch; lets the last worker go when its batch is through, and another one take a free seat."""

    def __init__(self, scaling: ScaledSeats) -> None:
        self.scaling = scaling

    def attach(self, members: VirtualMembership, release: Callable[[Address], None]) -> None:
        """Change this attempt, whose workers `release` lets go before their next batch."""
        self._members, self._release = members, release
        self._due = False

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if kind == "samples" and not self._due:
            self._due = True
            self._members.agenda.at(self._members.agenda.now, self._look, None)

    def _look(self, _: None, __: None) -> None:
        """(Once all that happens at this moment has been told.)"""
        self._due = False
        members = self._members
        trainers = {who: actor for who, actor in members.actors.items() if actor.role.trains}
        if members.returning or any(actor.ended and who not in members.empty for who, actor in trainers.items()):
            return  # the run is about to end, or somebody is being replaced
        present = {who: actor.incarnation.number for who, actor in trainers.items() if who not in members.empty}
        who = self.scaling.look(members.agenda.now, members.teller.samples, present, members.empty)
        if who in members.empty:
            members.join(who)
        elif who is not None:
            self._release(who)

"""Rows of parameters on their way between the members of a group, one gather of a step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from covey.errors import PlanError
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.row_owners import RowOwners
from covey.parallelism.sharded.shard_messages import ParameterRows
from covey.program import Node
from covey.vector import Vector

TURNS = 1 << 20  # more exchanges than one step can have


class WantedRows(NamedTuple):
    """A bundle of layers that is brought together, and which of its parameters are not there yet."""

    bundle: int
    names: tuple[str, ...]


class RowExchange:
    """Each member sends its own rows to all others, and takes theirs.

    What the step before gathered next is sent as soon as a gather is complete, and arrives while its layers compute.
    All members foresee the same, as their steps are alike; if it was wrong, all take it from the others and leave it.
    """

    def __init__(
        self, owners: RowOwners, me: int, own: Callable[[Iterable[str]], Vector], sums: GradientSums | None = None
    ) -> None:  # fmt: skip
        self.owners, self.me, self.own, self.sums = owners, me, own, sums
        self._before: tuple[WantedRows, ...] = ()  # of the last step
        self._now: tuple[WantedRows, ...] = ()
        self._turn = 0
        self._sent: WantedRows | None = None  # the next one, foreseen
        self._came: dict[int, ParameterRows] = {}  # for it

    @property
    def turn(self) -> int:
        """How many exchanges of this step there have been."""
        return self._turn

    @property
    def foresees(self) -> bool:
        """Whether something is on its way that nobody has asked for yet."""
        return self._sent is not None

    def begin(self, turn: int) -> None:
        """A step begins, whose first gather has this number."""
        self._before, self._now, self._turn = self._now, (), turn
        self._sent, self._came = None, {}

    async def take(self, node: Node, wanted: WantedRows) -> dict[int, Vector]:
        """The others' rows of these parameters."""
        if self._sent not in (None, wanted):
            await self.pass_over(node)
        if self._sent is None:
            await self._send(node, wanted)
        await self._receive(node)
        came, self._came, self._sent = self._came, {}, None
        self._turn += 1
        for member, message in came.items():
            there = sum(name in self.owners.rows[member] for name in wanted.names)
            if (message.layer, len(message.rows.parts)) != (wanted.bundle, there):
                raise PlanError(
                    f"shard {member} computes other layers than shard {self.me} ({message.layer} where this one "
                    f"computes {wanted.bundle}): with mesh(zero=3) all workers must compute the same layers in the "
                    "same order; use zero=2"
                )
        at = len(self._now)
        self._now = (*self._now, wanted)
        if self._before[at : at + 1] == (wanted,) and len(self._before) > at + 1:
            self._sent = self._before[at + 1]
            await self._send(node, self._sent)
        return {member: message.rows for member, message in came.items()}

    async def make_room(self, node: Node) -> None:
        """Before anything else is sent: take what would keep the others from sending, as this member may keep them."""
        if self._sent is not None and not all(node.room(self.owners.peer(member)) for member in self._others()):
            await self._receive(node)

    async def pass_over(self, node: Node) -> None:
        """What everybody foresaw is not wanted."""
        await self._receive(node)
        self._came, self._sent, self._turn = {}, None, self._turn + 1

    async def _send(self, node: Node, gather: WantedRows) -> None:
        """Lend the own rows: a member steps when it has the gradients of all that count, who have read them by then."""
        rows = self.own(gather.names)
        for member in self._others():
            if self.sums is not None:
                await self.sums.make_room(node, member)
            message = ParameterRows(node.step * TURNS + self._turn, gather.bundle, rows)
            await node.send(self.owners.peer(member), message, loan=True, priority=1)

    async def _receive(self, node: Node) -> None:
        for member in self._others():
            if member not in self._came:
                sender, tag = self.owners.peer(member), node.step * TURNS + self._turn
                self._came[member] = await node.receive(ParameterRows, sender=sender, step=tag)

    def _others(self) -> Iterator[int]:
        return (member for member in range(self.owners.members) if member != self.me)

"""Gradients on their way to the owners of their rows, who add them up in the order of members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.model.flat import Flat
from covey.parallelism.sharded.row_owners import RowOwners
from covey.parallelism.sharded.shard_messages import GradientRows
from covey.program import Node, Receive
from covey.vector import Vector, mean_

NOTHING = Vector(())


@dataclass(slots=True)
class OpenSum:
    """The rows of a layer that one owner adds up, until everybody's have come."""

    number: int
    turn: int  # which pass of the step
    names: tuple[str, ...]
    own: Vector
    came: dict[int, Vector]


class GradientSums:
    """One member's side: it hands out its gradients layer by layer, and adds up those of the rows that it owns."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], owners: RowOwners, layout: Flat, me: int,
        layers: Sequence[tuple[str, ...]],
    ) -> None:  # fmt: skip
        self.parameters, self.owners, self.layout, self.me, self.layers = parameters, owners, layout, me, layers
        self.of = {name: number for number, names in enumerate(layers) for name in names}
        self.samples: Sequence[int] = ()  # of each member, in the step under way
        self.passes: Sequence[int] = ()  # backwards of each member's step
        self._left: dict[tuple[int, int], set[str]] = {}  # of each pass and layer: parameters without a gradient yet
        self._open: list[OpenSum] = []
        self._first = 0  # the number of the step's first pass, in the whole run
        self._summed: set[str] = set()

    def begin(self, step: int, samples: Sequence[int], passes: Sequence[int], most: int) -> None:
        """Of a step that members compute in so many backward passes, `most` being the most of any step."""
        self.samples, self.passes, self._first = samples, passes, step * most
        self._open, self._summed = [], set()
        self._left = {(turn, n): set(names) for turn in range(max(passes)) for n, names in enumerate(self.layers)}
        self.layout.grads.zero_()

    def ready(self, turn: int, name: str) -> int | None:
        """(In a backward pass) This parameter has its gradient; the layer that is complete with it, if one is."""
        layer = self.of[name]
        if (turn, layer) not in self._left:
            raise PlanError(
                f"{name} gets its gradient twice in one backward, after its layer's has left: with activation "
                "checkpoints use use_reentrant=False"
            )
        self._left[turn, layer].discard(name)
        return None if self._left[turn, layer] else layer

    def missing(self) -> list[tuple[int, int]]:
        """Passes and layers that were not handed out."""
        return list(self._left)

    async def hand_out(self, node: Node, turn: int, layer: int) -> None:
        """Send every owner its rows of a layer's gradient, and let the gradient go."""
        names = self.layers[layer]
        del self._left[turn, layer]
        grads = {name: _dense(grad) for name in names if (grad := self.parameters[name].grad) is not None}
        for name in grads:
            self.parameters[name].grad = None
        number = (self._first + turn) * len(self.layers) + layer
        if turn < self.passes[self.me] and self.samples[self.me]:
            for member in self._others():
                await self.make_room(node, member)
                if self.owners.rows[member].keys() & set(names):
                    await node.send(self.owners.peer(member), GradientRows(number, self._rows(grads, names, member)))
        if set(names) & self.owners.rows[self.me].keys():
            self._open.append(OpenSum(number, turn, names, self._rows(grads, names, self.me).clone(), {}))
        while self._open and self._arrived(node, self._open[0]):
            self._add(self._open.pop(0))

    async def make_room(self, node: Node, member: int) -> None:
        """Before anything is sent to this member: take what may keep it from sending, as this one may be kept."""
        while self._open and not node.room(self.owners.peer(member)):
            await self._close(node)

    async def finish(self, node: Node) -> None:
        """Wait for what has not come."""
        while self._open:
            await self._close(node)

    async def _close(self, node: Node) -> None:
        oldest = self._open[0]
        for member in self._senders(oldest.turn):
            if member not in oldest.came:
                sender = self.owners.peer(member)
                oldest.came[member] = (await node.receive(GradientRows, sender=sender, step=oldest.number)).rows
        self._add(self._open.pop(0))

    def _arrived(self, node: Node, open_sum: OpenSum) -> bool:
        for member in self._senders(open_sum.turn):
            if member not in open_sum.came:
                want = Receive((GradientRows,), self.owners.peer(member), open_sum.number)
                found = node.host.receive_nowait(want)
                if not isinstance(found, GradientRows):
                    return False
                open_sum.came[member] = found.rows
        return True

    def _add(self, done: OpenSum) -> None:
        mine = self.owners.views(self.layout.grads, self.me, done.names)
        into = Vector(rows.view(-1) for rows in mine.values())
        given, weights = [], []
        for member, samples in enumerate(self.samples):
            if samples:
                rows = done.own if member == self.me else done.came.get(member, NOTHING)
                given.append(rows if rows.parts else into.map(torch.zeros_like))
                weights.append(float(samples))
        if self._summed.isdisjoint(mine):
            mean_(into, given, weights)
        else:
            into.add_(mean_(into.clone(), given, weights))
        self._summed.update(mine)

    def _rows(self, grads: Mapping[str, Tensor], names: tuple[str, ...], member: int) -> Vector:
        """Of a member; nothing where there is no gradient at all."""
        if not grads:
            return Vector(())
        slots = self.owners.slots_of(member, names)
        cut = self.owners.cut(grads, member)
        return Vector(
            cut[slot.name].reshape(-1) if slot.name in cut else
            self.parameters[slot.name].new_zeros(slot.stop - slot.start) for slot in slots
        )  # fmt: skip

    def _others(self) -> Iterator[int]:
        return (member for member in range(self.owners.members) if member != self.me)

    def _senders(self, turn: int) -> Iterator[int]:
        """Who hands something out in this pass."""
        return (member for member in self._others() if self.samples[member] and turn < self.passes[member])


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad

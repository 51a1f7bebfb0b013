"""Forward and backward of samples through fully connected layers whose units are divided among all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from covey.message import Address, Message
from covey.parallelism.units.unit_replica import UnitReplica
from covey.program import Node
from covey.vector import Vector, chunk

Rows = tuple[int, int]
"""Of a worker's batch."""


class Activations(Message):
    """What goes into the first layer, of some of a worker's samples. `step` numbers rounds."""

    wire_name = "rounds.activations"

    step: int
    values: Vector


class Outputs(Message):
    """What a worker's units of a layer make of the samples of a round. `step` numbers the layers of all rounds."""

    wire_name = "rounds.outputs"

    step: int
    values: Vector


class Errors(Message):
    """The gradient of the loss by what went into a layer, or came out of the last, as far as the sender knows it."""

    wire_name = "rounds.errors"

    step: int
    values: Vector


class Round:
    """Some rows of everybody's batch. Every sample's loss, and its labels, stay with the worker whose sample it is."""

    def __init__(self, node: Node, share: UnitReplica, number: int, rows: Sequence[Rows]) -> None:
        self.node, self.share, self.number, self.rows = node, share, number, rows
        self.blocks, self.me, self.workers = share.ends.blocks, node.rank, node.workers
        ends = [0, *accumulate(stop - first for first, stop in rows)]
        self.samples = ends[-1]
        self.places = {rank: slice(ends[rank], ends[rank + 1]) for rank in range(self.workers) if _some(*rows[rank])}

    @property
    def count(self) -> int:
        """Of one's own samples."""
        first, stop = self.rows[self.me]
        return stop - first

    def units(self, place: int) -> dict[int, slice]:
        """Who has which units of a layer."""
        ranges = [chunk(self.blocks[place].units, self.workers, rank) for rank in range(self.workers)]
        return {rank: slice(*ends) for rank, ends in enumerate(ranges) if _some(*ends)}

    # -- the whole way --------------------------------------------------------------------------------------------

    async def hand_out(self, made: Tensor | None) -> None:
        """Give everybody what the first part of the model makes of one's own rows."""
        if made is not None and self.count:
            mine = made.detach()[slice(*self.rows[self.me])]
            for rank in self._others():
                await self._send(Activations, self.number, rank, mine)

    async def through(self, made: Tensor | None, whole: int) -> tuple[float, Tensor | None]:
        """Forward, the loss, backward: the mean loss of one's own rows, and the error of what was `made` of them.

        That is of a loss which is the mean over `whole` samples; None where the first part learns nothing.
        """
        went, x = list[tuple[Tensor, Tensor]](), await self._collect(made)
        for place, block in enumerate(self.blocks):
            x = x.detach().requires_grad_(place > 0 or self.share.ends.returns)
            y = await self.share.forward(self.node, block, x)
            went.append((x, y))
            if place + 1 < len(self.blocks):
                everybody = range(self.workers)
                x = torch.cat(await self._pass(Outputs, place, self.units(place), everybody, _all_of(y)), dim=-1)
        loss, error = await self._lose(went[-1][1].detach(), whole)
        return loss, await self._back(went, error)

    async def _collect(self, made: Tensor | None) -> Tensor:
        """All rows of the round, in the order of ranks."""
        rows = []
        for rank in self.places:
            if rank == self.me:
                assert made is not None
                rows.append(made.detach()[slice(*self.rows[rank])])
            else:
                rows.append(await self._receive(Activations, self.number, rank))
        return torch.cat(rows)

    async def _lose(self, y: Tensor, whole: int) -> tuple[float, Tensor]:
        """Bring every sample's outputs to its worker, and the errors of one's own units back."""
        last, loss, error = len(self.blocks) - 1, 0.0, y
        units = self.units(last)
        outputs = await self._pass(Outputs, last, units, self.places, lambda rank: y[self.places[rank]])
        if outputs:
            rows = self.rows[self.me]
            loss, error = await self.share.lose(self.node, torch.cat(outputs, dim=-1), rows, self.count / whole)
        came = await self._pass(Errors, last + 1, self.places, units, lambda rank: error[..., units[rank]])
        return loss, torch.cat(came) if came else torch.zeros_like(y)

    async def _back(self, went: list[tuple[Tensor, Tensor]], error: Tensor) -> Tensor | None:
        """Down through the layers; errors are added in the order of ranks, where they are needed."""
        came: list[Tensor] = []
        for place, (x, y) in reversed([*enumerate(went)]):
            slope = await self.share.backward(self.node, self.blocks[place], x, y, error)
            if place:
                units = self.units(place - 1)
                came = await self._pass(Errors, place, self.units(place), units, _columns(slope, units))
                error = _total(came) if came else torch.zeros_like(went[place - 1][1])
            elif self.share.ends.returns:
                came = await self._pass(Errors, 0, self.units(0), self.places, _rows(slope, self.places))
                return _total(came) if came else None
        return None

    # -- messages -------------------------------------------------------------------------------------------------

    async def _pass(
        self, kind: type[Outputs | Errors], place: int, givers: Mapping[int, object],
        takers: Mapping[int, object] | range, part: Callable[[int], Tensor],
    ) -> list[Tensor]:  # fmt: skip
        """Givers send each taker its part; what a taker gets, in the order of givers."""
        number = self.number * (len(self.blocks) + 1) + place
        if self.me in givers:
            for rank in self._others():
                if rank in takers:
                    await self._send(kind, number, rank, part(rank))
        if self.me not in takers:
            return []
        return [part(rank) if rank == self.me else await self._receive(kind, number, rank) for rank in givers]

    def _others(self) -> list[int]:
        """From one's own place on, so that nobody is everybody's first."""
        return [(self.me + away) % self.workers for away in range(1, self.workers)]

    async def _send(self, kind: type[Activations | Outputs | Errors], number: int, to: int, values: Tensor) -> None:
        """Lent: nobody changes it."""
        await self.node.send(Address("worker", to), kind(number, Vector([values.detach()])), loan=True)

    async def _receive(self, kind: type[Activations | Outputs | Errors], number: int, rank: int) -> Tensor:
        came = await self.node.receive(kind, sender=Address("worker", rank), step=number)
        return came.values.parts[0].to(self.share.flat.parts[0].device)


def _some(first: int, stop: int) -> bool:
    return first < stop


def _all_of(y: Tensor) -> Callable[[int], Tensor]:
    return lambda rank: y.detach()


def _columns(slope: Tensor | None, units: Mapping[int, slice]) -> Callable[[int], Tensor]:
    return lambda rank: _there(slope)[..., units[rank]]


def _rows(slope: Tensor | None, places: Mapping[int, slice]) -> Callable[[int], Tensor]:
    return lambda rank: _there(slope)[places[rank]]


def _there(slope: Tensor | None) -> Tensor:
    assert slope is not None, "a layer with units has an error for what went in"
    return slope


def _total(errors: Sequence[Tensor]) -> Tensor:
    first, *others = errors
    total = first.clone()
    for other in others:
        total.add_(other)
    return total

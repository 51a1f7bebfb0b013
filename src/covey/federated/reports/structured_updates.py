"""Structured updates (Konecny et al. 2016): a client trains only what it will send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange.codec import expect
from covey.exchange.codecs.random_k import places
from covey.exchange.codecs.sparse import of
from covey.federated.reports.report_form import drawn
from covey.model.slots import TensorSlot
from covey.vector import Vector


class MaskedUpdate:
    """A client moves a random choice of the weights; only their changes travel, as the choice follows from a seed."""

    def __init__(self, like: Vector, seed: int, keep: float) -> None:
        self._like, self._seed = like, seed
        self._counts = [of(keep, part.numel()) for part in like.parts]

    def restrict(self, client: int, number: int, change: Vector) -> Vector:
        """The change without what this client may not move."""
        kept = (part[where] for part, where in zip(change.parts, self._places(client, number), strict=True))
        return self._spread(client, number, kept)

    def encode(self, client: int, number: int, update: Vector, loss: float) -> Vector:
        pairs = zip(update.parts, self._places(client, number), strict=True)
        return Vector(part[where.to(part.device)] for part, where in pairs)

    def decode(self, client: int, number: int, wire: Vector) -> Vector:
        wanted = [(count, part.dtype) for count, part in zip(self._counts, self._like.parts, strict=True)]
        return self._spread(client, number, expect(wire, *wanted))

    def _spread(self, client: int, number: int, kept: Sequence[Tensor] | Iterator[Tensor]) -> Vector:
        spread = []
        for like, where, values in zip(self._like.parts, self._places(client, number), kept, strict=True):
            part = torch.zeros_like(like)
            part[where.to(like.device)] = values.to(like.device)
            spread.append(part)
        return Vector(spread)

    def _places(self, client: int, number: int) -> list[Tensor]:
        sizes = enumerate(zip(self._counts, self._like.parts, strict=True))
        return [places(drawn(self._seed, client, number, index), n, part.numel()) for index, (n, part) in sizes]


class LowRankUpdate:
    """A client's change of a matrix is a random matrix times one that it trains, of `rank` rows; only this one travels.

    The random one has orthonormal columns, so that a step of SGD on the trained one is a step on the matrix itself,
    projected. It multiplies the longer side; what is no matrix, or is no larger than that, travels as it is.
    """

    def __init__(self, slots: Sequence[TensorSlot], like: Vector, seed: int, rank: int) -> None:
        self._slots, self._like, self._seed, self._rank = slots, like, seed, rank
        self._sizes = [self._size(slot) for slot in slots]
        self._lengths = [
            sum(size for size, slot in zip(self._sizes, slots, strict=True) if slot.part == part)
            for part in range(len(like.parts))
        ]

    def restrict(self, client: int, number: int, change: Vector) -> Vector:
        """The nearest change that is a product of this client's random matrices with others."""
        return self.decode(client, number, self.encode(client, number, change, 0.0))

    def encode(self, client: int, number: int, update: Vector, loss: float) -> Vector:
        found: list[list[Tensor]] = [[] for _ in update.parts]
        for slot, basis in zip(self._slots, self._bases(client, number), strict=True):
            matrix = slot.view(update)
            if basis is not None:
                tall, matrix = _tall(matrix.double())
                matrix = (basis.T @ matrix if tall else matrix @ basis).to(update.parts[slot.part].dtype)
            found[slot.part].append(matrix.reshape(-1))
        return Vector(torch.cat(pieces) for pieces in found)

    def decode(self, client: int, number: int, wire: Vector) -> Vector:
        wanted = [(length, part.dtype) for length, part in zip(self._lengths, self._like.parts, strict=True)]
        parts = expect(wire, *wanted)
        if not Vector(parts).finite():
            raise WireError(f"{wire.origin or 'a peer'} sent an update with NaN or infinite numbers")
        whole, at = self._like.map(torch.zeros_like), [0] * len(parts)
        for slot, size, basis in zip(self._slots, self._sizes, self._bases(client, number), strict=True):
            values = parts[slot.part][at[slot.part] : at[slot.part] + size].to(whole.parts[slot.part].device)
            at[slot.part] += size
            if basis is not None:
                tall, like = _tall(slot.view(whole))
                small = values.double().view(self._rank, -1) if tall else values.double().view(-1, self._rank)
                values = (basis @ small if tall else small @ basis.T).to(like.dtype)
            slot.view(whole).copy_(values.view(slot.shape))
        return whole

    def _size(self, slot: TensorSlot) -> int:
        """The numbers that travel for a tensor."""
        if not self._reduced(slot):
            return slot.stop - slot.start
        return self._rank * min(slot.shape[0], slot.shape[1:].numel())

    def _reduced(self, slot: TensorSlot) -> bool:
        return len(slot.shape) >= 2 and max(slot.shape[0], slot.shape[1:].numel()) > self._rank

    def _bases(self, client: int, number: int) -> Iterator[Tensor | None]:
        for slot in self._slots:
            if not self._reduced(slot):
                yield None
                continue
            chance = torch.Generator().manual_seed(drawn(self._seed, client, number, slot.name))
            longer = max(slot.shape[0], slot.shape[1:].numel())
            yield torch.linalg.qr(torch.randn(longer, self._rank, generator=chance, dtype=torch.float64))[0]


def _tall(tensor: Tensor) -> tuple[bool, Tensor]:
    """Whether it has at least as many rows as columns, and the tensor as a matrix."""
    matrix = tensor.reshape(tensor.shape[0], -1)
    return matrix.shape[0] >= matrix.shape[1], matrix

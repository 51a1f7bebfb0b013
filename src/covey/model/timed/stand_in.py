"""Replicas without numbers, for runs that are only timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from covey.data.shards import Shards
from covey.message import Address
from covey.model.batches import Batch, BatchSource
from covey.model.flat import Flat
from covey.model.replica import Replica
from covey.vector import chunk

Shapes = Mapping[str, Tensor]
"""Of a model's parameters, by name: tensors that have no numbers."""


class TimedData(NamedTuple):
    """What there is to know of data whose samples nobody reads."""

    batch_size: int = 1
    transformed: bool = False
    prepared: bool = False  # by preparers
    sample_bytes: int = 0  # of a sample that they send


class FrozenOptimizer(torch.optim.SGD):
    """An optimizer that only takes its place: in timing-only runs nothing is learned."""

    elementwise = True

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


class ShapesOnly(nn.Module):
    """A model that only has the shapes of another one."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        for name, like in shapes.items():
            *path, key = name.split(".")
            owner: nn.Module = self
            for step in path:
                if step not in owner._modules:
                    owner.add_module(step, nn.Module())
                owner = owner.get_submodule(step)
            owner.register_parameter(key, nn.Parameter(torch.empty(like.shape, dtype=like.dtype, device=like.device)))


class TimedModel:
    """A model without numbers, laid out flat, and its optimizer. Nothing of it changes: many replicas may have it."""

    def __init__(self, shapes: Shapes) -> None:
        self.module = ShapesOnly(shapes)
        self.layout = Flat(self.module)
        self._parameters = list(self.layout.parameters.values())
        self._optimizer = FrozenOptimizer(self.layout.parameters.items(), lr=0.0)

    def optimizer(self, pairs: Iterable[tuple[str, nn.Parameter]]) -> FrozenOptimizer:
        """That of all parameters, or one for slices of them."""
        pairs = list(pairs)
        whole = [id(parameter) for _, parameter in pairs] == [*map(id, self._parameters)]
        return self._optimizer if whole else FrozenOptimizer(pairs, lr=0.0)


def stand_in(model: TimedModel, who: Address, trains: bool, deal: Shards, data: TimedData = TimedData()) -> Replica:  # noqa: B008
    """The replica of a role, with batches that only have a size."""
    source = BatchSource(samples=deal.batch, steps=deal.steps)
    if trains:
        own, chosen, leased = partial(_timed, deal, who.rank), partial(_timed_part, deal), partial(_timed, deal)
        here = float(data.transformed and not data.prepared)
        source = replace(source, own=own, chosen=chosen, leased=leased, arrived={}, prepares=lambda step: here)
    if data.prepared:
        source = _prepared(source, deal, data)
    return Replica(model.module, model.optimizer, source, layout=model.layout)


def _prepared(source: BatchSource, deal: Shards, data: TimedData) -> BatchSource:
    """What workers and preparers know of batches that travel between them: their sizes."""

    def sizes(rank: int, step: int) -> list[int]:
        samples, most = deal.batch(rank, step), data.batch_size
        return [min(most, samples - first) for first in range(0, samples, most)]

    def prepare(rank: int, step: int) -> list[Any]:
        return [
            torch.empty(size * data.sample_bytes, dtype=torch.uint8, device="meta") for size in sizes(rank, step)
        ]  # fmt: skip

    return replace(
        source, prepare=prepare, pieces=lambda rank, step: len(sizes(rank, step)),
        batch_bytes=data.sample_bytes * data.batch_size,
    )  # fmt: skip


def _timed(deal: Shards, rank: int, step: int) -> Batch:
    return Batch(float("nan"), deal.batch(rank, step))


def _timed_part(deal: Shards, rank: int, step: int, part: int, parts: int) -> Batch:
    start, stop = chunk(deal.batch(rank, step), parts, part)
    return Batch(float("nan"), stop - start)


def in_one(shapes: Shapes) -> Shapes:
    """As many numbers in one parameter of each type: where only sizes count, ten thousand roles take less memory."""
    sizes: dict[torch.dtype, int] = {}
    for like in shapes.values():
        sizes[like.dtype] = sizes.get(like.dtype, 0) + like.numel()
    return {str(dtype)[6:]: torch.empty(size, dtype=dtype, device="meta") for dtype, size in sizes.items()}

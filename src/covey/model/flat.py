"""How a module's numbers live in a few flat vectors: parameters, gradients and float buffers become views of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import CheckpointError, PlanError
from covey.model.slots import CollectedGrads, TensorSlot, buffers_of, described, slots_of, trainable
from covey.names import option
from covey.vector import Piece, Vector, ranges


@dataclass(frozen=True, slots=True)
class ParameterRange:
    """Where one parameter, or a slice of one, lies in a part of a vector; a slice is flat."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """What the vectors of one kind have in common: an example, and the layers that lie in each of its parts."""

    like: Vector
    layers: tuple[tuple[ParameterRange, ...], ...]
    last: str = ""  # the module at the end of the model
    epoch: int = 0  # steps of a pass over the data, where that is known

    @staticmethod
    def plain(like: Vector) -> Form:
        """Of vectors whose parts are one layer each."""
        return Form(like, tuple((ParameterRange("", 0, part.numel(), (part.numel(),)),) for part in like.parts))

    @staticmethod
    def matrix(numbers: Tensor, columns: int) -> Form:
        """Of one matrix, to try something out with; these are its numbers, in a row."""
        shape = numbers.numel() // columns, columns
        return Form(Vector([numbers]), ((ParameterRange("weight", 0, numbers.numel(), shape),),), epoch=1)


NAMES: Mapping[str, str] = {}  # each tensor is called as in its module


class Flat:
    """A module laid out flat, or several as one. Tied parameters appear once, frozen ones not at all."""

    def __init__(
        self, *modules: nn.Module, called: Mapping[str, str] = NAMES, without: Collection[str] = (),
        instead: Mapping[str, nn.Parameter] | None = None,
    ) -> None:  # fmt: skip
        """What is `called` by another name in the whole model has that name here, too; the parameters `without` which
        it is laid out stay where they are: another layout owns them. With parameters `instead` of the modules' own
        only the buffers are theirs."""
        self.modules = modules
        named = {called.get(name, name): parameter for name, parameter in trainable(modules).items()}
        named = named if instead is None else dict(instead)
        self.apart = instead is not None  # the modules do not compute on these numbers themselves
        self.parameters = {name: parameter for name, parameter in named.items() if name not in without}
        if not self.parameters:
            raise PlanError(
                "the model has no trainable parameter, so nothing can be exchanged: set requires_grad_(True) on some"
            )
        floats = {name: found for name, found in buffers_of(modules).items() if found[2].is_floating_point()}
        self.slots, self.params = _lay_out(self.parameters)
        self.buffer_slots, self.buffers = _lay_out({name: buffer for name, (_, _, buffer) in floats.items()})
        self.grads = self.params.map(torch.zeros_like)
        self.written_by_others = False  # the parameters lie in memory that other workers write
        self._owners = {name: (owner, key) for name, (owner, key, _) in floats.items()}
        self._settle()

    @property
    def model(self) -> Vector:
        """Parameters and float buffers: what travels when models, not gradients, are exchanged."""
        return self.params.join(self.buffers)

    def move(self, house: Callable[[Vector], Vector]) -> None:
        """Live elsewhere from now on: `house` brings a vector's numbers there."""
        self.params, self.grads, self.buffers = house(self.params), house(self.grads), house(self.buffers)
        self._settle()

    def _settle(self) -> None:
        """Make the module's tensors views of the vectors."""
        self.aim(self.params)
        self._grad_views = {slot.name: (self.parameters[slot.name], slot.view(self.grads)) for slot in self.slots}
        self._buffer_views = [(*self._owners[slot.name], slot.view(self.buffers)) for slot in self.buffer_slots]
        self.attach()

    def aim(self, vector: Vector) -> None:
        """Let the module's parameters be views of this vector."""
        self.seen = vector
        for slot in self.slots:
            self.parameters[slot.name].data = slot.view(vector)

    def attach(self) -> None:
        """Point every gradient and buffer of the module at its view."""
        for parameter, view in self._grad_views.values():
            parameter.grad = view
        for owner, key, view in self._buffer_views:
            owner._buffers[key] = view

    def clear(self) -> None:
        """Zero the gradients; backward then adds into the flat vector itself."""
        for parameter, view in self._grad_views.values():
            parameter.grad = view
        self.grads.zero_()

    def collect(self) -> None:
        """Bring back what the user's code replaced: gradients set to None or made anew, buffers assigned afresh."""
        self.collect_grads(self.slots)
        self.collect_buffers()

    def collect_buffers(self) -> None:
        """Bring buffers that were assigned afresh back into the flat vector."""
        for owner, key, view in self._buffer_views:
            current = owner._buffers[key]
            if current is not view:
                assert current is not None, f"the buffer {key} became None while training"
                view.copy_(current)
                owner._buffers[key] = view

    def collect_grads(self, slots: Iterable[TensorSlot]) -> CollectedGrads:
        """Bring the gradients of these parameters back into the flat vector, and nothing else; where they lay."""
        views, grads, absent, here = list[Tensor](), list[Tensor](), list[Tensor](), False
        for slot in slots:
            parameter, view = self._grad_views[slot.name]
            if parameter.grad is None:
                absent.append(view)
            elif parameter.grad is not view:
                views.append(view)
                grads.append(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
            else:
                here = True
            parameter.grad = view
        found = CollectedGrads(views, grads, absent, here)
        found.bring()
        return found

    def complete_grads(self) -> None:
        """Leave gradients where backward made them, as an optimizer takes them; what has none has one of zeros."""
        odd = [slot for slot in self.slots if (grad := self.parameters[slot.name].grad) is None or grad.is_sparse]
        self.collect_grads(odd)

    @property
    def nbytes(self) -> int:
        """Of the parameters and all buffers."""
        others = sum(buffer.numel() * buffer.element_size() for buffer in self.others().values())
        return self.params.nbytes + self.buffers.nbytes + others

    def others(self) -> dict[str, Tensor]:
        """Buffers that are counted, not averaged: batch counters, masks, frozen parameters' neighbours."""
        return {name: b for name, (_, _, b) in buffers_of(self.modules).items() if not b.is_floating_point()}

    def set_others(self, found: Mapping[str, Tensor]) -> None:
        """Have these instead."""
        for name, buffer in self.others().items():
            buffer.copy_(found[name])

    def whole(self, pieces: int) -> list[Piece]:
        """The parameters in `pieces` contiguous runs of whole parameters, balanced by bytes."""
        if pieces > len(self.slots):
            raise PlanError(
                f"this optimizer needs whole parameters, and there are only {len(self.slots)} for {pieces} servers: "
                f"use {option('servers', len(self.slots))} or fewer"
            )
        sizes = [(slot.stop - slot.start) * self.params.parts[slot.part].element_size() for slot in self.slots]
        return [self.piece(self.slots[a:b]) for a, b in _balanced(sizes, pieces)]

    def piece(self, slots: list[TensorSlot]) -> Piece:
        """The ranges that these neighbouring parameters cover."""
        found = []
        for part in range(len(self.params.parts)):
            inside = [slot for slot in slots if slot.part == part]
            found.append((inside[0].start, inside[-1].stop) if inside else (0, 0))
        return tuple(found)

    def form(self, piece: Piece) -> Form:
        """The form of what lies in a piece of the parameters."""
        like, layers = self.params.cut(piece), list[tuple[ParameterRange, ...]]()
        for part, ends in enumerate(piece):
            inside = [slot for slot in self.slots if slot.part == part]
            layers += [tuple(_layers(inside, start, stop)) for start, stop in ranges(ends)]
        return Form(like, tuple(layers), self.slots[-1].layer)

    def inside(self, piece: Piece) -> list[list[nn.Parameter]]:
        """What a piece has of each parameter: all of it as it is, or slices of it as parameters."""
        return [list(self._inside(slot, piece)) for slot in self.slots]

    def _inside(self, slot: TensorSlot, piece: Piece) -> Iterator[nn.Parameter]:
        for first, last in ranges(piece[slot.part]):
            start, stop = max(slot.start, first), min(slot.stop, last)
            if (start, stop) == (slot.start, slot.stop):
                yield self.parameters[slot.name]
            elif start < stop:
                shard = nn.Parameter(self.params.parts[slot.part][start:stop])
                shard.grad = self.grads.parts[slot.part][start:stop]
                yield shard

    def state(self) -> dict[str, Any]:
        """All numbers of the module, and which they are."""
        return {
            "layout": self.describe(), "params": self.params,
            "floats": self.describe_floats(), "buffers": self.buffers, "others": self.others(),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a kept state; refused when it is of another model."""
        if differs := self.differs(state["layout"]):
            raise CheckpointError(f"the checkpoint is of another model: {differs}")
        self.params.copy_(state["params"])
        self.buffers.copy_(state["buffers"])
        self.set_others(state["others"])

    def describe(self) -> list[str]:
        """Every parameter's name, shape and dtype."""
        return described(self.slots, self.params)

    def describe_floats(self) -> list[str]:
        """The same of the float buffers."""
        return described(self.buffer_slots, self.buffers)

    def differs(self, other: list[str]) -> str:
        """How another description differs from this module, in words; empty when it does not."""
        mine = self.describe()
        for theirs, ours in zip(other, mine, strict=False):
            if theirs != ours:
                return f"it has {theirs} where this has {ours}"
        return "" if len(other) == len(mine) else f"it has {len(other)} parameters, this has {len(mine)}"

    def layers(self) -> list[tuple[str, list[TensorSlot]]]:
        """The parameters by the module that owns them, in the order of the module."""
        layers: dict[str, list[TensorSlot]] = {}
        for slot in self.slots:
            layers.setdefault(slot.layer, []).append(slot)
        return list(layers.items())


def _lay_out(tensors: Mapping[str, Tensor]) -> tuple[list[TensorSlot], Vector]:
    """One flat tensor per (device, dtype), holding copies of the tensors in their order."""
    slots = slots_of(tensors)
    sizes: dict[int, int] = {slot.part: slot.stop for slot in slots}
    likes = {slot.part: tensors[slot.name] for slot in slots}
    parts = [torch.empty(sizes[part], device=like.device, dtype=like.dtype) for part, like in likes.items()]
    for slot in slots:
        parts[slot.part][slot.start : slot.stop].copy_(tensors[slot.name].detach().reshape(-1))
    return slots, Vector(parts)


def _layers(slots: Iterable[TensorSlot], first: int, last: int) -> Iterable[ParameterRange]:
    """What a range of a part has of these parameters."""
    for slot in slots:
        start, stop = max(slot.start, first), min(slot.stop, last)
        if (start, stop) == (slot.start, slot.stop):
            yield ParameterRange(slot.name, start - first, stop - first, tuple(slot.shape))
        elif start < stop:
            yield ParameterRange(slot.name, start - first, stop - first, (stop - start,))


def _balanced(sizes: list[int], pieces: int) -> list[tuple[int, int]]:
    """Cut a list into `pieces` non-empty runs whose sums are near equal."""
    total, done, start, runs = sum(sizes), 0, 0, []
    for piece in range(pieces):
        stop = start
        while stop < len(sizes) - (pieces - piece - 1):
            share = total * (piece + 1) / pieces
            if stop > start and done + sizes[stop] / 2 > share and piece < pieces - 1:
                break
            done += sizes[stop]
            stop += 1
        runs.append((start, stop))
        start = stop
    return runs

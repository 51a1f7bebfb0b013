"""How a module's numbers live in a few flat vectors: parameters, gradients and float buffers become views of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.vector import Piece, Vector, ranges


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor of the module lies: part of the vector, range in it, shape."""

    name: str
    part: int
    start: int
    stop: int
    shape: torch.Size

    def view(self, vector: Vector) -> Tensor:
        return vector.parts[self.part][self.start : self.stop].view(self.shape)

    @property
    def layer(self) -> str:
        """The module that owns the tensor."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Layer:
    """Where one parameter, or a slice of one, lies in a part of a vector; a slice is flat."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """What the vectors of one kind have in common: an example, and the layers that lie in each of its parts."""

    like: Vector
    layers: tuple[tuple[Layer, ...], ...]
    last: str = ""  # the module at the end of the model
    epoch: int = 0  # steps of a pass over the data, where that is known

    @staticmethod
    def plain(like: Vector) -> Form:
        """Of vectors whose parts are one layer each."""
        return Form(like, tuple((Layer("", 0, part.numel(), (part.numel(),)),) for part in like.parts))


class Flat:
    """A module laid out flat. Tied parameters appear once, frozen ones not at all."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trainable:
            raise PlanError("the model has no trainable parameter: nothing can be exchanged")
        floats = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
        self.slots, self.params = _lay_out(trainable)
        self.buffer_slots, self.buffers = _lay_out(floats)
        self.grads = self.params.map(torch.zeros_like)
        self.parameters = dict(trainable)
        self._owners = {name: _owner(module, name) for name, _ in floats}
        self._settle()

    def move(self, house: Callable[[Vector], Vector]) -> None:
        """Live elsewhere from now on: `house` brings a vector's numbers there."""
        self.params, self.grads, self.buffers = house(self.params), house(self.grads), house(self.buffers)
        self._settle()

    def _settle(self) -> None:
        """Make the module's tensors views of the vectors."""
        with torch.no_grad():
            for slot in self.slots:
                self.parameters[slot.name].data = slot.view(self.params)
        self._grad_views = {slot.name: (self.parameters[slot.name], slot.view(self.grads)) for slot in self.slots}
        self._buffer_views = [(*self._owners[slot.name], slot.view(self.buffers)) for slot in self.buffer_slots]
        self.attach()

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
        for owner, key, view in self._buffer_views:
            current = owner._buffers[key]
            if current is not view:
                assert current is not None, f"the buffer {key} became None while training"
                view.copy_(current)
                owner._buffers[key] = view

    def collect_grads(self, slots: Iterable[Slot]) -> None:
        """Bring the gradients of these parameters back into the flat vector, and nothing else."""
        for slot in slots:
            parameter, view = self._grad_views[slot.name]
            if parameter.grad is not view:
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view

    @property
    def nbytes(self) -> int:
        """Of the parameters and all buffers."""
        others = sum(buffer.numel() * buffer.element_size() for buffer in self.others().values())
        return self.params.nbytes + self.buffers.nbytes + others

    def others(self) -> dict[str, Tensor]:
        """Buffers that are counted, not averaged: batch counters, masks, frozen parameters' neighbours."""
        return {name: b for name, b in self.module.named_buffers() if not b.is_floating_point()}

    def whole(self, pieces: int) -> list[Piece]:
        """The parameters in `pieces` contiguous runs of whole parameters, balanced by bytes."""
        if pieces > len(self.slots):
            raise PlanError(
                f"this optimizer needs whole parameters, and there are only {len(self.slots)} for {pieces} servers: "
                f"use --servers {len(self.slots)} or fewer"
            )
        sizes = [(slot.stop - slot.start) * self.params.parts[slot.part].element_size() for slot in self.slots]
        return [self.piece(self.slots[a:b]) for a, b in _balanced(sizes, pieces)]

    def piece(self, slots: list[Slot]) -> Piece:
        """The ranges that these neighbouring parameters cover."""
        found = []
        for part in range(len(self.params.parts)):
            inside = [slot for slot in slots if slot.part == part]
            found.append((inside[0].start, inside[-1].stop) if inside else (0, 0))
        return tuple(found)

    def form(self, piece: Piece) -> Form:
        """The form of what lies in a piece of the parameters."""
        like, layers = self.params.cut(piece), list[tuple[Layer, ...]]()
        for part, ends in enumerate(piece):
            inside = [slot for slot in self.slots if slot.part == part]
            layers += [tuple(_layers(inside, start, stop)) for start, stop in ranges(ends)]
        return Form(like, tuple(layers), self.slots[-1].layer)

    def describe(self) -> list[str]:
        """Every parameter's name, shape and dtype."""
        dtypes = [str(part.dtype).removeprefix("torch.") for part in self.params.parts]
        return [f"{slot.name} {tuple(slot.shape)} {dtypes[slot.part]}" for slot in self.slots]

    def differs(self, other: list[str]) -> str:
        """How another description differs from this module, in words; empty when it does not."""
        mine = self.describe()
        for theirs, ours in zip(other, mine, strict=False):
            if theirs != ours:
                return f"it has {theirs} where this has {ours}"
        return "" if len(other) == len(mine) else f"it has {len(other)} parameters, this has {len(mine)}"

    def layers(self) -> list[tuple[str, list[Slot]]]:
        """The parameters by the module that owns them, in the order of the module."""
        layers: dict[str, list[Slot]] = {}
        for slot in self.slots:
            layers.setdefault(slot.layer, []).append(slot)
        return list(layers.items())


def _lay_out(tensors: Iterable[tuple[str, Tensor]]) -> tuple[list[Slot], Vector]:
    """One flat tensor per (device, dtype), holding copies of the tensors in their order."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append((name, tensor))
    slots, parts = [], []
    for part, ((device, dtype), members) in enumerate(groups.items()):
        flat = torch.empty(sum(t.numel() for _, t in members), device=device, dtype=dtype)
        start = 0
        for name, tensor in members:
            stop = start + tensor.numel()
            flat[start:stop].copy_(tensor.detach().reshape(-1))
            slots.append(Slot(name, part, start, stop, tensor.shape))
            start = stop
        parts.append(flat)
    return slots, Vector(parts)


def _layers(slots: Iterable[Slot], first: int, last: int) -> Iterable[Layer]:
    """What a range of a part has of these parameters."""
    for slot in slots:
        start, stop = max(slot.start, first), min(slot.stop, last)
        if (start, stop) == (slot.start, slot.stop):
            yield Layer(slot.name, start - first, stop - first, tuple(slot.shape))
        elif start < stop:
            yield Layer(slot.name, start - first, stop - first, (stop - start,))


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return module.get_submodule(path), key


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

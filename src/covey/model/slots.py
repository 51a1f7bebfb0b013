"""Where does each tensor of a module lie, when those of one device and dtype lie side by side?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.vector import Piece, Vector, ranges


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where one tensor of the module lies: part of the vector, range in it, shape."""

    name: str
    part: int
    start: int
    stop: int
    shape: torch.Size

    def view(self, vector: Vector) -> Tensor:
        return vector.parts[self.part][self.start : self.stop].view(self.shape)

    def cuts(self, piece: Piece) -> list[tuple[int, int]]:
        """The slices that a piece of the vector has of this tensor: from which of its numbers to which."""
        ends = [(max(self.start, first), min(self.stop, last)) for first, last in ranges(piece[self.part])]
        whole = self.start, self.stop
        return [(a - self.start, b - self.start) for a, b in ends if a < b or (a, b) == whole]

    @property
    def layer(self) -> str:
        """The module that owns the tensor."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Outline:
    """How a module would lie flat, without its numbers; `counters` are the buffers that are not averaged."""

    params: list[TensorSlot]
    floats: list[TensorSlot]
    counters: list[str]

    @staticmethod
    def of(module: nn.Module) -> Outline:
        buffers = {name: buffer for name, (_, _, buffer) in buffers_of([module]).items()}
        floats = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        others = [name for name in buffers if name not in floats]
        return Outline(slots_of(trainable([module])), slots_of(floats), others)


def slots_of(tensors: Mapping[str, Tensor]) -> list[TensorSlot]:
    """Side by side in their order, those of one device and dtype in one part."""
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault((tensor.device, tensor.dtype), []).append(name)
    slots = []
    for part, members in enumerate(groups.values()):
        start = 0
        for name in members:
            stop = start + tensors[name].numel()
            slots.append(TensorSlot(name, part, start, stop, tensors[name].shape))
            start = stop
    return slots


def described(slots: Iterable[TensorSlot], vector: Vector) -> list[str]:
    dtypes = [str(part.dtype).removeprefix("torch.") for part in vector.parts]
    return [f"{slot.name} {tuple(slot.shape)} {dtypes[slot.part]}" for slot in slots]


def read_description(lines: Iterable[str]) -> list[TensorSlot]:
    """Where the described tensors lie, as `describe` wrote them: those of one dtype side by side."""
    slots, ends = [], dict[str, int]()
    for line in lines:
        name, dims, dtype = _DESCRIBED.fullmatch(line).groups()  # type: ignore[union-attr]  # written by `described`
        shape = torch.Size(int(dim) for dim in dims.split(",") if dim.strip())
        start = ends.setdefault(dtype, 0)
        ends[dtype] = start + shape.numel()
        slots.append(TensorSlot(name, list(ends).index(dtype), start, ends[dtype], shape))
    return slots


_DESCRIBED = re.compile(r"(.*) \(([0-9, ]*)\) (\w+)")


def names_of(module: nn.Module) -> dict[str, str]:
    """What each parameter is called in a vector of the whole module: tied ones by the first of their names."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


def trainable(modules: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """Each parameter once, under the first of its names."""
    seen: set[int] = set()
    found: dict[str, nn.Parameter] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                found[name] = parameter
    return found


def buffers_of(modules: Iterable[nn.Module]) -> dict[str, tuple[nn.Module, str, Tensor]]:
    """Each buffer once, by its name: its owner, its key there, and itself."""
    seen: set[int] = set()
    found: dict[str, tuple[nn.Module, str, Tensor]] = {}
    for module in modules:
        for path, owner in module.named_modules():
            for key, buffer in owner._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    found[f"{path}.{key}" if path else key] = (owner, key, buffer)
    return found


@dataclass(frozen=True, slots=True)
class CollectedGrads:
    """Where the gradients lay that were brought into a flat vector."""

    views: list[Tensor]  # of the vector
    grads: list[Tensor]  # what was brought there
    absent: list[Tensor]  # views of what had no gradient
    here: bool  # whether others lay in the vector already

    @property
    def stay(self) -> bool:
        """Whether all can be brought there again later: on a GPU their memory belongs to another stream."""
        return not self.here and not any(view.is_cuda for view in self.views)

    def bring(self) -> None:
        """Bring them there."""
        if self.views and self.views[0].is_cuda:
            torch._foreach_copy_(self.views, self.grads)  # a few launches for all of them
        else:
            for view, grad in zip(self.views, self.grads, strict=True):
                view.copy_(grad)
        for view in self.absent:
            view.zero_()

"""The numbers of a model as strategies see them: one flat tensor per (device, dtype), with the arithmetic they need."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from covey.errors import WireError

STRETCH = 1 << 18  # numbers that are averaged in one go: what is in between stays in the processor's own memory


class Vector:
    """A few flat tensors that behave as one vector; methods that end in `_` write in place and return it.

    One that came over a wire knows from whom: it must have the same parts as whatever it is put together with.

    Args:
        parts: The tensors.
        origin: Who sent it.

    >>> covey.Vector([torch.ones(2), torch.ones(3)]).mul_(2).numel
    5
    """

    __slots__ = ("_nbytes", "origin", "parts")

    def __init__(self, parts: Iterable[Tensor], origin: object = None) -> None:
        self.parts: tuple[Tensor, ...] = tuple(parts)
        self.origin = origin
        self._nbytes = -1  # until it is asked for: on its way a message is asked for it many times

    @property
    def numel(self) -> int:
        return sum(part.numel() for part in self.parts)

    @property
    def nbytes(self) -> int:
        if self._nbytes < 0:
            self._nbytes = sum(part.numel() * part.element_size() for part in self.parts)
        return self._nbytes

    @property
    def hollow(self) -> bool:
        """Whether it has no numbers, only a size: all its parts are meta tensors."""
        return all(part.is_meta for part in self.parts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Vector:
        """The vector whose parts are `change(part)`."""
        return Vector((change(part) for part in self.parts), self.origin)

    def clone(self) -> Vector:
        return self.map(torch.clone)

    def cut(self, piece: Piece) -> Vector:
        """The views that `piece` names: usually one range of each part, or any number of them."""
        assert len(piece) == len(self.parts), "a piece of another vector"
        found = (part[a:b] for part, ends in zip(self.parts, piece, strict=True) for a, b in ranges(ends))
        return Vector(found, self.origin)

    def join(self, other: Vector) -> Vector:
        """Both vectors side by side; nothing is copied."""
        return Vector(self.parts + other.parts)

    def zero_(self) -> Self:
        for part in self.parts:
            part.zero_()
        return self

    def copy_(self, other: Vector) -> Self:
        for mine, theirs in self._pairs(other, moved=False):
            mine.copy_(theirs)
        return self

    def add_(self, other: Vector, alpha: float = 1) -> Self:
        """self += alpha * other; with a whole alpha of whole numbers too."""
        for mine, theirs in self._pairs(other):
            mine.add_(theirs, alpha=alpha)
        return self

    def mul_(self, factor: float) -> Self:
        for part in () if _only_sizes(self) else self.parts:
            part.mul_(factor)
        return self

    def lerp_(self, other: Vector, weight: float) -> Self:
        """self += weight * (other - self)."""
        for mine, theirs in self._pairs(other):
            mine.lerp_(theirs, weight)
        return self

    def __sub__(self, other: Vector) -> Vector:
        pairs = self._pairs(other, moved=False)
        return self.clone() if _only_sizes(self, other) else Vector(_minus(mine, theirs) for mine, theirs in pairs)

    def __mul__(self, factor: float) -> Vector:
        return self.clone() if _only_sizes(self) else self.map(lambda part: part * factor)

    def norm(self) -> float:
        """The Euclidean norm over all parts."""
        return math.sqrt(sum(part.double().square().sum().item() for part in self.parts))

    def quick_norm(self) -> float:
        """The same in single precision and without a copy, for what is only reported."""
        each = [torch.linalg.vector_norm(part, dtype=_at_least_single(part.dtype)).item() for part in self.parts]
        return math.sqrt(sum(float(norm) ** 2 for norm in each))

    def shorten_(self, most: float, norm: float | None = None) -> Self:
        """Make its norm, unless another one counts, at most `most`; on a GPU without waiting for the number."""
        if norm is None and self.parts and all(part.is_cuda for part in self.parts):
            each = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in self.parts]
            factor = (most / (torch.linalg.vector_norm(torch.stack(each)) + 1e-6)).clamp(max=1.0)
            for part in self.parts:
                part.mul_(factor.to(part.dtype))
            return self
        return self.mul_(min(most / ((self.norm() if norm is None else norm) + 1e-6), 1.0))  # NaN stays, as with torch

    def finite(self) -> bool:
        """Whether all its floats are numbers, neither NaN nor infinite; it costs one reading of them."""
        floats = (part for part in self.parts if part.is_floating_point() and not part.is_meta)
        return all(math.isfinite(part.sum().item()) or bool(part.isfinite().all()) for part in floats)

    def like(self, other: Vector) -> bool:
        """Whether both have the same parts: lengths and dtypes."""
        return [(p.numel(), p.dtype) for p in self.parts] == [(p.numel(), p.dtype) for p in other.parts]

    def _pairs(self, other: Vector, moved: bool = True) -> Iterable[tuple[Tensor, Tensor]]:
        for one, against in ((other, self), (self, other)):
            if one.origin is not None and _shapes(one) != _shapes(against):  # torch would stretch and convert it
                raise WireError(f"{one.origin} sent {one}, which does not fit {against}")
        if _only_sizes(self, other):
            return ()
        # what came over a wire lies in the memory of the CPU, wherever the numbers live that it meets
        pairs = zip(self.parts, other.parts, strict=True)
        return ((mine, theirs.to(mine.device)) for mine, theirs in pairs) if moved else pairs

    def __repr__(self) -> str:
        return "Vector(" + ", ".join(f"{p.numel()} x {p.dtype}".replace("torch.", "") for p in self.parts) + ")"


def _only_sizes(*vectors: Vector) -> bool:
    """Whether arithmetic would change nothing: there are no numbers, and nobody counts the calls of torch.

    Runs that are only timed ask for it at every message, and torch takes 0.1 ms to add two tensors without numbers.
    """
    return all(vector.hollow for vector in vectors) and _get_current_dispatch_mode() is None


def _minus(one: Tensor, other: Tensor) -> Tensor:
    """On the device of the one that did not come over a wire."""
    return one.to(other.device) - other if other.is_cuda else one - other.to(one.device)


def _shapes(vector: Vector) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for part in vector.parts]


Piece = tuple[tuple[int, ...], ...]
"""For each part of a vector the ends of its range: start, stop; or of several: start, stop, start, stop…"""


def ranges(ends: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The ranges of one part."""
    return zip(ends[::2], ends[1::2], strict=True)


def chunk(length: int, pieces: int, index: int) -> tuple[int, int]:
    """Where slice `index` of `pieces` begins and ends; lengths differ by at most one, any length works."""
    return length * index // pieces, length * (index + 1) // pieces


def chunks(vector: Vector, pieces: int) -> list[Piece]:
    """The vector in `pieces` equal pieces, cut in every part."""
    return [tuple(chunk(part.numel(), pieces, index) for part in vector.parts) for index in range(pieces)]


def largest(vector: Vector) -> float:
    """The largest absolute value of a single number."""
    return max((float(p.abs().max()) for p in vector.parts if p.numel() and not p.is_meta), default=0.0)


def fingerprint(vector: Vector) -> str:
    """Equal for equal numbers in the same order."""
    digest = hashlib.sha256()
    for part in vector.parts:
        digest.update(f"{part.dtype} {part.numel()}".encode())
        digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def mean_(into: Vector, vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Write the weighted mean of `vectors` into `into`, which may be one of them.

    They are added in the order given, so the result is repeatable.
    """
    if not vectors:
        return into.zero_()
    total = sum(weights)
    shares = [weight / total for weight in weights]
    if _only_sizes(into, *vectors):
        return into
    for pairs in zip(*(into._pairs(vector) for vector in vectors), strict=True):
        _mean(pairs[0][0].view(-1), [theirs.reshape(-1) for _, theirs in pairs], shares)
    return into


def mean(vectors: Sequence[Vector], weights: Sequence[float], device: torch.device | None = None) -> Vector:
    """The weighted mean of `vectors`, in a vector of its own: on this device, or where they lie."""
    return mean_(vectors[0].map(lambda part: part.new_empty(part.shape, device=device)), vectors, weights)


def _mean(into: Tensor, given: Sequence[Tensor], shares: Sequence[float]) -> None:
    """A stretch at a time, and only the last addition is written where one of those given may lie."""
    step = STRETCH if into.device.type == "cpu" else max(1, into.numel())
    for start in range(0, into.numel(), step):
        total, *others = (tensor[start : start + step] for tensor in given)
        total = torch.mul(total, shares[0], out=None if others else into[start : start + step])
        for place, other in enumerate(others, 1):
            last = place == len(others)
            total = torch.add(total, other, alpha=shares[place], out=into[start : start + step] if last else total)


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)

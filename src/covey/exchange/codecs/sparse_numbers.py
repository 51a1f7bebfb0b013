"""Few numbers of a vector and where they belong: how they lie on the wire, and how they are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange.codec import expect, refused
from covey.exchange.codecs.coded_runs import NumberRun, Raws, joined
from covey.model.flat import Form
from covey.vector import Vector

Chosen = tuple[Tensor, Tensor]
"""Places (int32, in order) and the numbers there."""

Chooser = Callable[[Tensor, Tensor | None, NumberRun, int], Chosen]
"""What travels of a run; it leaves the residual, if there is one. The last number is for chance."""


class SparseNumbers:
    """Chosen numbers of vectors of one form on the wire: for each part places and numbers, then what is raw.

    Where places and numbers would be longer than all numbers of a part, those travel, without places.
    """

    def __init__(self, form: Form, runs: Sequence[NumberRun]) -> None:
        self.form, self.raws = form, Raws(form, runs)
        self.runs = [run for run in runs if not run.raw]
        self.parts = [[run for run in self.runs if run.part == index] for index in range(len(form.like.parts))]
        if any(like.numel() >= 1 << 31 for like in form.like.parts):
            raise PlanError("a place has 31 bits, and the model more numbers: use a codec of bits, such as int8")

    def wire(self, chosen: Sequence[Chosen], vector: Vector) -> Vector:
        """What travels: what was chosen of each run, and what of the vector is raw."""
        parts, waiting = list[Tensor](), iter(chosen)
        for like, runs in zip(self.form.like.parts, self.parts, strict=True):
            mine = [(run.start, *next(waiting)) for run in runs]
            places = joined([where + start for start, where, _ in mine], torch.int32, vector)
            numbers = joined([found for _, _, found in mine], like.dtype, vector)
            if _full(like, places.numel()):
                every = torch.zeros_like(like)
                every[places.long()] = numbers
                places, numbers = places[:0], every
            parts += [places, numbers]
        return Vector([*parts, *self.raws.of(vector)])

    def decode(self, wire: Vector) -> Vector:
        pairs = [[(None, torch.int32), (None, like.dtype)] for like in self.form.like.parts]
        parts = expect(wire, *(one for pair in pairs for one in pair), *self.raws.sizes)
        decoded = self.form.like.map(torch.zeros_like)
        for index, out in enumerate(decoded.parts):
            put(wire, out, parts[2 * index], parts[2 * index + 1])
        self.raws.put(decoded, parts[2 * len(pairs) :])
        return decoded

    def nbytes(self, expected: Callable[[NumberRun], float]) -> float:
        """With this many numbers chosen of each run."""
        sizes: float = self.raws.nbytes
        for like, runs in zip(self.form.like.parts, self.parts, strict=True):
            count = sum(expected(run) for run in runs)
            sizes += like.numel() * like.element_size() if _full(like, count) else count * (4 + like.element_size())
        return sizes


def _full(like: Tensor, chosen: float) -> bool:
    """Whether this many numbers with their places would be longer than all of them."""
    return chosen * (4 + like.element_size()) > like.numel() * like.element_size()


def put(wire: Vector, out: Tensor, places: Tensor, numbers: Tensor) -> None:
    """Write numbers that came over a wire to their places, which have to be there, and each only once."""
    if not places.numel() and numbers.numel() == out.numel():
        out.copy_(numbers)
        return
    if places.numel() != numbers.numel():
        raise refused(wire, f"{places.numel()} places for {numbers.numel()} numbers")
    check_places(wire, places, out.numel())
    out[places.to(out.device).long()] = numbers.to(out.device)


def check_places(wire: Vector, places: Tensor, length: int) -> None:
    if not rising(places, length):
        raise refused(wire, f"places that do not rise from 0 to less than {length}")


def rising(places: Tensor, length: int) -> bool:
    """Whether these are places of a vector of this length, in order and each once."""
    inside = not places.numel() or (int(places[0]) >= 0 and int(places[-1]) < length)
    return inside and bool((places[1:] > places[:-1]).all())


def choose(
    chooser: Chooser, x: Tensor, residual: Tensor | None, run: NumberRun, chance: int, dtype: torch.dtype
) -> Chosen:
    """What is chosen of a run, in the type that travels; what rounding to it drops stays in the residual.

    Kernels reckon in float32: of longer numbers they only say which.
    """
    if torch.float64 in (x.dtype, None if residual is None else residual.dtype):
        wanted = x if residual is None else residual + x
        places, _ = chooser(wanted, None, run, chance)
        numbers = wanted[places.long()]
        if residual is not None:
            residual.copy_(wanted)[places.long()] = 0
    else:
        places, numbers = chooser(x, residual, run, chance)
    sent = numbers.to(dtype)
    if residual is not None and dtype != residual.dtype:
        residual[places.long()] += numbers - sent
    return places, sent

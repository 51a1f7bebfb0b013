"""Sparse binary compression (Sattler et al. 2019): one value for a few places of each layer, which are Golomb-coded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange import kernels
from covey.exchange.codec import Codec, Coder, Memory, Seed, check, expect, fusing, refused, zeros
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.bit_codes import golomb, golomb_bits, golomb_read, golomb_width, page_count
from covey.exchange.codecs.coded_runs import NumberRun, divided, joined
from covey.exchange.codecs.momentum import check_momentum
from covey.exchange.codecs.sparse import check_density, of
from covey.exchange.codecs.sparse_numbers import check_places
from covey.model.flat import Form
from covey.vector import Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class Sbc:
    """The largest or the smallest numbers of each layer, all with their mean; places Golomb-coded (Sattler 2019)."""

    density: float = 0.01
    momentum: float = 0.0  # gathered before anything is left out, as dgc's: that of what was sent stops

    def codec(self) -> Codec:
        check_density("sbc", self.density)
        check_momentum("sbc", self.momentum)
        if self.momentum:
            traits = CodecTraits(feedback="own", momentum="own")
            return Codec(name="sbc", make=partial(self.coder, carries=True), nbytes=self.nbytes, traits=traits)
        return fusing("sbc", self.coder, self.nbytes, CodecTraits(feedback="needed", momentum="reset"))

    def nbytes(self, form: Form) -> float:
        """For each layer a value; for each part the places, their number, and the lengths of their pages."""
        runs, size = divided("layer")(form), 0.0
        for part in {run.part for run in runs}:
            mine = [of(self.density, run.count) for run in runs if run.part == part]
            size += sum(mine) * golomb_bits(self.density) / 8 + 4 * len(mine) + 4 * (1 + page_count(sum(mine)))
        return size

    def coder(self, form: Form, seed: Seed, carries: bool) -> Coder:
        width = golomb_width(self.density)
        runs = [[run for run in divided("layer")(form) if run.part == index] for index in range(len(form.like.parts))]
        runs = [mine for mine in runs if mine]

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            check(vector)
            waiting, moving = memory if self.momentum else (memory, None)
            add, parts = self.gathered(vector, moving), list[Tensor]()
            for mine in runs:
                dtype = form.like.parts[mine[0].part].dtype
                found = [self.side(run.of(add), run.of(waiting) if waiting else None, run, dtype) for run in mine]
                if moving:
                    for run, (where, _) in zip(mine, found, strict=True):
                        run.of(moving)[where.long()] = 0  # it would only repeat what was sent
                places = joined([where.long() + run.start for run, (where, _) in zip(mine, found, strict=True)],
                                torch.int64, vector)  # fmt: skip
                codes, pages = golomb(places.diff(prepend=places.new_full((1,), -1)), width)
                head = torch.cat([torch.tensor([places.numel()], dtype=torch.int32), pages])
                parts += [torch.tensor([mean for _, mean in found], dtype=torch.float32), head, codes]
            return Vector(parts), memory

        def decode(wire: Vector) -> Vector:
            wanted = [((len(mine), torch.float32), (None, torch.int32), (None, torch.uint8)) for mine in runs]
            parts = iter(expect(wire, *(one for three in wanted for one in three)))
            decoded = form.like.map(torch.zeros_like)
            for mine in runs:
                _put(wire, decoded.parts[mine[0].part], mine, (next(parts), next(parts), next(parts)), width)
            return decoded

        def start() -> Memory:
            return (zeros(form), zeros(form)) if self.momentum else zeros(form) if carries else None

        return Coder(start, encode, decode)

    def gathered(self, vector: Vector, moving: Vector | None) -> Vector:
        """What is to be added to what waits: the gradient, or the momentum, which moves on by it."""
        if moving is None:
            return vector
        for u, g in zip(moving.parts, vector.parts, strict=True):
            u.mul_(self.momentum).add_(g)
        return moving

    def side(self, x: Tensor, residual: Tensor | None, run: NumberRun, dtype: torch.dtype) -> tuple[Tensor, float]:
        """The places of the largest or of the smallest numbers, whichever are further from 0, and their mean.

        That is a number of the type that it is decoded to: what narrowing drops waits too.
        """
        wanted = x if residual is None else residual.add_(x)
        k = of(self.density, run.count)
        up, down = (kernels.topk((sign * wanted).clamp_(min=0), None, k) for sign in (1, -1))
        where, sizes = up if float(up[1].sum()) >= float(down[1].sum()) else down
        where = where[sizes > 0]
        mean = float(wanted[where.long()].mean().float().to(dtype)) if where.numel() else 0.0
        if residual is not None:
            residual[where.long()] -= mean
        return where, mean


def _put(wire: Vector, out: Tensor, runs: list[NumberRun], parts: tuple[Tensor, Tensor, Tensor], width: int) -> None:
    """Write each layer's value to its places."""
    means, head, codes = parts
    count = int(head[0]) if head.numel() else -1
    if not 0 <= count <= out.numel():
        raise refused(wire, f"{count} places for {out.numel()} numbers")
    try:
        places = golomb_read(codes, head[1:], count, width).cumsum(0) - 1
    except WireError as error:
        raise refused(wire, str(error)) from None
    check_places(wire, places, out.numel())
    owner = torch.searchsorted(torch.tensor([run.stop for run in runs]), places, right=True)
    out[places.to(out.device)] = means[owner].to(out.device, out.dtype)

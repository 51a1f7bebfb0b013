"""Signs that are added up on their way: whole numbers from -n to n, packed so that no sum runs into its neighbour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import torch
from torch import Tensor

from covey.exchange import kernels
from covey.exchange.codec import Memory, Seed, Sum, Total, check
from covey.exchange.codecs.coded_runs import Dividing, NumberRun, Raws, RunCoder, finite, joined
from covey.model.flat import Form
from covey.vector import Vector

Signs = Callable[[Tensor, Tensor | None, NumberRun, int, Tensor], Tensor]
"""The codes of a run's signs, four to a byte as `kernels.twobit_encode` gives them; the last tensor is its scale."""

Scales = Callable[[RunCoder, Vector, Memory, Sum], Awaitable[Tensor]]
"""The scale of each run, the same for the whole group."""


def width(workers: int) -> int:
    """Bits for a sum of this many numbers from 0 to 2, of which whole ones fill a word."""
    return next(bits for bits in (2, 4, 8, 16) if 2 * workers < 1 << bits)


def words(count: int, workers: int) -> int:
    """How many 32-bit words this many sums fill."""
    return -(-count * width(workers) // 32)


def pack(signs: Tensor, workers: int) -> Tensor:
    """-1, 0 and 1 as 0, 1 and 2, side by side in 32-bit words."""
    filled = kernels.pack_bits((signs + 1).to(torch.int32), width(workers))
    return torch.nn.functional.pad(filled, (0, -filled.numel() % 4)).view(torch.int32)


def unpack(summed: Tensor, count: int, workers: int, added: int) -> Tensor:
    """The sums of signs, `added` vectors having come together."""
    filled = summed.contiguous().view(torch.uint8)[: -(-count * width(workers) // 8)]
    return kernels.unpack_bits(filled, width(workers), count).to(torch.float32) - added


def sum_of_signs(signs: Signs, scales: Scales) -> Callable[[RunCoder], Total]:
    """The total of a codec of signs. A worker drops what it did not send; on the way nothing is coded anew."""

    def made(work: RunCoder) -> Total:
        async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
            check(vector)
            shared = await scales(work, vector, memory, add)
            residual, count = memory
            sent = []
            for number, run in enumerate(work.runs):
                kept = run.of(residual) if residual else None
                mine = _signs(signs, run.of(vector), kept, run, work.chance(count, number), shared[number : number + 1])
                sent.append(pack(mine, work.seed.workers))
            one = torch.ones(1, dtype=torch.int32, device=shared.device)
            together = Vector([joined(sent, torch.int32, vector), one, *work.raws.of(vector)])
            await add(together)
            return _summed(work, together, shared), (residual, count + 1)

        return total

    return made


def _signs(signs: Signs, x: Tensor, residual: Tensor | None, run: NumberRun, chance: int, scale: Tensor) -> Tensor:
    """-1, 0 and 1; what is dropped of numbers longer than float32 is found beside the kernels."""
    beside = residual is not None and x.dtype != torch.float32
    wanted = x if residual is None or not beside else residual + x
    codes = signs(wanted, None if beside else residual, run, chance, scale)
    plain = torch.empty(run.count, dtype=torch.float32, device=x.device)
    kernels.twobit_decode(codes, 1.0, plain)
    if residual is not None and beside:
        torch.sub(wanted, plain * scale, out=residual)
    return plain


def _summed(work: RunCoder, together: Vector, shared: Tensor) -> Vector:
    """What the sums stand for."""
    added, place, likes = int(together.parts[1]), 0, work.form.like.parts
    wide = Vector(torch.empty(like.numel(), dtype=torch.float32, device=like.device) for like in likes)
    for number, run in enumerate(work.runs):
        stop = place + words(run.count, work.seed.workers)
        sums = unpack(together.parts[0][place:stop], run.count, work.seed.workers, added)
        run.of(wide).copy_(sums * shared[number])
        place = stop
    return finite(together, work.narrowed(wide, together.parts[2:]))


def fixed(scale: float) -> Scales:
    """The same for all, always."""

    async def scales(work: RunCoder, vector: Vector, memory: Memory, add: Sum) -> Tensor:
        device = vector.parts[0].device if vector.parts else torch.device("cpu")
        return torch.full((len(work.runs),), scale, dtype=torch.float32, device=device)

    return scales


def largest(of: Callable[[Tensor, Tensor | None, NumberRun], Tensor]) -> Scales:
    """The largest that anybody's run has."""

    async def scales(work: RunCoder, vector: Vector, memory: Memory, add: Sum) -> Tensor:
        residual: Vector | None = memory[0]
        found = [of(run.of(vector), run.of(residual).float() if residual else None, run).view(-1) for run in work.runs]
        return await _largest(joined(found, torch.float32, vector), work.seed, add)

    return scales


async def _largest(mine: Tensor, place: Seed, add: Sum) -> Tensor:
    """The largest over the group of each of these numbers, by a sum to which everybody brings a row of its own."""
    table = mine.new_zeros(place.workers, mine.numel())
    table[place.rank] = mine
    every = Vector([table.view(-1)])
    await add(every)
    return every.parts[0].view(table.shape).amax(0)


def nbytes(runs: Dividing, scales: bool) -> Callable[[Form, int], float]:
    """What travels in a sum of signs: words, raw numbers, the count, and of shared scales one for each worker."""

    def summed(form: Form, workers: int) -> float:
        signs = [run for run in runs(form) if not run.raw]
        sums = 4 * sum(words(run.count, workers) for run in signs)
        return sums + Raws(form, runs(form)).nbytes + 4 + 4 * scales * workers * len(signs)

    return summed

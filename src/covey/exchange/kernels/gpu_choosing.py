"""select, topk and mstopk on a GPU: what lies around the kernels of `gpu_choice` and `gpu_top`.

`wait=False` does not wait for the device and gives nothing back: it is there to time the device alone.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covey.exchange.kernels import chance, gpu_choice, gpu_top, plain, plain_choice
from covey.exchange.kernels.gpu_choice import Workspace, launch, programs_for


class LaunchShape(NamedTuple):
    """The numbers of a tile, the warps of a program and the programs on each processor of the device."""

    tile: int
    warps: int
    on_each: int


CHOOSE, TOP = LaunchShape(2048, 4, 4), LaunchShape(2048, 4, 4)
SAMPLE, DRAWN, PIECE = 8192, 32, 1024
CHUNK = 256  # numbers of a pool that a program takes at least
ONE, TWO = (chance.signed(key) for key in chance.keys(0))


def bits_of(number: float) -> int:
    """Of the float32."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits


def _tiles(x: Tensor, tile: int) -> int:
    assert x.numel() < 2**31 - tile, f"{x.numel()} numbers at once: at most 2^31 - {tile} fit these kernels"
    return -(-x.numel() // tile)


def _covered(programs: int) -> int:
    """A power of two that is no smaller."""
    return max(32, 1 << (programs - 1).bit_length())


def _told(x: Tensor, workspace: Workspace) -> list[int]:
    """What the launch told, when it is done."""
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()
    told: list[int] = workspace.told.tolist()
    return told


class PooledChoice(NamedTuple):
    """What one pass over all has chosen: of tiles how many, where they begin and the largest size; and the pool."""

    many: Tensor
    bases: Tensor
    tops: Tensor
    indices: Tensor
    values: Tensor

    @classmethod
    def of(cls, scratch: Tensor, tiles: int, pool: int) -> PooledChoice:
        many, bases, tops, indices, values = scratch.split([tiles, tiles, tiles, pool, pool])
        return cls(many, bases, tops, indices, values.view(torch.float32))

    def put_back(self, residual: Tensor) -> None:
        """Let the residual hold v again, also of what left."""
        held = (self.bases + self.many <= self.indices.numel()) & (self.many > 0)
        starts, lengths = self.bases[held].long(), self.many[held].long()
        first = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
        place = first + torch.arange(first.numel(), device=first.device)
        residual[self.indices[place].long()] = self.values[place]


def _refuse(x: Tensor, residual: Tensor | None, tops: Tensor, tile: int) -> None:
    """Tiles without NaN and infinity hold v: bring back what was there."""
    if residual is not None:
        fine = plain.spread((tops < plain.EXPONENT).float(), x.numel(), tile) > 0
        residual -= torch.where(fine, x, 0.0)
    raise plain.refused()


def select(x: Tensor, residual: Tensor | None, threshold: float, wait: bool = True) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return plain_choice.select(x, residual, threshold)
    tile, warps, on_each = CHOOSE
    tiles, room = _tiles(x, tile), x.numel() // 16 + 1024  # most choices are smaller
    programs, workspace = programs_for(x, tiles, on_each), Workspace.of(x)
    pool = 2 * room + programs * CHUNK
    out, scratch = _empty(x, 2 * room), _empty(x, 3 * tiles + 2 * pool)
    source = x if residual is None else residual
    numbers = bits_of(threshold), room, tiles
    constants = residual is not None, tile, _covered(programs), CHUNK
    launch(
        gpu_choice.choose,
        programs,
        (x, source, out, scratch, *workspace),
        x.numel(),
        numbers,
        constants,
        warps,
        on_each,
    )
    if not wait:
        return out, out
    values = out[room:].view(torch.float32)
    many, top, *_ = _told(x, workspace)
    if top < plain.EXPONENT and many <= room:
        return out[:many], values[:many]
    first = PooledChoice.of(scratch, tiles, pool)
    if residual is not None:
        first.put_back(residual)
    if top >= plain.EXPONENT:
        _refuse(x, residual, first.tops, tile)
    chosen = plain_choice.select(source, None, threshold)  # by now the residual holds v
    return chosen if residual is None else _left(residual, chosen)


def _empty(x: Tensor, words: int) -> Tensor:
    return torch.empty(words, dtype=torch.int32, device=x.device)


def _left(residual: Tensor, chosen: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What was chosen of a residual that holds v leaves it."""
    residual[chosen[0].long()] = 0
    return chosen


def topk(x: Tensor, residual: Tensor | None, k: int, wait: bool = True) -> tuple[Tensor, Tensor]:
    return _top(x, residual, k, 0, 0, wait)


def mstopk(
    x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int, wait: bool = True
) -> tuple[Tensor, Tensor]:
    return _top(x, residual, k, 0 if k == x.numel() else rounds, seed, wait)


def _otherwise(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int) -> tuple[Tensor, Tensor]:
    """Where the sample misled, or where there is nothing to choose."""
    if rounds:
        return plain_choice.mstopk(x, residual, k, rounds, seed)
    return plain_choice.topk(x, residual, k)


def _ranks(count: int, rank: int) -> tuple[int, int]:
    """Of the sample's sizes, between which the rank-th of all lies but for bad luck; it is exact if all are drawn."""
    if count <= SAMPLE:
        return rank, rank
    share = rank / count
    middle, margin = share * SAMPLE, 4 * (share * (1 - share) * SAMPLE) ** 0.5 + 4
    return int(middle - margin), int(middle + margin) + 1


def _top(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int, wait: bool) -> tuple[Tensor, Tensor]:
    count = x.numel()
    if k == 0 or not x.is_cuda:  # Triton's interpreter would take minutes
        return _otherwise(x, residual, k, rounds, seed)
    tile, warps, on_each = TOP
    tiles, (high, low) = _tiles(x, tile), _ranks(count, k + (rounds > 0))
    programs, workspace = programs_for(x, tiles, on_each), Workspace.of(x)
    room = 4 * (low - max(high, 0)) * -(-count // SAMPLE) + 4096 + programs * CHUNK
    out, scratch = _empty(x, 2 * k), _empty(x, SAMPLE + 2 * tiles + room)
    numbers = tiles, k, room, high, low, ONE, TWO, plain_choice.draw(seed) if rounds else 0
    constants: tuple[Any, ...] = residual is not None, rounds, SAMPLE, DRAWN, PIECE, tile, _covered(programs), CHUNK
    source = x if residual is None else residual
    launch(gpu_top.top, programs, (x, source, out, scratch, *workspace), x.numel(), numbers, constants, warps, on_each)
    if not wait:
        return out, out
    chosen = out[:k], out[k:].view(torch.float32)
    top, stands, *_ = _told(x, workspace)
    if top >= plain.EXPONENT:
        _refuse(x, residual, scratch[SAMPLE : SAMPLE + tiles], tile)
    if stands:
        return chosen
    chosen = _otherwise(source, None, k, rounds, seed)  # by now the residual holds v
    return chosen if residual is None else _left(residual, chosen)

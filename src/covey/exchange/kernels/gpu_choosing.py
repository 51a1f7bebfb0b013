"""select, topk and mstopk on a GPU: what lies around the kernels of `gpu_choice` and `gpu_top`.

`wait=False` does not wait for the device and gives nothing back: it is there to time the device alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from covey.exchange.kernels import chance, gpu_choice, gpu_top, plain, plain_choice

TILE, SAMPLE = 4096, 16384
EACH = TILE // 32
# Numbers (or words of 32) to a program, and warps
LEDGER, COLLECT, COUNT, JUDGE = (8192, 8), (128, 1), (2048, 4), (512, 4)


class Marked(NamedTuple):
    """One pass over all: which numbers reach the floor, and what is to be told of them."""

    words: Tensor
    counts: Tensor
    tops: Tensor
    ends: Tensor
    told: Tensor


def _mark(x: Tensor, residual: Tensor | None, floor: Tensor | float) -> Marked:
    tiles = -(-x.numel() // TILE)
    assert x.numel() < 2**31 - TILE, f"{x.numel()} numbers at once: at most 2^31 - {TILE} fit these kernels"
    words = torch.empty(tiles * EACH, dtype=torch.int32, device=x.device)
    counts, tops, ends = torch.empty((3, tiles), dtype=torch.int32, device=x.device)
    totals, told = x.new_empty(tiles), torch.empty(4, dtype=torch.float64, device=x.device)
    r = x if residual is None else residual
    known, bits = (False, 0) if isinstance(floor, Tensor) else (True, bits_of(floor))
    if not tiles:
        told.zero_()
        return Marked(words, counts, tops, ends, told)
    gpu_choice.mark[(tiles,)](
        x, r, words if known else floor, bits, words, counts, tops, totals, x.numel(), known,
        residual is not None, TILE,
    )  # fmt: skip
    wide, warps = LEDGER
    loops = triton.next_power_of_2(-(-tiles // wide))
    gpu_choice.ledger[(1,)](counts, tops, totals, ends, told, tiles, loops, wide, num_warps=warps)
    return Marked(words, counts, tops, ends, told)


def _collect(marked: Marked, source: Tensor, room: int, zero: bool) -> tuple[Tensor, Tensor]:
    out = torch.empty(room, dtype=torch.int32, device=source.device), source.new_empty(room)
    wide, warps = COLLECT
    grid = (-(-source.numel() // (32 * wide)),)
    if grid[0] and room:
        gpu_choice.collect[grid](
            source, marked.words, marked.counts, marked.ends, marked.told, *out, room, source.numel(), zero, EACH,
            wide, num_warps=warps,
        )  # fmt: skip
    return out


def bits_of(number: float) -> int:
    """Of the float32."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits


def _refuse(x: Tensor, residual: Tensor | None, tops: Tensor) -> None:
    """Tiles without NaN and infinity hold v: bring back what was there."""
    if residual is not None:
        residual -= torch.where(plain.spread((tops < plain.EXPONENT).float(), x.numel(), TILE) > 0, x, 0.0)
    raise plain.refused()


def select(x: Tensor, residual: Tensor | None, threshold: float, wait: bool = True) -> tuple[Tensor, Tensor]:
    source, zero = (x, False) if residual is None else (residual, True)
    marked = _mark(x, residual, threshold)
    room = x.numel() // 16 + 1024  # most choices are smaller; a larger one is collected when its size is known
    indices, values = _collect(marked, source, room, zero)
    if not wait:
        return indices, values
    many, top, _, _ = marked.told.tolist()
    if not top < float("inf"):
        _refuse(x, residual, marked.tops)
    if many > room:
        indices, values = _collect(marked, source, int(many), zero)
    return indices[: int(many)].clone(), values[: int(many)].clone()


def topk(x: Tensor, residual: Tensor | None, k: int, wait: bool = True) -> tuple[Tensor, Tensor]:
    return _top(x, residual, k, 0, 0, wait)


def mstopk(
    x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int, wait: bool = True
) -> tuple[Tensor, Tensor]:
    return _top(x, residual, k, rounds, seed, wait)


def _otherwise(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int) -> tuple[Tensor, Tensor]:
    """Where the sample misled, or where there is little to gain."""
    if rounds:
        return plain_choice.mstopk(x, residual, k, rounds, seed)
    return plain_choice.topk(x, residual, k)


def _top(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int, wait: bool) -> tuple[Tensor, Tensor]:
    count, keep = x.numel(), residual is not None
    share = k * SAMPLE / max(count, 1)
    rank = int(share + 4 * share**0.5 + 4)
    if count < 4 * SAMPLE or rank >= SAMPLE or k == 0:
        return _otherwise(x, residual, k, rounds, seed)
    source = x if residual is None else residual
    floor = torch.empty(1, dtype=torch.int32, device=x.device)
    keys = tuple(chance.signed(key) for key in chance.keys(0))
    gpu_top.sample_floor[(1,)](x, source, floor, count, rank, *keys, keep, SAMPLE, num_warps=16)
    marked = _mark(x, residual, floor)
    room = min(count, int(1.5 * rank * count / SAMPLE) + 4096)
    candidates = _collect(marked, source, room, False)
    out = _chosen(marked, floor, candidates, source, keep, count, k, rounds, seed)
    if not wait:
        return out
    _, top, _, stands = marked.told.tolist()
    if not top < float("inf"):
        _refuse(x, residual, marked.tops)
    if stands:
        return out
    out = _otherwise(source, None, k, rounds, seed)  # by now the residual holds v
    if residual is not None:
        residual[out[0].long()] = 0
    return out


def _chosen(
    marked: Marked, floor: Tensor, candidates: tuple[Tensor, Tensor], source: Tensor, keep: bool, count: int, k: int,
    rounds: int, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    indices, values = candidates
    room, told = values.numel(), marked.told
    table = torch.zeros(4096, dtype=torch.int32, device=source.device)
    limits = torch.empty(3, dtype=torch.int32, device=source.device)
    marks = torch.empty(room, dtype=torch.int64, device=source.device)
    tile, warps = COUNT
    for turn in range(3):
        grid = (-(-room // tile),)
        gpu_top.histogram[grid](values, told, table, k + (rounds > 0), room, turn, tile, num_warps=warps)
    word = plain_choice.draw(seed) if rounds else 0
    gpu_top.verdict[(1,)](table, told, floor, limits, count, k, word, room, rounds)
    tile, warps = JUDGE
    grid = (-(-room // tile),)
    gpu_top.judge[grid](values, told, limits, marks, room, tile, num_warps=warps)
    out = torch.empty(k, dtype=torch.int32, device=source.device), source.new_empty(k)
    gpu_top.hand_out[grid](
        indices, values, told, limits, marks.cumsum(0), source, *out, k, room, keep, tile, num_warps=warps
    )  # fmt: skip
    return out

"""select, topk and mstopk on a GPU: what lies around the kernels of `gpu_choice` and `gpu_top`.

`wait=False` does not wait for the device and gives nothing back: it is there to time the device alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from covey.exchange.kernels import chance, gpu_choice, gpu_top, plain, plain_choice

TILE, WIDE, SAMPLE, DRAWN, COUNT = 2048, 32, 16384, 128, 2048
SPAN, SPAN_WARPS = 8192, 8
DIGITS = ((23, 8), (15, 8), (7, 8), (0, 7))  # shift and bits, from the highest on
TABLES = (8192, 2048 + 4096, 4)  # the sample's sizes, the digits of candidates, and the floor
TAKE_WARPS, ORDER_WARPS, COUNT_WARPS, FLOOR_WARPS = 1, 4, 4, 8


class Taken(NamedTuple):
    """What one pass over all has found: the pool, and of tiles and groups what `gpu_choice` says."""

    pool: Tensor
    indices: Tensor
    values: Tensor
    of_tiles: tuple[Tensor, Tensor]  # how many of each, and where they begin
    tile_tops: Tensor
    many: Tensor
    tops: Tensor
    totals: Tensor
    told: Tensor

    @property
    def tiles(self) -> int:
        return self.tile_tops.numel()

    @property
    def each(self) -> int:
        """Tiles of a group: of many tiles there are not too many groups to sum up."""
        return in_group(self.tiles)

    @property
    def groups(self) -> int:
        return -(-self.tiles // self.each)

    @property
    def room(self) -> int:
        return self.indices.numel()

    def put_back(self, residual: Tensor) -> None:
        """Let the residual hold v again, also of what left."""
        counts, bases = self.of_tiles
        held = (bases + counts <= self.room) & (counts > 0)
        starts, lengths = bases[held].long(), counts[held].long()
        first = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
        place = first + torch.arange(first.numel(), device=first.device)
        residual[self.indices[place].long()] = self.values[place]


def in_group(tiles: int) -> int:
    return 16 if tiles <= 1 << 15 else 64


class Zeros(NamedTuple):
    """All that begins at zero, filled at once."""

    told: Tensor
    totals: Tensor
    pool: Tensor
    many: Tensor
    tops: Tensor
    tables: tuple[Tensor, Tensor, Tensor]


def _zeros(x: Tensor) -> Zeros:
    tiles = -(-x.numel() // TILE)
    groups = -(-tiles // (4 * in_group(tiles))) * 4  # so that all of their numbers begin on 16 bytes
    whole = torch.zeros(8 + 2 * groups + 4 + 2 * groups + sum(TABLES), dtype=torch.int32, device=x.device)
    told, totals, pool, many, tops, *tables = whole.split([8, 2 * groups, 4, groups, groups, *TABLES])
    bins, digits, floor = tables
    return Zeros(told.view(torch.float64), totals.view(torch.float64), pool, many, tops, (bins, digits, floor))


def _take(x: Tensor, residual: Tensor | None, floor: Tensor | float, room: int, zero: bool, zeros: Zeros) -> Taken:
    assert x.numel() < 2**31 - TILE, f"{x.numel()} numbers at once: at most 2^31 - {TILE} fit these kernels"
    tiles = -(-x.numel() // TILE)
    tile_many, tile_base, tile_tops = torch.empty((3, tiles), dtype=torch.int32, device=x.device)
    taken = Taken(
        zeros.pool, torch.empty(room, dtype=torch.int32, device=x.device), x.new_empty(room), (tile_many, tile_base),
        tile_tops, zeros.many, zeros.tops, zeros.totals, zeros.told,
    )  # fmt: skip
    if tiles:
        known, bits = (False, 0) if isinstance(floor, Tensor) else (True, bits_of(floor))
        gpu_choice.take[(tiles,)](
            x, x if residual is None else residual, tile_many if known else floor, bits, taken.pool, taken.indices,
            taken.values, tile_many, tile_base, tile_tops, taken.many, taken.tops, taken.totals, room, x.numel(),
            known, residual is not None, zero, taken.each, TILE, num_warps=TAKE_WARPS,
        )  # fmt: skip
    return taken


def bits_of(number: float) -> int:
    """Of the float32."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits


def _refuse(x: Tensor, residual: Tensor | None, taken: Taken, zeroed: bool) -> None:
    """Tiles without NaN and infinity hold v, or nothing of what left: bring back what was there."""
    if residual is not None:
        if zeroed:
            taken.put_back(residual)
        fine = plain.spread((taken.tile_tops < plain.EXPONENT).float(), x.numel(), TILE) > 0
        residual -= torch.where(fine, x, 0.0)
    raise plain.refused()


def select(x: Tensor, residual: Tensor | None, threshold: float, wait: bool = True) -> tuple[Tensor, Tensor]:
    room = x.numel() // 16 + 1024  # most choices are smaller
    taken = _take(x, residual, threshold, room, True, _zeros(x))
    told = torch.zeros(2, dtype=torch.float64, pin_memory=True)  # which the kernel writes itself
    out = torch.empty(room, dtype=torch.int32, device=x.device), x.new_empty(room)
    if taken.groups:
        gpu_choice.put_in_order[(taken.groups,)](
            taken.pool, taken.indices, taken.values, *taken.of_tiles, taken.many, taken.tops, told, *out, room,
            taken.tiles, taken.groups, taken.each, WIDE, num_warps=ORDER_WARPS,
        )  # fmt: skip
    if not wait:
        return out
    torch.cuda.current_stream(x.device).synchronize()
    many, top = told.tolist()
    if not top < float("inf"):
        _refuse(x, residual, taken, zeroed=True)
    if many <= room:
        return out[0][: int(many)], out[1][: int(many)]
    if residual is None:
        return plain_choice.select(x, None, threshold)
    taken.put_back(residual)
    return _left(residual, plain_choice.select(residual, None, threshold))


def _left(residual: Tensor, chosen: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What was chosen of a residual that holds v leaves it."""
    residual[chosen[0].long()] = 0
    return chosen


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
    count = x.numel()
    share = k * SAMPLE / max(count, 1)
    rank = int(share + 4 * share**0.5 + 4)
    if count < 4 * SAMPLE or rank >= SAMPLE or k == 0:
        return _otherwise(x, residual, k, rounds, seed)
    source = x if residual is None else residual
    zeros = _zeros(x)
    bins, digits, floor = zeros.tables
    keys = tuple(chance.signed(key) for key in chance.keys(0))
    gpu_top.sample[(SAMPLE // DRAWN,)](
        x, source, bins, count, *keys, residual is not None, SAMPLE, DRAWN, num_warps=COUNT_WARPS
    )  # fmt: skip
    gpu_top.settle_floor[(1,)](bins, floor, rank, num_warps=FLOOR_WARPS)
    taken = _take(x, residual, floor, min(count, 3 * rank * count // SAMPLE + 4096), False, zeros)
    out = _chosen(taken, digits, floor, source, residual is not None, k, rounds, seed)
    if not wait:
        return out
    _, top, stands, _ = taken.told.tolist()
    if not top < float("inf"):
        _refuse(x, residual, taken, zeroed=False)
    if stands:
        return out
    if not rounds:  # by now the residual holds v
        return _largest(source, k, zero=residual is not None)
    chosen = _otherwise(source, None, k, rounds, seed)
    return chosen if residual is None else _left(residual, chosen)


def _chosen(
    taken: Taken, table: Tensor, floor: Tensor, source: Tensor, keep: bool, k: int, rounds: int, seed: int
) -> tuple[Tensor, Tensor]:
    limits = torch.empty(2, dtype=torch.int32, device=source.device)
    marks = torch.empty(taken.tiles + 1 + taken.groups, dtype=torch.int64, device=source.device)
    of_tiles, of_groups = marks[: taken.tiles], marks[taken.tiles + taken.tiles % 2 :]
    for last in (False, True):
        gpu_top.histogram[(-(-taken.room // COUNT),)](
            taken.values, taken.pool, floor, table, k + (rounds > 0), taken.room, last, COUNT, num_warps=COUNT_WARPS
        )  # fmt: skip
    gpu_top.judge[(taken.groups,)](
        table, floor, taken.pool, taken.values, *taken.of_tiles, taken.tops, taken.totals, limits,
        taken.told, of_tiles, of_groups, source.numel(), k, taken.room, taken.tiles, taken.groups, rounds, taken.each,
        WIDE, num_warps=ORDER_WARPS,
    )  # fmt: skip
    out = torch.empty(k, dtype=torch.int32, device=source.device), source.new_empty(k)
    gpu_top.hand_out[(taken.groups,)](
        limits, taken.told, taken.indices, taken.values, *taken.of_tiles, of_tiles, of_groups, source, *out, k,
        plain_choice.draw(seed) if rounds else 0, taken.tiles, taken.groups, keep, taken.each, WIDE,
        num_warps=ORDER_WARPS,
    )  # fmt: skip
    return out


def _largest(v: Tensor, k: int, zero: bool) -> tuple[Tensor, Tensor]:
    """The k largest |v| (ties: the lowest index) in index order, as indices and values; `zero` takes them out of v."""
    assert 0 < k <= v.numel() < 2**31 - SPAN, f"{k} of {v.numel()} numbers"
    tiles = -(-v.numel() // SPAN)
    tables = torch.zeros((len(DIGITS), 1 << 8), dtype=torch.int32, device=v.device)
    state = torch.zeros(2, dtype=torch.int32, device=v.device)
    state[1:].fill_(k)
    for table, (shift, bits) in zip(tables, DIGITS, strict=True):
        gpu_top.count_digits[(tiles,)](
            v, table, state, v.numel(), shift, bits, shift == DIGITS[0][0], SPAN, num_warps=SPAN_WARPS
        )
        gpu_top.settle_digit[(1,)](table, state, shift, bits, num_warps=SPAN_WARPS)
    marks = torch.empty(tiles, dtype=torch.int64, device=v.device)
    gpu_top.mark[(tiles,)](v, state, marks, v.numel(), SPAN, num_warps=SPAN_WARPS)
    indices, values = torch.empty(k, dtype=torch.int32, device=v.device), v.new_empty(k)
    gpu_top.emit[(tiles,)](
        v, state, marks, marks.cumsum(0), indices, values, v.numel(), zero, SPAN, num_warps=SPAN_WARPS
    )
    return indices, values

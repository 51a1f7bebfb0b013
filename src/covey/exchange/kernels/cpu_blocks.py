"""How a tensor on a CPU is cut into blocks, tiles and pieces.

Blocks up to 32768 numbers are measured and coded tile by tile, so the memory is read once; larger ones, and one block
of all, are measured first. Sums are of fixed pieces, so nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.exchange.kernels import chance, plain
from covey.exchange.kernels.compiled import shared
from covey.exchange.kernels.cpu_packing import PIECE
from covey.exchange.kernels.cpu_stats import MOMENTS, PEAK, U, stats

SMALL = 32768


class CpuBlocks:
    """How a tensor is cut: `block` numbers share a scale, `tile` numbers are coded at a time."""

    def __init__(self, x: Tensor, residual: Tensor | None, block: int) -> None:
        self.x = x.numpy()
        self.r = None if residual is None else residual.numpy()
        self.count = x.numel()
        self.many, self.size = plain.blocks(self.count, block)
        self.ahead = self.size > SMALL
        unit = 8 if self.ahead else self.size * 8 // gcd(self.size, 8)
        self.tile = unit * max(1, PIECE // unit)
        self.bad = np.zeros(-(-self.count // self.tile), np.uint8)

    def survey(self, kind: int) -> Any:
        """A row for each block; unless they are large, an empty one that is filled tile by tile."""
        table = np.zeros((self.many, 3))
        for b in range(self.many if self.ahead else 0):
            part = slice(b * self.size, (b + 1) * self.size)
            pieces = _pieces(kind, self.x[part], None if self.r is None else self.r[part])
            table[b] = pieces.sum(0)
            if kind in (PEAK, MOMENTS):
                table[b, 0] = pieces[:, 0].max()
        return table

    def each(self, work: Callable[..., None], *settings: Any) -> None:
        shared(lambda start, stop: work(*settings, start, stop), self.count, self.tile)

    def check(self, decode: Callable[[Tensor], Tensor]) -> None:
        """Raise if a tile was refused, after taking the others' codes back: residual + dec - x is what it was."""
        if not self.bad.any():
            return
        if self.r is not None:
            dec = decode(torch.zeros(self.count)).numpy()
            for tile in np.flatnonzero(self.bad == 0):
                part = slice(tile * self.tile, (tile + 1) * self.tile)
                self.r[part] += dec[part] - self.x[part]
        raise plain.refused()


def _pieces(kind: int, x: Any, r: Any) -> Any:
    table = np.zeros((-(-x.size // PIECE), 3))

    def work(start: int, stop: int) -> None:
        rest = None if r is None else r[start:stop]
        stats(kind, x[start:stop], rest, PIECE, table, start // PIECE, -(-stop // PIECE))

    shared(work, x.size, PIECE)
    return table


def key_of(seed: int | None) -> Any:
    return None if seed is None else tuple(U(word) for word in chance.keys(seed))

"""The codecs on a CPU: what lies around the compiled loops of `cpu_levels` and `cpu_bits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.exchange.kernels import cpu_bits, cpu_levels, cpu_packing, plain
from covey.exchange.kernels.compiled import shared
from covey.exchange.kernels.cpu_blocks import CpuBlocks, key_of
from covey.exchange.kernels.cpu_packing import PIECE
from covey.exchange.kernels.cpu_stats import MOMENTS, NORM, PEAK, SIDES, stats

F = np.float32


def _grid(
    x: Tensor, residual: Tensor | None, block: int, kind: int, levels: float, shift: float, high: int,
    seed: int | None, dtype: Any, decode: Callable[[Any, Any, Tensor], Tensor],
) -> tuple[Any, Any]:  # fmt: skip
    """Codes and the top of each block, for every codec with evenly spaced levels."""
    cut = CpuBlocks(x, residual, block)
    q, inv, top = np.empty(cut.count, dtype), np.empty(cut.many, F), np.empty(cut.many, F)
    if cut.count == 0:
        return q, top
    table = cut.survey(kind)
    if cut.ahead and not cpu_levels.tops(kind, table, levels, inv, top, 0, cut.many):
        raise plain.refused()
    cut.each(
        cpu_levels.linear_tiles, cut.x, cut.r, q, cut.size, cut.tile, kind, F(levels), F(shift), F(high), key_of(seed),
        cut.ahead, table, inv, top, cut.bad,
    )  # fmt: skip
    cut.check(lambda out: decode(q, top, out))
    return q, top


def _back(q: Any, step: Tensor, shift: float, block: int, out: Tensor, alpha: float | None) -> Tensor:
    size, o = plain.blocks(out.numel(), block)[1], out.numpy()
    steps, weight = step.numpy(), _weight(alpha)
    if out.numel():
        shared(lambda a, e: cpu_levels.linear_back(q, steps, F(shift), size, o, weight, a, e), out.numel(), PIECE)
    return out


def _weight(alpha: float | None) -> Any:
    return None if alpha is None else F(alpha)


def int8_encode(x: Tensor, residual: Tensor | None, block: int, seed: int | None) -> tuple[Tensor, Tensor]:
    def decode(q: Any, top: Any, out: Tensor) -> Tensor:
        return _back(q, torch.from_numpy(top / F(127)), 0.0, block, out, None)

    q, top = _grid(x, residual, block, PEAK, 127.0, 0.0, 127, seed, np.int8, decode)
    return torch.from_numpy(q), torch.from_numpy(top / F(127))


def int8_decode(q: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(q.numpy(), scales, 0.0, block, out, alpha)


def qsgd_encode(
    x: Tensor, residual: Tensor | None, block: int, levels: int, seed: int | None, norm: str
) -> tuple[Tensor, Tensor]:
    def decode(q: Any, top: Any, out: Tensor) -> Tensor:
        return _back(q, torch.from_numpy(top) / levels, 0.0, block, out, None)

    kind, dtype = NORM if norm == "l2" else PEAK, np.int8 if levels <= 127 else np.int16
    q, top = _grid(x, residual, block, kind, float(levels), 0.0, levels, seed, dtype, decode)
    return torch.from_numpy(q), torch.from_numpy(top)


def qsgd_decode(q: Tensor, norms: Tensor, block: int, levels: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(q.numpy(), norms / levels, 0.0, block, out, alpha)


def dorefa_encode(x: Tensor, residual: Tensor | None, block: int, bits: int, seed: int | None) -> tuple[Tensor, Tensor]:
    half = (2**bits - 1) / 2

    def decode(q: Any, top: Any, out: Tensor) -> Tensor:
        return _back(q, torch.from_numpy(top) / half, half, block, out, None)

    q, top = _grid(x, residual, block, PEAK, half, half, 2**bits - 1, seed, np.uint8, decode)
    return pack_bits(torch.from_numpy(q), bits), torch.from_numpy(top)


def dorefa_decode(
    packed: Tensor, scales: Tensor, block: int, bits: int, out: Tensor, alpha: float | None = None
) -> Tensor:
    half = (2**bits - 1) / 2
    codes = np.empty(out.numel(), np.uint8)
    _unpack(packed, bits, codes)
    return _back(codes, scales / half, half, block, out, alpha)


def fixed16_encode(x: Tensor, residual: Tensor | None, fraction_bits: int, seed: int | None) -> Tensor:
    cut = CpuBlocks(x, residual, PIECE)
    q = np.empty(cut.count, np.int16)
    if cut.count:
        cut.each(cpu_levels.fixed_tiles, cut.x, cut.r, q, cut.tile, F(2.0**fraction_bits), key_of(seed), cut.bad)
        cut.check(lambda out: fixed16_decode(torch.from_numpy(q), fraction_bits, out))
    return torch.from_numpy(q)


def fixed16_decode(q: Tensor, fraction_bits: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(q.numpy(), torch.tensor([2.0**-fraction_bits]), 0.0, 0, out, alpha)


def natural_encode(x: Tensor, residual: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    cut = CpuBlocks(x, residual, PIECE)
    exponents, signs = np.empty(cut.count, np.uint8), np.empty(-(-cut.count // 8), np.uint8)
    wire = torch.from_numpy(exponents), torch.from_numpy(signs)
    if cut.count:
        cut.each(cpu_levels.natural_tiles, cut.x, cut.r, exponents, signs, cut.tile, key_of(seed), cut.bad)
        cut.check(lambda out: natural_decode(*wire, out))
    return wire


def natural_decode(exponents: Tensor, signs: Tensor, out: Tensor, alpha: float | None = None) -> Tensor:
    e, s, o, weight = exponents.numpy(), signs.numpy(), out.numpy(), _weight(alpha)
    shared(lambda a, b: cpu_levels.natural_back(e, s, o, weight, a, b), out.numel(), PIECE)
    return out


def onebit_encode(x: Tensor, residual: Tensor | None, block: int) -> tuple[Tensor, Tensor]:
    cut = CpuBlocks(x, residual, block)
    bits, levels = np.empty(-(-cut.count // 8), np.uint8), np.empty((cut.many, 2), F)
    wire = torch.from_numpy(bits), torch.from_numpy(levels)
    if cut.count == 0:
        return wire
    table = cut.survey(SIDES)
    if cut.ahead and not cpu_bits.means(table, cut.count, cut.size, levels, 0, cut.many):
        raise plain.refused()
    cut.each(cpu_bits.onebit_tiles, cut.x, cut.r, bits, cut.size, cut.tile, cut.ahead, table, levels, cut.bad)
    cut.check(lambda out: onebit_decode(*wire, block, out))
    return wire


def onebit_decode(bits: Tensor, levels: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    size, b, two, o, weight = (
        plain.blocks(out.numel(), block)[1],
        bits.numpy(),
        levels.numpy(),
        out.numpy(),
        _weight(alpha),
    )
    if out.numel():
        shared(lambda a, e: cpu_bits.onebit_back(b, two, size, o, weight, a, e), out.numel(), PIECE)
    return out


def twobit_encode(x: Tensor, residual: Tensor | None, threshold: float) -> Tensor:
    cut = CpuBlocks(x, residual, PIECE)
    packed = np.empty(-(-cut.count // 4), np.uint8)
    if cut.count:
        cut.each(cpu_bits.twobit_tiles, cut.x, cut.r, packed, cut.tile, F(threshold), cut.bad)
        cut.check(lambda out: twobit_decode(torch.from_numpy(packed), threshold, out))
    return torch.from_numpy(packed)


def twobit_decode(codes: Tensor, threshold: float, out: Tensor, alpha: float | None = None) -> Tensor:
    return terngrad_decode(codes, torch.tensor([threshold]), 0, out, alpha)


def terngrad_scale(x: Tensor, residual: Tensor | None, block: int, clip: float) -> Tensor:
    cut = CpuBlocks(x, residual, block)
    limit, kind = np.empty(cut.many, F), MOMENTS if clip else PEAK
    if cut.count == 0:
        return torch.from_numpy(limit)
    table = cut.survey(kind)
    if not cut.ahead:
        stats(kind, cut.x, cut.r, cut.size, table, 0, cut.many)
    if not cpu_bits.limits(table, cut.count, cut.size, F(clip), limit, 0, cut.many):
        raise plain.refused()
    return torch.from_numpy(limit)


def terngrad_encode(
    x: Tensor, residual: Tensor | None, block: int, seed: int, clip: float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    cut = CpuBlocks(x, residual, block)
    packed, limit = np.empty(-(-cut.count // 4), np.uint8), np.empty(cut.many, F)
    top = limit if scale is None else scale.numpy()
    wire = torch.from_numpy(packed), torch.from_numpy(top)
    if cut.count == 0:
        return wire
    table = cut.survey(MOMENTS if clip else PEAK)
    if cut.ahead and not cpu_bits.limits(table, cut.count, cut.size, F(clip), limit, 0, cut.many):
        raise plain.refused()
    cut.each(
        cpu_bits.terngrad_tiles, cut.x, cut.r, packed, cut.size, cut.tile, key_of(seed), F(clip), cut.ahead, table,
        limit, top, cut.bad,
    )  # fmt: skip
    cut.check(lambda out: terngrad_decode(*wire, block, out))
    return wire


def terngrad_decode(codes: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    size, c, s, o, weight = (
        plain.blocks(out.numel(), block)[1],
        codes.numpy(),
        scales.numpy(),
        out.numpy(),
        _weight(alpha),
    )
    if out.numel():
        shared(lambda a, e: cpu_bits.ternary_back(c, s, size, o, weight, a, e), out.numel(), PIECE)
    return out


def pack_bits(values: Tensor, bits: int) -> Tensor:
    packed, v = np.empty(-(-values.numel() * bits // 8), np.uint8), values.numpy()
    shared(lambda a, e: cpu_packing.pack(v, bits, packed, a, e), values.numel(), PIECE)
    return torch.from_numpy(packed)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    out = np.empty(count, np.int32)
    _unpack(packed, bits, out)
    return torch.from_numpy(out)


def _unpack(packed: Tensor, bits: int, out: Any) -> None:
    p = packed.numpy()
    shared(lambda a, e: cpu_packing.unpack(p, bits, out, a, e), out.size, PIECE)

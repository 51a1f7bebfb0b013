"""The codecs that round to a grid, in plain PyTorch: int8, qsgd, fixed16, dorefa and natural."""

from __future__ import annotations

import torch
from torch import Tensor

from covey.exchange.kernels.chance import uniform, words
from covey.exchange.kernels.plain import (
    bits_of,
    flags_of,
    keep,
    pack_bits,
    put,
    refused,
    rows,
    spread,
    unpack_bits,
    wanted,
)


def rounded(t: Tensor, seed: int | None) -> Tensor:
    """To nearest even, or up with the probability of the fraction."""
    if seed is None:
        return t.round()
    low = t.floor()
    return low + (uniform(seed, t.numel(), t.device) < t - low)


def inverse(levels: float, top: Tensor) -> Tensor:
    """levels / top, and 0 where top is 0 or so small (below 1e-33) that this is infinite: such blocks are sent as 0."""
    inv = torch.full_like(top, levels) / top  # a division: PyTorch multiplies by the reciprocal of a scalar
    return torch.where(torch.isfinite(inv), inv, 0.0)


def parted(top: Tensor, levels: float) -> Tensor:
    """One step of the grid; a division on every device, as above."""
    return top / torch.full_like(top, levels)


def peaks(v: Tensor, block: int) -> Tensor:
    return rows(v, block).abs().amax(1) if v.numel() else v.new_zeros(0)


def lengths(v: Tensor, block: int) -> Tensor:
    """In double precision: squares of numbers below 1e-22 or beyond 1e19 do not fit into single."""
    found: Tensor = torch.linalg.vector_norm(rows(v, block), dim=1, dtype=torch.float64)
    return found.to(torch.float32)


def int8_encode(x: Tensor, residual: Tensor | None, block: int, seed: int | None) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    top = peaks(v, block)
    inv, scales = inverse(127.0, top), parted(top, 127.0)
    q = rounded(v * spread(inv, v.numel(), block), seed).clamp_(-127, 127)
    keep(residual, v, q * spread(scales, v.numel(), block))
    return q.to(torch.int8), scales


def int8_decode(q: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return put(out, q.to(torch.float32) * spread(scales, out.numel(), block), alpha)


def qsgd_encode(
    x: Tensor, residual: Tensor | None, block: int, levels: int, seed: int | None, norm: str
) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    norms = peaks(v, block) if norm == "max" else lengths(v, block)
    if not bool(torch.isfinite(norms).all()):
        raise refused()
    q = rounded(v * spread(inverse(float(levels), norms), v.numel(), block), seed).clamp_(-levels, levels)
    keep(residual, v, q * spread(parted(norms, levels), v.numel(), block))
    return q.to(torch.int8 if levels <= 127 else torch.int16), norms


def qsgd_decode(q: Tensor, norms: Tensor, block: int, levels: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return put(out, q.to(torch.float32) * spread(parted(norms, levels), out.numel(), block), alpha)


def fixed16_encode(x: Tensor, residual: Tensor | None, fraction_bits: int, seed: int | None) -> Tensor:
    v = wanted(x, residual)
    q = rounded((v * 2.0**fraction_bits).clamp_(-32768, 32767), seed)
    keep(residual, v, q * 2.0**-fraction_bits)
    return q.to(torch.int16)


def fixed16_decode(q: Tensor, fraction_bits: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return put(out, q.to(torch.float32) * 2.0**-fraction_bits, alpha)


def dorefa_encode(x: Tensor, residual: Tensor | None, block: int, bits: int, seed: int | None) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    top, half = peaks(v, block), (2**bits - 1) / 2
    inv = inverse(half, top)
    q = rounded(v * spread(inv, v.numel(), block) + half, seed).clamp_(0, 2**bits - 1)
    keep(residual, v, (q - half) * spread(parted(top, half), v.numel(), block))
    return pack_bits(q.to(torch.int32), bits), top


def dorefa_decode(
    packed: Tensor, scales: Tensor, block: int, bits: int, out: Tensor, alpha: float | None = None
) -> Tensor:
    half = (2**bits - 1) / 2
    q = unpack_bits(packed, bits, out.numel()).to(torch.float32)
    return put(out, (q - half) * spread(parted(scales, half), out.numel(), block), alpha)


def natural_encode(x: Tensor, residual: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """Random bits added below the exponent carry into it with the probability of the mantissa."""
    v = wanted(x, residual)
    size = v.view(torch.int32) & 0x7FFFFFFF
    carry = (words(seed, v.numel(), v.device) >> 9) & 0x7FFFFF
    exponents = ((size + carry) >> 23).clamp_(max=254)
    negative = v.view(torch.int32) < 0
    if residual is not None:
        keep(residual, v, _power(exponents, negative))
    return exponents.to(torch.uint8), bits_of(negative)


def _power(exponents: Tensor, negative: Tensor) -> Tensor:
    size = (exponents.to(torch.int32) << 23).view(torch.float32)
    return torch.where(negative, -size, size)


def natural_decode(exponents: Tensor, signs: Tensor, out: Tensor, alpha: float | None = None) -> Tensor:
    return put(out, _power(exponents, flags_of(signs, out.numel())), alpha)

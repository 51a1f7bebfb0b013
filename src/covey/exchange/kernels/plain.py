"""The codecs in plain PyTorch, for any device: what the others must equal, and what is used where they cannot run.

Every function takes float32, flat and contiguous. With a residual `v = x + residual` is coded and `residual` becomes
`v - dec`; NaN and infinite numbers raise before the residual changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange.kernels.chance import uniform

EXPONENT = 0x7F800000
"""The bits of infinity: a float32 is finite when its other bits, without the sign, are below."""


def refused() -> WireError:
    return WireError("numbers to compress are NaN, infinite or too large (beyond 3e38 when added): training diverged")


def wanted(x: Tensor, residual: Tensor | None) -> Tensor:
    """What is to be coded, looked at once for NaN and infinity."""
    v = x if residual is None else x + residual
    if not bool(torch.isfinite(v).all()):
        raise refused()
    return v


def blocks(count: int, block: int) -> tuple[int, int]:
    """How many blocks of how many numbers; block 0 is one block of all."""
    size = block or max(count, 1)
    return -(-count // size), size


def rows(v: Tensor, block: int) -> Tensor:
    """One row for each block; the last one is filled with zeros."""
    many, size = blocks(v.numel(), block)
    if many * size != v.numel():
        v = torch.nn.functional.pad(v, (0, many * size - v.numel()))
    return v.view(many, size)


def spread(per_block: Tensor, count: int, block: int) -> Tensor:
    """The value of its block for each number."""
    many, size = blocks(count, block)
    return per_block.view(many, 1).expand(many, size).reshape(-1)[:count]


def put(out: Tensor, value: Tensor, alpha: float | None) -> Tensor:
    return out.copy_(value) if alpha is None else out.add_(value, alpha=alpha)


def keep(residual: Tensor | None, v: Tensor, dec: Tensor) -> None:
    if residual is not None:
        torch.sub(v, dec, out=residual)


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """The low `bits` of each number one after the other; the stream's bit t is bit t % 8 of byte t // 8."""
    apart = (values.to(torch.int32).view(-1, 1) >> torch.arange(bits, device=values.device, dtype=torch.int32)) & 1
    stream = torch.nn.functional.pad(apart.view(-1), (0, -values.numel() * bits % 8)).view(-1, 8)
    weights = 1 << torch.arange(8, device=values.device, dtype=torch.int32)
    return (stream * weights).sum(1, dtype=torch.int32).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The int32 numbers that `pack_bits` packed, as numbers without a sign."""
    apart = (packed.to(torch.int32).view(-1, 1) >> torch.arange(8, device=packed.device, dtype=torch.int32)) & 1
    weights = 1 << torch.arange(bits, device=packed.device, dtype=torch.int32)
    return (apart.view(-1)[: count * bits].view(count, bits) * weights).sum(1, dtype=torch.int32)


def onebit_encode(x: Tensor, residual: Tensor | None, block: int) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    table = rows(v, block)
    many, size = table.shape
    up = table >= 0
    above = up.sum(1)
    filled = torch.full_like(above, size)
    filled[-1:] -= many * size - v.numel()
    below = size - above
    above = above - (size - filled)
    levels = torch.stack(
        [table.clamp(min=0).sum(1) / above.clamp(min=1), table.clamp(max=0).sum(1) / below.clamp(min=1)], 1
    )
    if not bool(torch.isfinite(levels).all()):
        raise refused()
    if residual is not None:
        keep(residual, v, torch.where(up, levels[:, :1], levels[:, 1:]).view(-1)[: v.numel()])
    return bits_of(up.view(-1)[: v.numel()]), levels


def bits_of(flags: Tensor) -> Tensor:
    eights = torch.nn.functional.pad(flags.to(torch.uint8), (0, -flags.numel() % 8)).view(-1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=flags.device)
    return (eights * weights).sum(1, dtype=torch.uint8)


def flags_of(packed: Tensor, count: int) -> Tensor:
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=packed.device)
    return ((packed.view(-1, 1) & weights) != 0).view(-1)[:count]


def onebit_decode(bits: Tensor, levels: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    count = out.numel()
    up, down = (spread(levels[:, side], count, block) for side in (0, 1))
    return put(out, torch.where(flags_of(bits, count), up, down), alpha)


def ternary_pack(signs: Tensor) -> Tensor:
    """-1, 0, 1 as the codes 2, 0, 3: four to a byte, the first in the two high bits (MXNet)."""
    codes = torch.where(signs == 0, 0, torch.where(signs > 0, 3, 2)).to(torch.uint8)
    quads = torch.nn.functional.pad(codes, (0, -codes.numel() % 4)).view(-1, 4)
    return (quads[:, 0] << 6) | (quads[:, 1] << 4) | (quads[:, 2] << 2) | quads[:, 3]


def ternary_unpack(packed: Tensor, count: int) -> Tensor:
    """Float32 -1, 0, 1; the code that nobody writes, 1, is 0."""
    shifts = torch.tensor([6, 4, 2, 0], dtype=torch.uint8, device=packed.device)
    codes = ((packed.view(-1, 1) >> shifts) & 3).view(-1)[:count]
    return torch.tensor([0.0, 0.0, -1.0, 1.0], device=packed.device)[codes.long()]


def twobit_encode(x: Tensor, residual: Tensor | None, threshold: float) -> Tensor:
    v = wanted(x, residual)
    signs = (v >= threshold).to(torch.float32) - (v <= -threshold).to(torch.float32)
    keep(residual, v, signs * threshold)
    return ternary_pack(signs)


def twobit_decode(codes: Tensor, threshold: float, out: Tensor, alpha: float | None = None) -> Tensor:
    return put(out, ternary_unpack(codes, out.numel()) * threshold, alpha)


def terngrad_scale(x: Tensor, residual: Tensor | None, block: int, clip: float) -> Tensor:
    return _terngrad_limit(wanted(x, residual), block, clip)


def _terngrad_limit(v: Tensor, block: int, clip: float) -> Tensor:
    """max|v| after clipping at `clip` standard deviations, which is the smaller of the two."""
    table = rows(v, block)
    if v.numel() == 0:
        return v.new_zeros(0)
    top = table.abs().amax(1)
    if clip == 0:
        return top
    filled = torch.full_like(top, table.shape[1])
    filled[-1:] -= table.numel() - v.numel()
    wide = table.double()  # else squares of small and large numbers are lost
    gaps = wide - (wide.sum(1) / filled).view(-1, 1)
    gaps.view(-1)[v.numel() :] = 0
    limit = torch.minimum(top, (clip * (gaps.square().sum(1) / filled).sqrt()).to(torch.float32))
    if not bool(torch.isfinite(limit).all()):
        raise refused()
    return limit


def terngrad_encode(
    x: Tensor, residual: Tensor | None, block: int, seed: int, clip: float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    limit = _terngrad_limit(v, block, clip) if scale is None or clip else scale
    scale = limit if scale is None else scale
    bound, wide = spread(limit, v.numel(), block), spread(scale, v.numel(), block)
    size = torch.minimum(v.abs(), bound)
    signs = torch.where(uniform(seed, v.numel(), v.device) * wide < size, v.sign(), 0.0)
    keep(residual, v, signs * wide)
    return ternary_pack(signs), scale


def terngrad_decode(codes: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return put(out, ternary_unpack(codes, out.numel()) * spread(scales, out.numel(), block), alpha)

# mypy: disable-error-code="no-any-return"
"""How is a tensor compressed in one pass, on the device where it lies? One interface, three forms.

`plain` is PyTorch and runs anywhere; `cpu` is compiled by numba; `gpu` is Triton. All give the same codes for the same
seed (`chance`), up to the rounding of sums; without numba or Triton, the plain form is used.

Encoders take one tensor of any float type, read as float32, and a `residual` (flat float32) or None. With one,
`v = x + residual` is coded and `residual` becomes `v - dec` in the same pass. NaN, infinity and sums beyond float32
raise WireError and leave the residual as it was (up to the rounding of one addition where a pass had begun).
Decoders write into `out` (flat float32), or add `alpha` times what they decode.

`block` numbers in a row share a scale; the last block may be shorter, and 0 is one block of all. A `seed` rounds
by chance without bias; None, where allowed, rounds to nearest even.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange.kernels import plain, plain_choice, plain_levels

FLOAT = torch.float32
FAST = {"cpu": ("cpu", "cpu_choosing"), "cuda": ("gpu.levels", "gpu.choosing")}


def onebit_encode(x: Tensor, residual: Tensor | None, block: int) -> tuple[Tensor, Tensor]:
    """Bit `v >= 0`, eight to a byte, lowest bit first; per block the means of those and of the others (0 if none)."""
    return _encode("onebit_encode", x, residual, block)


def onebit_decode(bits: Tensor, levels: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    _expect("onebit", (bits, torch.uint8, -(-out.numel() // 8)), (levels, FLOAT, 2 * _blocks(out, block)))
    return _decode("onebit_decode", bits, levels, block, out, alpha)


def twobit_encode(x: Tensor, residual: Tensor | None, threshold: float) -> Tensor:
    """MXNet's: 3 for `v >= threshold`, 2 for `v <= -threshold`, else 0; four to a byte, the first in the high bits."""
    return _encode("twobit_encode", x, residual, threshold)


def twobit_decode(codes: Tensor, threshold: float, out: Tensor, alpha: float | None = None) -> Tensor:
    _expect("twobit", (codes, torch.uint8, -(-out.numel() // 4)))
    return _decode("twobit_decode", codes, threshold, out, alpha)


def int8_encode(x: Tensor, residual: Tensor | None, block: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127, and per block the scale max|v| / 127."""
    return _encode("int8_encode", x, residual, block, seed)


def int8_decode(q: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    _expect("int8", (q, torch.int8, out.numel()), (scales, FLOAT, _blocks(out, block)))
    return _decode("int8_decode", q, scales, block, out, alpha)


def terngrad_scale(x: Tensor, residual: Tensor | None, block: int, clip: float) -> Tensor:
    """Per block max|v|, or `clip` standard deviations if that is less: to agree on a shared scale."""
    return _encode("terngrad_scale", x, residual, block, clip)


def terngrad_encode(
    x: Tensor, residual: Tensor | None, block: int, seed: int, clip: float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sign with probability |v| / scale, v clipped first (0: not at all); coded as `twobit`, with its scales."""
    return _encode("terngrad_encode", x, residual, block, seed, clip, scale)


def terngrad_decode(codes: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    _expect("terngrad", (codes, torch.uint8, -(-out.numel() // 4)), (scales, FLOAT, _blocks(out, block)))
    return _decode("terngrad_decode", codes, scales, block, out, alpha)


def qsgd_encode(
    x: Tensor, residual: Tensor | None, block: int, levels: int, seed: int | None, norm: Literal["l2", "max"]
) -> tuple[Tensor, Tensor]:
    """sign * level, up to `levels`, as int8 (int16 from 128 levels on), and per block the norm."""
    return _encode("qsgd_encode", x, residual, block, levels, seed, norm)


def qsgd_decode(q: Tensor, norms: Tensor, block: int, levels: int, out: Tensor, alpha: float | None = None) -> Tensor:
    narrow = torch.int8 if levels <= 127 else torch.int16
    _expect("qsgd", (q, narrow, out.numel()), (norms, FLOAT, _blocks(out, block)))
    return _decode("qsgd_decode", q, norms, block, levels, out, alpha)


def fixed16_encode(x: Tensor, residual: Tensor | None, fraction_bits: int, seed: int | None) -> Tensor:
    """16-bit fixed point, int16 in steps of 2^-fraction_bits, saturating (Gupta et al. 2015)."""
    return _encode("fixed16_encode", x, residual, fraction_bits, seed)


def fixed16_decode(q: Tensor, fraction_bits: int, out: Tensor, alpha: float | None = None) -> Tensor:
    _expect("fixed16", (q, torch.int16, out.numel()))
    return _decode("fixed16_decode", q, fraction_bits, out, alpha)


def dorefa_encode(x: Tensor, residual: Tensor | None, block: int, bits: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """2^bits levels (bits 1 to 8) from -max|v| to max|v|, zero not among them, packed; per block max|v|."""
    return _encode("dorefa_encode", x, residual, block, bits, seed)


def dorefa_decode(
    packed: Tensor, scales: Tensor, block: int, bits: int, out: Tensor, alpha: float | None = None
) -> Tensor:
    _expect("dorefa", (packed, torch.uint8, -(-out.numel() * bits // 8)), (scales, FLOAT, _blocks(out, block)))
    return _decode("dorefa_decode", packed, scales, block, bits, out, alpha)


def natural_encode(x: Tensor, residual: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """Powers of two in 9 bits: a byte of exponent for each number, and eight signs to a byte (lowest bit first).

    Exponent 0 is zero; what is smaller than 2^-126 becomes that or zero, by chance; beyond 2^127 it saturates.
    """
    return _encode("natural_encode", x, residual, seed)


def natural_decode(exponents: Tensor, signs: Tensor, out: Tensor, alpha: float | None = None) -> Tensor:
    _expect("natural", (exponents, torch.uint8, out.numel()), (signs, torch.uint8, -(-out.numel() // 8)))
    return _decode("natural_decode", exponents, signs, out, alpha)


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """The low `bits` (1 to 16) of each whole number, one after the other; bit t is bit t % 8 of byte t // 8."""
    flat = values.reshape(-1)
    flat = flat if flat.dtype == torch.uint8 else flat.to(torch.int32)
    return _form("pack_bits", values.device.type)(flat.contiguous(), bits)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """`count` numbers of `bits` without a sign, as int32."""
    _expect("packed", (packed, torch.uint8, -(-count * bits // 8)))
    return _form("unpack_bits", packed.device.type)(packed.contiguous(), bits, count)


def select(x: Tensor, residual: Tensor | None, threshold: float) -> tuple[Tensor, Tensor]:
    """All |v| >= threshold in index order, as int32 indices and values; the residual keeps the others."""
    return _encode("select", x, residual, threshold)


def topk(x: Tensor, residual: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Exactly the k largest |v| (ties: the lowest index), in index order; the residual keeps the others."""
    return _encode("topk", x, residual, min(k, x.numel()))


def mstopk(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int) -> tuple[Tensor, Tensor]:
    """About the k largest |v|: `rounds` bisections between mean and maximum, then a random run (Shi et al. 2021)."""
    return _encode("mstopk", x, residual, min(k, x.numel()), rounds, seed)


def _encode(name: str, x: Tensor, residual: Tensor | None, *settings: Any) -> Any:
    flat, ready = x, x.dim() == 1 and x.dtype is FLOAT and x.is_contiguous() and not x.requires_grad
    if not ready:  # each of these calls takes a microsecond
        flat = x.detach().reshape(-1).to(FLOAT).contiguous()
    if residual is not None:
        assert residual.shape == flat.shape and residual.dtype == torch.float32 and residual.is_contiguous(), (
            f"a residual of {tuple(residual.shape)} {residual.dtype} for {flat.numel()} numbers: flat float32 is needed"
        )
    return _form(name, flat.device.type)(flat, residual, *settings)


def _decode(name: str, *arguments: Any) -> Any:
    out = arguments[-2]
    assert out.dim() == 1 and out.dtype == torch.float32 and out.is_contiguous(), "decode into a flat float32 tensor"
    whole = (part.contiguous() if isinstance(part, Tensor) else part for part in arguments)
    return _form(name, out.device.type)(*whole)


@cache
def _form(name: str, device: str) -> Any:
    """The function of that name in the best form for the device."""
    for room in FAST.get(device, ()):
        try:
            home = import_module(f"covey.exchange.kernels.{room}")
        except ImportError:  # no numba, or no Triton
            break
        if hasattr(home, name):
            return getattr(home, name)
    return next(getattr(home, name) for home in (plain, plain_levels, plain_choice) if hasattr(home, name))


def _blocks(out: Tensor, block: int) -> int:
    return plain.blocks(out.numel(), block)[0]


def _expect(name: str, *parts: tuple[Tensor, torch.dtype, int]) -> None:
    """What arrives is of the type and size that the receiver's own tensor asks for."""
    for tensor, dtype, size in parts:
        if tensor.numel() != size or tensor.dtype != dtype:
            raise WireError(f"{name}: {tensor.numel()} of {tensor.dtype} came where {size} of {dtype} belong")

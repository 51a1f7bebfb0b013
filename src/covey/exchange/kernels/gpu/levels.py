"""The codecs on a GPU: what lies around the Triton kernels of `rows`, `whole` and `flat`.

Blocks up to 8192 numbers take one pass; one block of all takes two, in one launch; other blocks take three launches.
`check=False` does not wait for the device: then a scale that is not finite says that its block was refused, and its
residual is as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from covey.exchange.kernels import chance, plain
from covey.exchange.kernels.gpu import flat, rows, whole
from covey.exchange.kernels.gpu.launch import EXACT, CooperativeShape, LaunchShape, Workspace, launch
from covey.exchange.kernels.plain_levels import parted

SMALL, TILE, ROWS, PIECES = 8192, 4096, 2048, 4096
COPIED = 512  # scales that the processor looks at itself
PEAK, NORM, MOMENTS, SIDES = 0, 1, 2, 3
WHOLE = LaunchShape(2048, 4, 4)


class GpuBlocks:
    """How a tensor is cut, the scales of its blocks, and whether it was refused."""

    def __init__(self, x: Tensor, residual: Tensor | None, block: int, kind: int, clip: float = 0.0) -> None:
        self.x, self.residual, self.block, self.count = x, residual, block, x.numel()
        assert self.count < 2**31 - SMALL, f"{self.count} numbers at once: at most 2^31 - {SMALL} fit these kernels"
        self.r = x if residual is None else residual
        self.kind, self.clip, self.keep = kind, clip, residual is not None
        self.many, self.size = plain.blocks(self.count, block)
        self.small = 0 < block <= SMALL  # BLOCK is compiled in, so it must not vary with the tensor
        self.one = self.many == 1 and not self.small
        self.even = self.small and block >= 32 and block & (block - 1) == 0
        self.scales = x.new_empty((self.many, 2) if kind == SIDES else (self.many,))
        self._asked: Workspace | None = None
        self._copied: tuple[Tensor, torch.cuda.Event] | None = None
        if not (self.small or self.one):
            self._survey()
            self._copy_scales()

    def code_rows(
        self, kernel: Any, codes: tuple[Tensor, ...], numbers: tuple[float, ...], constants: tuple[bool, ...]
    ) -> None:
        """Small blocks, several to a program."""
        wide = triton.next_power_of_2(self.size)
        each = max(1, ROWS // wide)
        self._asked = Workspace.of(self.x)
        launch(
            kernel, -(-self.many // each), (self.x, self.r, *codes), self._asked, self.count, (self.many, *numbers),
            (*constants, self.keep, self.size, wide, each),
        )  # fmt: skip

    def code_whole(
        self, code: int, out: Tensor, shared: Tensor | None = None, levels: float = 1.0,
        keys: tuple[int, int] = (0, 0), chanced: bool = True, step: bool = False,
    ) -> None:  # fmt: skip
        """One block of all numbers."""
        (tiles, programs, covered), self._asked = CooperativeShape.of(self.x, WHOLE), Workspace.of(self.x)
        tensors = self.x, self.r, out, self.scales, self.scales if shared is None else shared
        settings = code, self.kind, chanced, self.clip > 0, shared is not None, step
        launch(
            whole.whole, programs, tensors, self._asked, self.count, (tiles, levels, self.clip, *keys),
            (*settings, self.keep, WHOLE.tile, covered), WHOLE,
        )  # fmt: skip

    def _copy_scales(self) -> None:
        """Few scales are on their way to the processor while codes are made: nobody waits for both in turn."""
        if self.count and self.scales.numel() <= COPIED:
            there = torch.empty(self.scales.shape, dtype=self.scales.dtype, pin_memory=True)
            there.copy_(self.scales, non_blocking=True)
            self._copied = there, torch.cuda.current_stream(self.x.device).record_event()

    def _survey(self) -> None:
        piece = max(TILE, triton.next_power_of_2(-(-self.size // PIECES)))
        pieces = -(-self.size // piece)
        table = torch.empty((self.many, pieces, 3), dtype=torch.float64, device=self.x.device)
        flat.survey[(pieces, self.many)](
            self.x, self.r, table, self.count, self.size, pieces, piece, self.kind, self.keep, 2048
        )  # fmt: skip
        flat.settle[(self.many,)](
            table, self.scales, self.count, self.size, pieces, self.clip, self.kind, self.clip > 0,
            triton.next_power_of_2(pieces),
        )  # fmt: skip

    @property
    def flat_grid(self) -> tuple[int]:
        return (-(-self.count // TILE),)

    def codes(self, each: int) -> Tensor:
        """Room for packed words, or for a byte a number where blocks end inside of words."""
        if self.small and not self.even:
            return torch.empty(self.count, dtype=torch.uint8, device=self.x.device)
        return torch.empty(-(-self.count * each // 32), dtype=torch.int32, device=self.x.device)

    def wire(self, codes: Tensor, each: int) -> Tensor:
        if codes.dtype == torch.uint8:
            loose, codes = codes, torch.empty(-(-self.count * each // 32), dtype=torch.int32, device=codes.device)
            rows.pack_codes[self.flat_grid](loose, codes, self.count, each, TILE)
        return codes.view(torch.uint8)[: -(-self.count * each // 8)]

    def check(self, decode: Callable[[Tensor], Tensor]) -> None:
        """Raise if a block was refused, after taking the others' codes back: residual + dec - x is what it was."""
        if self._asked is not None:
            if self._asked.answer() == 0:
                return
        elif self._copied is not None:
            there, came = self._copied
            came.synchronize()
            if all(map(math.isfinite, there.view(-1).tolist())):
                return
        fine = torch.isfinite(self.scales)
        if bool(fine.all()):
            return
        if self.residual is not None and self.small:
            intact = plain.spread(fine.view(self.many, -1).all(1).float(), self.count, self.block) > 0
            self.residual += torch.where(intact, decode(torch.empty_like(self.x)) - self.x, 0.0)
        raise plain.refused()


def _keys(seed: int | None) -> tuple[int, int]:
    one, two = chance.keys(seed or 0)
    return chance.signed(one), chance.signed(two)


def _linear(
    x: Tensor, residual: Tensor | None, block: int, norm: bool, levels: int, seed: int | None, step: bool
) -> tuple[Tensor, Tensor, GpuBlocks]:
    """The codes, and of each block the highest level or one step."""
    cut = GpuBlocks(x, residual, block, NORM if norm else PEAK)
    q = torch.empty(cut.count, dtype=torch.int8 if levels <= 127 else torch.int16, device=x.device)
    if cut.count == 0:
        return q, cut.scales, cut
    keys, chanced = _keys(seed), seed is not None
    if cut.small:
        cut.code_rows(rows.linear_rows, (q, cut.scales), (float(levels), *keys), (norm, chanced, step))
    elif cut.one:
        cut.code_whole(whole.LINEAR, q, None, float(levels), keys, chanced, step)
    else:
        flat.linear_flat[cut.flat_grid](
            x, cut.r, q, cut.scales, cut.count, cut.size, float(levels), *keys, chanced, cut.keep, TILE, **EXACT
        )  # fmt: skip
        return q, parted(cut.scales, float(levels)) if step else cut.scales, cut
    return q, cut.scales, cut


def _back(kernel: Any, codes: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None) -> Tensor:
    many, size = plain.blocks(out.numel(), block)
    if out.numel():
        kernel[(-(-out.numel() // TILE),)](
            codes, scales, out, out.numel(), size, alpha or 0.0, alpha is not None, many == 1, TILE, **EXACT
        )  # fmt: skip
    return out


def int8_encode(
    x: Tensor, residual: Tensor | None, block: int, seed: int | None, check: bool = True
) -> tuple[Tensor, Tensor]:
    q, scales, cut = _linear(x, residual, block, False, 127, seed, True)
    if check:
        cut.check(lambda out: int8_decode(q, scales, block, out))
    return q, scales


def int8_decode(q: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(flat.linear_back, q, scales, block, out, alpha)


def qsgd_encode(
    x: Tensor, residual: Tensor | None, block: int, levels: int, seed: int | None, norm: str, check: bool = True
) -> tuple[Tensor, Tensor]:
    q, norms, cut = _linear(x, residual, block, norm == "l2", levels, seed, False)
    if check:
        cut.check(lambda out: qsgd_decode(q, norms, block, levels, out))
    return q, norms


def qsgd_decode(q: Tensor, norms: Tensor, block: int, levels: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(flat.linear_back, q, parted(norms, levels), block, out, alpha)


def onebit_encode(x: Tensor, residual: Tensor | None, block: int, check: bool = True) -> tuple[Tensor, Tensor]:
    cut = GpuBlocks(x, residual, block, SIDES)
    codes = cut.codes(1)
    if cut.count and cut.small:
        cut.code_rows(rows.onebit_rows, (codes, cut.scales), (), (cut.even,))
    elif cut.one:
        cut.code_whole(whole.ONEBIT, codes)
    elif cut.count:
        flat.onebit_flat[cut.flat_grid](x, cut.r, codes, cut.scales, cut.count, cut.size, cut.keep, TILE, **EXACT)
    wire = cut.wire(codes, 1)
    if check:
        cut.check(lambda out: onebit_decode(wire, cut.scales, block, out))
    return wire, cut.scales


def onebit_decode(bits: Tensor, levels: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(flat.onebit_back, bits, levels, block, out, alpha)


def terngrad_encode(
    x: Tensor, residual: Tensor | None, block: int, seed: int, clip: float, scale: Tensor | None = None,
    check: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    cut = GpuBlocks(x, residual, block, MOMENTS if clip else PEAK, clip)
    codes = cut.codes(2)
    top = cut.scales if scale is None else scale
    if cut.count and cut.small:
        settings = clip > 0, scale is not None, cut.even
        cut.code_rows(rows.terngrad_rows, (codes, cut.scales, top), (clip, *_keys(seed)), settings)
    elif cut.one:
        cut.code_whole(whole.TERNARY, codes, scale, keys=_keys(seed))
    elif cut.count:
        flat.terngrad_flat[cut.flat_grid](
            x, cut.r, codes, cut.scales, top, cut.count, cut.size, *_keys(seed), cut.keep, TILE, **EXACT
        )  # fmt: skip
    wire = cut.wire(codes, 2)
    if check:
        cut.check(lambda out: terngrad_decode(wire, top, block, out))
    return wire, top


def terngrad_decode(codes: Tensor, scales: Tensor, block: int, out: Tensor, alpha: float | None = None) -> Tensor:
    return _back(flat.ternary_back, codes, scales, block, out, alpha)

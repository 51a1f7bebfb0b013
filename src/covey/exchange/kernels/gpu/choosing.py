"""select, topk and mstopk on a GPU: what lies around the kernels of `choice` and `top`.

`wait=False` does not wait for the device and gives nothing back: it is there to time the device alone.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

import torch
from torch import Tensor

from covey.exchange.kernels import chance, plain, plain_choice
from covey.exchange.kernels.gpu import choice, top
from covey.exchange.kernels.gpu.launch import REFUSED, CooperativeShape, LaunchShape, Workspace, launch

CHOOSE, TOP = LaunchShape(1024, 4, 4), LaunchShape(2048, 4, 4)
SAMPLE, DRAWN, PIECE = 8192, 32, 1024
GROUP = 1024  # words of 32 numbers that a program looks through at once
CHUNK = 256  # numbers of a pool that a program takes at least
ONE, TWO = (chance.signed(key) for key in chance.keys(0))


def bits_of(number: float) -> int:
    """Of the float32."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits


def _refuse(x: Tensor, residual: Tensor | None, fine: Tensor, stretch: int) -> NoReturn:
    """Stretches without NaN and infinity hold v: bring back what was there."""
    if residual is not None:
        residual -= torch.where(plain.spread(fine.float(), x.numel(), stretch) > 0, x, 0.0)
    raise plain.refused()


def select(x: Tensor, residual: Tensor | None, threshold: float, wait: bool = True) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return plain_choice.select(x, residual, threshold)
    count, (tiles, programs, covered), workspace = x.numel(), CooperativeShape.of(x, CHOOSE), Workspace.of(x)
    room, many_words = count // 16 + 1024, tiles * CHOOSE.tile // 32  # most choices are smaller
    out, words = _empty(x, 2 * room), _empty(x, many_words + many_words // 4)
    source = x if residual is None else residual
    constants = residual is not None, CHOOSE.tile, covered, GROUP
    launch(
        choice.choose, programs, (x, source, out, words), workspace, count, (bits_of(threshold), room, tiles),
        constants, CHOOSE,
    )  # fmt: skip
    values = out[room:].view(torch.float32)
    if not wait:
        return out, values
    many = workspace.answer()
    if many <= room:
        return out[:many], values[:many]
    if many == REFUSED:
        _refuse(x, residual, words[many_words:].view(torch.int8)[: -(-count // 32)], 32)
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
    (tiles, programs, covered), workspace = CooperativeShape.of(x, TOP), Workspace.of(x)
    high, low = _ranks(count, k + (rounds > 0))
    room = 4 * (low - max(high, 0)) * -(-count // SAMPLE) + 4096 + programs * CHUNK
    out, scratch = _empty(x, 2 * k), _empty(x, SAMPLE + 2 * tiles + room)
    numbers = tiles, k, room, high, low, ONE, TWO, plain_choice.draw(seed) if rounds else 0
    constants: tuple[Any, ...] = residual is not None, rounds, SAMPLE, DRAWN, PIECE, TOP.tile, covered, CHUNK
    source = x if residual is None else residual
    launch(top.top, programs, (x, source, out, scratch), workspace, count, numbers, constants, TOP)
    chosen = out[:k], out[k:].view(torch.float32)
    if not wait:
        return chosen
    stands = workspace.answer()
    if stands == REFUSED:
        _refuse(x, residual, scratch[SAMPLE : SAMPLE + tiles] < plain.EXPONENT, TOP.tile)
    if stands:
        return chosen
    chosen = _otherwise(source, None, k, rounds, seed)  # by now the residual holds v
    return chosen if residual is None else _left(residual, chosen)

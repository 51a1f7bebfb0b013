"""The sum of what the members of a group bring, added in their order; NaN and infinite values are refused by name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.engines.process.role.native_sums import Group
from covey.errors import WireError

STRETCH = 128 << 10  # numbers that are summed in one go: they stay in the processor's own memory
GPU_STRETCH = 1 << 24  # the same on a GPU, where each one costs some launches


def add_up(given: list[Tensor], shares: list[float], into: Tensor, group: Group) -> None:
    """Add shares up in the order of the group; `into` may be one of those given. NaN and infinite values are refused.

    Each number is treated alike wherever it lies, so that the pieces in which vectors come do not matter. Equal shares
    are taken of the sum, which is faster; but not in float16, whose largest number is 65,504: there the sum of what
    each of them could hold may be too large.
    """
    alike = shares[0] if into.dtype != torch.float16 and shares.count(shares[0]) == len(shares) else None
    stretch, numel = GPU_STRETCH if into.is_cuda else STRETCH, into.numel()
    room = into
    if len(given) > 2 and into.data_ptr() in [tensor.data_ptr() for tensor in given]:
        room = torch.empty(min(stretch, numel), dtype=into.dtype, device=into.device)
    if numel <= stretch:  # a small sum is not cut: each cut would take longer than its additions
        return _add_stretch(given, shares, alike, room, into, group) if numel else None
    for start in range(0, numel, stretch):
        total = into[start : start + stretch]
        pieces = [tensor[start : start + stretch] for tensor in given]
        piece_room = total if room is into else room[: total.numel()]
        _add_stretch(pieces, shares, alike, piece_room, total, group)


def _add_stretch(
    pieces: list[Tensor], shares: list[float], alike: float | None, room: Tensor, total: Tensor, group: Group
) -> None:  # fmt: skip
    counted = pieces
    if alike is None:
        if total.dtype == torch.float16:  # so that a report can name who contributed NaN or infinity, or none
            pieces = [piece.clone() if piece.data_ptr() == total.data_ptr() else piece for piece in pieces]
        counted = [_times(piece, share) for piece, share in zip(pieces, shares, strict=True) if share]
    _add(counted, room, total)
    if alike is not None and alike != 1:
        total.mul_(alike)
    if total.dtype.is_floating_point and not math.isfinite(total.sum().item()):
        check_numbers(pieces, total, group)


def _times(piece: Tensor, share: float) -> Tensor:
    return piece if share == 1 else piece * share


def _add(pieces: list[Tensor], room: Tensor, into: Tensor) -> None:
    """Add one after the other; only the last result is written where one of them may lie."""
    total, *others = pieces
    for piece in others[:-1]:
        total = torch.add(total, piece, out=room)
    if others:
        torch.add(total, others[-1], out=into)
    else:
        into.copy_(total)  # as it is: to add it to nothing would turn -0 into 0


def check_numbers(given: list[Tensor], total: Tensor, group: Group) -> None:
    """Refuse a sum with NaN or infinite values; of one's own, only the total may be left."""
    own_last = sorted(zip(group, given, strict=True), key=lambda pair: pair[1].data_ptr() == total.data_ptr())
    for who, numbers in own_last:
        if not numbers.isfinite().all():
            raise WireError(
                f"{who} brought NaN or infinite numbers to a sum, which would spoil all others: its training has "
                "diverged; try a smaller learning rate, or clip_norm in the task"
            )
    if not total.isfinite().all():
        raise WireError(
            f"the sum of what {len(group)} roles brought is more than {str(total.dtype).removeprefix('torch.')} can "
            "hold: train in float32 or bfloat16, try a smaller learning rate, or clip_norm in the task"
        )

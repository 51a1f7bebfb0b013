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
    stretch = GPU_STRETCH if into.is_cuda else STRETCH
    size = min(stretch, into.numel())
    room = torch.empty(size, dtype=into.dtype, device=into.device) if len(given) > 2 else into
    narrow = into.dtype == torch.float16
    alike = shares[0] if shares.count(shares[0]) == len(shares) and not narrow else None
    whole = into.numel() <= stretch  # a small sum is not cut: each cut would take longer than its additions
    for start in range(0, into.numel(), stretch):
        pieces = given if whole else [tensor[start : start + stretch] for tensor in given]
        total = into if whole else into[start : start + stretch]
        if narrow:  # so that a report can name who contributed NaN or infinity, or say that only the sum has none
            pieces = [piece.clone() if piece.data_ptr() == total.data_ptr() else piece for piece in pieces]
        counted = pieces
        if alike is None:
            counted = [_times(piece, share) for piece, share in zip(pieces, shares, strict=True) if share]
        _add(counted, room if whole else room[: total.numel()], total)
        if alike not in (None, 1):
            total.mul_(alike)
        if total.is_floating_point() and not math.isfinite(total.sum()):
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

"""Rules for images of which each member has some rows: the rows at their borders, which neighbours need, travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.nn.local2d import filtered
from covey.parallelism.tensor.group import Rule, TensorGroup
from covey.parallelism.tensor.layout import SplitLayout
from covey.parallelism.tensor.split_tensor import Function, NoRule, SplitTensor

ROWS = 2  # the dimension, after samples and channels


def with_halo(x: Any, group: TensorGroup, layout: SplitLayout, around: int) -> Tensor:
    """A member's rows of an image and those `around` them; zeros around the whole."""
    if len(layout.blocks) != 1 or layout.blocks[0].numbers < group.members * max(1, around):
        raise NoRule
    if x.dim() != 4 or x.shape[ROWS] != layout.numbers:
        raise NoRule
    if isinstance(x, SplitTensor) and (x.divided.dim != ROWS or x.divided.blocks != layout.blocks):
        x = x.whole("local2d")
    if isinstance(x, SplitTensor):
        found: Tensor = _Halo.apply(group, x.local, around)  # type: ignore[no-untyped-call]
        return found
    (first, stop), *_ = group.ranges(layout.blocks)
    return F.pad(group.copied(x), (0, 0, around, around))[:, :, first : stop + 2 * around]


def local2d(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """By rows: a member has all weights of its rows, so that no gradient of a weight travels."""
    x, weight, bias, kernel = args
    if not isinstance(weight, SplitTensor) or weight.divided.dim != 0:
        raise NoRule
    group, layout = weight.group, weight.divided
    own = bias.local if isinstance(bias, SplitTensor) else None if bias is None else group.sliced(bias, layout)
    made = filtered(with_halo(x, group, layout, kernel // 2), weight.local, own, kernel)
    return SplitTensor(made, layout.at(ROWS), group)


def convolution_of_rows(func: Function, x: SplitTensor, weight: Tensor, bias: Tensor | None, more: Any) -> Any:
    """A convolution of an image whose rows are divided: its weights are whole, and their gradients are summed."""
    stride, padding, dilation = (one if isinstance(one, tuple) else (one, one) for one in more)
    if x.dim() != 4 or x.divided.dim != ROWS or stride[0] != 1 or dilation[0] != 1:
        raise NoRule
    if isinstance(padding[0], str) or 2 * padding[0] + 1 != weight.shape[2]:
        raise NoRule
    seen = with_halo(x, x.group, x.divided, padding[0])
    own = None if bias is None else x.group.copied(bias)
    made = func(seen, x.group.copied(weight), own, stride, (0, padding[1]), dilation)
    return SplitTensor(made, x.divided, x.group)


class _Halo(torch.autograd.Function):
    """Rows of the neighbours around the own ones; in backward their errors go back, and are added there."""

    @staticmethod
    def forward(ctx: Any, group: TensorGroup, rows: Tensor, around: int) -> Tensor:
        ctx.group, ctx.around = group, around
        if not around:
            return rows.clone()
        above, below = group.neighbours(rows[:, :, :around], rows[:, :, -around:])
        return torch.cat([above, rows, below], ROWS)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        group, around = ctx.group, ctx.around
        if not around:
            return None, grads[0], None
        above, below = group.neighbours(grads[0][:, :, :around], grads[0][:, :, -around:])
        own = grads[0][:, :, around:-around].clone()
        own[:, :, :around] += above
        own[:, :, -around:] += below
        return None, own, None


SPATIAL: dict[str, Rule] = {"local2d": local2d}

"""Cross-entropy over divided classes: of every sample a maximum, a sum and one number travel, not all scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from covey.parallelism.tensor.group import Rule, TensorGroup
from covey.parallelism.tensor.layout import SplitLayout
from covey.parallelism.tensor.products import check_range, own_places
from covey.parallelism.tensor.split_tensor import Function, NoRule, SplitTensor


def cross_entropy(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The plain one, of whole class numbers; others get whole scores."""
    scores, target, plain, ignore, reduction = _cross_entropy(*args, **kwargs)
    if not plain or not isinstance(scores, SplitTensor) or isinstance(target, SplitTensor):
        raise NoRule
    if scores.dim() < 2 or scores.divided.dim != 1 or target.is_floating_point() or reduction not in _REDUCED:
        raise NoRule
    losses: Tensor = _Losses.apply(scores.group, scores.local, target, scores.divided, ignore)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / (target != ignore).sum() if reduction == "mean" else total


_REDUCED = ("mean", "sum", "none")


def _cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> tuple[Any, Any, bool, int, str]:  # fmt: skip
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0
    return input, target, plain, ignore_index, reduction


class _Losses(torch.autograd.Function):
    """Of every sample: log(sum of exp(scores)) - score of its class."""

    @staticmethod
    def forward(
        ctx: Any, group: TensorGroup, scores: Tensor, target: Tensor, split: SplitLayout, ignore: int
    ) -> Tensor:
        counts = target != ignore
        check_range("label", torch.where(counts, target, 0), split.numbers)
        place, mine = own_places(group, target, split)
        mine &= counts
        highest = group.highest(scores.amax(1))
        powers = (scores - highest.unsqueeze(1)).exp()
        own = scores.gather(1, place.unsqueeze(1)).squeeze(1)
        own = torch.where(mine, own, 0)  # not a product: a score may be infinite
        total, chosen = group.add(torch.stack([powers.sum(1), own])).unbind(0)
        ctx.save_for_backward(powers, total, place, mine, counts)
        return torch.where(counts, total.log() + highest - chosen, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None, None, None]:
        powers, total, place, mine, counts = ctx.saved_tensors
        grad = powers / total.unsqueeze(1)
        grad.scatter_add_(1, place.unsqueeze(1), -mine.unsqueeze(1).to(grad.dtype))
        return None, grad * (grads[0] * counts).unsqueeze(1), None, None, None


LOSSES: dict[str, Rule] = {"cross_entropy": cross_entropy}

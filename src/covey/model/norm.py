"""SyncBatchNorm: batch-norm layers that exchange their statistics with those of all workers.

A model asks for it as anywhere in PyTorch: `nn.SyncBatchNorm.convert_sync_batchnorm(model)`. Forward and backward run
as one piece of work; at each such layer it stands still while the role exchanges a few numbers for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from covey.message import Address, Message
from covey.model.compute_shares import in_backward, in_forward
from covey.program import Node
from covey.vector import Vector

T = TypeVar("T")
TURNS = 1 << 20  # more exchanges than one step can have


class BatchMoments(Message):
    """What one worker's layer has to tell: of its inputs, or of the gradients of its outputs. `step` numbers turns."""

    wire_name = "norm.moments"

    step: int
    moments: Vector


class NormGroup:
    """The workers whose batches of this step are one large batch, as a layer sees them."""

    def __init__(
        self, node: Node, samples: Callable[[int, int], int], layers: int, weight: Callable[[], float] | None = None
    ) -> None:
        present = node.present(node.step)
        self._node, self._layers, self._turn = node, layers, 0
        self._peers = [Address("worker", rank) for rank in present]
        self._weight, self._samples = weight, samples(node.rank, node.step)

    @property
    def weight(self) -> float:
        """What this worker's batch counts."""
        return self._weight() if self._weight else float(self._samples)

    def gather(self, moments: Tensor) -> Tensor:
        """Everybody's, one row each, in rank order: so all workers go on with the same bits."""
        number, progress = self._node.step * TURNS + self._turn, self._progress()
        self._turn += 1
        return self._node.consult(self._exchange(moments, number), progress)

    def _progress(self) -> float:
        """How much of the work is done: each layer has its turn in forward and in backward."""
        back, place = divmod(self._turn, self._layers)
        share = (place + 1) / (self._layers + 1)
        return min(1.0, in_backward(share) if back else in_forward(share))

    async def _exchange(self, moments: Tensor, number: int) -> Tensor:
        others = [peer for peer in self._peers if peer != self._node.address]
        for peer in others:
            await self._node.send(peer, BatchMoments(number, Vector([moments])), priority=1)
        rows = {
            peer: (await self._node.receive(BatchMoments, sender=peer, step=number)).moments.parts[0] for peer in others
        }
        rows[self._node.address] = moments
        return torch.stack([rows[peer].to(moments.device) for peer in self._peers])


class SynchronizedNorm(nn.SyncBatchNorm):
    """torch's SyncBatchNorm with covey's workers in the place of a process group; alone it is plain batch-norm."""

    circle: NormGroup | None

    def forward(self, input: Tensor) -> Tensor:
        if self.circle is None or not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        output, mean, var, count = _Normalize.apply(input, self.weight, self.bias, self.eps, self.circle)  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            self._track(mean, var * (count / (count - 1)))
        return output  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(var.to(self.running_var.dtype), share)


class _Normalize(torch.autograd.Function):
    """(x - mean) / std * weight + bias, with mean and std over the batches of the whole circle."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, circle: NormGroup
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = (moment.double() for moment in torch.var_mean(wide, _all_but_channels(x), correction=0))
        rows = circle.gather(torch.cat([mean, var, mean.new_tensor([x.numel() // x.shape[1]])]))
        means, variances, counts = rows[:, : len(mean)], rows[:, len(mean) : -1], rows[:, -1:]
        count = counts.sum()
        if count < 2:
            raise ValueError(f"SyncBatchNorm: more than 1 value per channel is needed, got input of size {x.shape}")
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean).square())).sum(0) / count  # Chan et al. 1979: no cancellation
        scale = (var + eps).rsqrt()
        normal = (wide - _shaped(mean, wide)) * _shaped(scale, wide)
        ctx.save_for_backward(normal.to(x.dtype), weight, scale, count)
        ctx.circle = circle
        output = normal if weight is None or bias is None else normal * _shaped(weight, wide) + _shaped(bias, wide)
        ctx.mark_non_differentiable(mean, var, count)
        return output.to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normal, weight, scale, count = ctx.saved_tensors
        circle, dims = ctx.circle, _all_but_channels(normal)
        grad = grads[0].to(torch.promote_types(normal.dtype, torch.float32))
        of_bias, of_weight = grad.sum(dims), (grad * normal).sum(dims)
        # A gradient counts by its worker's samples when all are averaged, and so must its way through the statistics.
        total = circle.gather(torch.cat([of_bias, of_weight]).double() * circle.weight).sum(0) / (circle.weight * count)
        mean, slope = (_shaped(half, grad) for half in total.chunk(2))
        through = (grad - mean - normal * slope) * _shaped(scale if weight is None else scale * weight, grad)
        own = (None, None) if weight is None else (of_weight.to(weight.dtype), of_bias.to(weight.dtype))
        return through.to(normal.dtype), *own, None, None


def adopt(module: nn.Module) -> list[SynchronizedNorm]:
    """The module's synchronized layers, which from now on can have a circle."""
    layers = [layer for layer in module.modules() if type(layer) in (nn.SyncBatchNorm, SynchronizedNorm)]
    for layer in layers:
        layer.__class__ = SynchronizedNorm  # the same module: its parameters, hooks and place in the model stay
        layer.circle = None  # type: ignore[assignment]
    return layers  # type: ignore[return-value]


def together(layers: Sequence[SynchronizedNorm], circle: NormGroup, work: Callable[[], T]) -> T:
    """Do work in which the layers speak with those of the circle; outside of it they are plain batch-norms."""
    for layer in layers:
        layer.circle = circle
    try:
        return work()
    finally:
        for layer in layers:
            layer.circle = None


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _shaped(channels: Tensor, like: Tensor) -> Tensor:
    """One number per channel, to be put beside a batch in the batch's precision."""
    return channels.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))

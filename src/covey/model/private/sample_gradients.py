"""The gradients of single samples: each is clipped before they are added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from covey.privacy.clipped_noise import ROUNDED

PIECE = 64  # samples whose gradients lie in memory at once

Forward = Callable[[nn.Module, Any], Tensor]
"""The loss of a batch."""


class LossModule(nn.Module):
    """A model and its loss as one module, whose parameters can be replaced for one call."""

    def __init__(self, module: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.module, self._forward = module, forward

    def forward(self, batch: Any) -> Tensor:
        return self._forward(self.module, batch)


class SampleGradients:
    """Sums of the clipped gradients of single samples.

    They are computed together by torch.func where the model and its loss allow that, else one by one.
    """

    def __init__(self, module: nn.Module, forward: Forward, clip: float) -> None:
        self.module, self.forward, self.clip = module, forward, clip
        trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.names, self.parameters = [name for name, _ in trained], [parameter for _, parameter in trained]
        self.together = True  # until it was found that they cannot be
        self._whole = LossModule(module, forward)

    def total(self, numbers: Tensor, take: Callable[[Tensor], Any]) -> list[Tensor]:
        """The sum over these samples, of which `take` gives batches; one tensor for each parameter that is trained."""
        sums = [torch.zeros_like(parameter) for parameter in self.parameters]
        for piece in numbers.split(PIECE):
            if not len(piece):
                continue
            for total, found in zip(sums, self.clipped(self._of(piece, take)), strict=True):
                total += found
        return sums

    def clipped(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """The sum over samples, the first dimension, of gradients that are made as short as the clip norm."""
        squares = [one.detach().reshape(len(one), -1).double().square().sum(1) for one in grads]
        norms = torch.stack(squares).sum(0).sqrt()
        factors = (ROUNDED * self.clip / norms.clamp(min=1e-300)).clamp(max=1.0)
        return [torch.tensordot(factors.to(one.dtype), one.detach(), dims=1) for one in grads]

    def _of(self, piece: Tensor, take: Callable[[Tensor], Any]) -> list[Tensor]:
        if self.together:
            try:
                return self._at_once(take(piece), len(piece))
            except Exception:  # whatever is wrong with the task, one by one it is told as in any other run
                self.together = False
        each = [self._alone(take(piece[place : place + 1])) for place in range(len(piece))]
        return [torch.stack(column) for column in zip(*each, strict=True)]

    def _at_once(self, batch: Any, samples: int) -> list[Tensor]:
        given = {f"module.{name}": one.detach() for name, one in zip(self.names, self.parameters, strict=True)}

        def loss(parameters: dict[str, Tensor], sample: Any) -> Tensor:
            alone = tree_map(lambda part: part.unsqueeze(0), sample)
            found: Tensor = functional_call(self._whole, parameters, (alone,))
            return found

        grads = vmap(grad(loss), in_dims=(None, 0), randomness="different")(given, batch)
        found = [grads[name] for name in given]
        assert all(len(one) == samples for one in found), "one gradient for each sample"
        return found

    def _alone(self, batch: Any) -> list[Tensor]:
        found = torch.autograd.grad(self.forward(self.module, batch), self.parameters, allow_unused=True)
        pairs = zip(found, self.parameters, strict=True)
        return [torch.zeros_like(parameter) if one is None else one for one, parameter in pairs]

"""A layer of filters that every place of an image has its own of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from covey.errors import PlanError


class Local2d(nn.Module):
    """A locally connected layer: a convolution whose filters differ from place to place (Coates et al. 2013).

    Outputs are as high and wide as inputs, which zeros surround. `mesh(tensor=N)` gives each worker some rows of the
    image with all their weights: only rows at the borders travel, and no gradient does.

    Args:
        channels: Of the inputs.
        outputs: Channels of the outputs.
        kernel: How high and wide the filters are, an odd number.
        height: Of the images.
        width: Of the images.
        bias: Whether every output has one.

    >>> covey.nn.Local2d(3, 8, kernel=5, height=16, width=16)(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(self, channels: int, outputs: int, kernel: int, height: int, width: int, bias: bool = True) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise PlanError(f"covey.nn.Local2d(kernel={kernel}): filters have a middle: use an odd number")
        self.kernel = kernel
        reach = (channels * kernel * kernel) ** -0.5
        shape = height, width, outputs
        self.weight = nn.Parameter(torch.empty(*shape, channels * kernel * kernel).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.empty(shape).uniform_(-reach, reach)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return local2d(x, self.weight, self.bias, self.kernel)


def local2d(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: int) -> Tensor:
    """What the layer does: every output is the product of the inputs around it with filters of its own."""
    if has_torch_function((x, weight, bias)):
        function: Callable[..., Any] = local2d
        found: Tensor = handle_torch_function(function, (x, weight, bias), x, weight, bias, kernel)
        return found
    around = kernel // 2
    return filtered(F.pad(x, (0, 0, around, around)), weight, bias, kernel)


def filtered(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: int) -> Tensor:
    """The same, of an input that has the rows above and below already."""
    seen_NKL = F.unfold(x, kernel, padding=(0, kernel // 2))
    seen_NKHW = seen_NKL.unflatten(2, weight.shape[:2])
    made = torch.einsum("nkhw,hwok->nohw", seen_NKHW, weight)
    return made if bias is None else made + bias.permute(2, 0, 1)

"""Whether torch multiplies matrices by oneDNN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_onednn(model: torch.nn.Module) -> Iterator[None]:
    """Multiply by BLAS meanwhile, unless this model has convolutions.

    On ARM, oneDNN takes several times as long for small matrices of which one is transposed.
    """
    used = torch._C._get_mkldnn_enabled()
    convolves = any(isinstance(one, torch.nn.modules.conv._ConvNd) for one in model.modules())
    torch._C._set_mkldnn_enabled(used and convolves)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(used)

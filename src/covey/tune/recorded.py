"""Make one pass over several models quick: record its operations once, and multiply matrices by BLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx


def recorded(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """The operations that it does with arguments of these shapes, or itself where they cannot be recorded."""
    try:
        found = make_fx(function)(*arguments)
    except Exception:  # it is refused, if at all, when it is called
        return function
    found.graph.eliminate_dead_code()
    found.recompile()
    return found


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

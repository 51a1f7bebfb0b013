"""`covey.cut_here`: marks in a model's forward where it may be cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

_heard: ContextVar[list[None] | None] = ContextVar("_heard", default=None)


def cut_here(x: Tensor) -> Tensor:
    """Return `x` unchanged, and mark a place where the model may be cut into pipeline stages.

    A model with marks is cut only at marks.

    Args:
        x: The activation that would go to the next stage.

    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    ...
    ...     def forward(self, x):
    ...         return self.second(covey.cut_here(self.first(x).relu()))
    >>> Net()(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """
    if has_torch_function_unary(x):
        kept: Tensor = handle_torch_function(cut_here, (x,), x)  # fx writes it into its graph
        return kept
    if torch.compiler.is_exporting():
        marked: Tensor = _mark(x)
        return marked
    if (heard := _heard.get()) is not None:
        heard.append(None)
    return x


@contextmanager
def listening() -> Iterator[list[None]]:
    """As many entries as there were marks on the way."""
    heard: list[None] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


@torch.library.custom_op("covey::cut_here", mutates_args=())
def _mark(x: Tensor) -> Tensor:
    """What torch.export keeps in its graph; it is taken out before anything runs."""
    return x.clone()


@_mark.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_mark.register_autograd(lambda ctx, grad: grad)

MARKS = (cut_here, torch.ops.covey.cut_here.default)

"""A tensor of which each member of a group has a slice, and which any code may use as if it were whole.

What torch is asked to do with one goes to a rule (`rules.py`), which does it with slices where that is right. Where
there is no rule the slices are brought together first: always right, and told to whoever plans.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from covey.errors import PlanError
from covey.parallelism.tensor.group import TensorGroup
from covey.parallelism.tensor.layout import SplitLayout

Function = Callable[..., Any]


class NoRule(Exception):
    """Nothing is known of what a function does with slices, or not with such ones."""


ABOUT = {
    "shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "dtype", "device", "layout", "is_cuda",
    "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_floating_point", "is_complex", "element_size", "itemsize",
    "get_device", "__len__", "is_contiguous", "stride", "is_mps", "is_xpu", "is_nested", "is_mkldnn", "names",
    "_version", "is_sparse_csr", "is_inference", "nbytes", "is_vulkan", "is_xla", "is_mtia", "is_hpu",
}  # fmt: skip
"""What is asked about a tensor, and true of the whole one."""
LOST = {"register_hook", "retain_grad", "register_post_accumulate_grad_hook", "set_", "share_memory_", "requires_grad_"}
"""What would be done to a value that nobody uses."""


class SplitTensor(Tensor):
    """To whoever uses it the whole tensor; `local` is this member's slice, through which autograd goes."""

    local: Tensor
    divided: SplitLayout
    group: TensorGroup
    made_in: FrameType | None  # the call of a torch.autograd.Function, while a model is planned

    @staticmethod
    def __new__(cls, local: Tensor, divided: SplitLayout, group: TensorGroup) -> SplitTensor:
        sizes = list(local.shape)
        sizes[divided.dim] = divided.numbers
        self: SplitTensor = Tensor._make_wrapper_subclass(
            cls, sizes, dtype=local.dtype, device=local.device, requires_grad=False
        )
        self.local, self.divided, self.group = local, divided, group
        self.made_in = _function_call() if group.plans else None
        return self

    @property
    def from_right(self) -> int:
        """The divided dimension, counted from the last one, which is 1."""
        return len(self.local.shape) - self.divided.dim

    def whole(self, why: str) -> Tensor:
        """All of it, on every member."""
        return self.group.gathered(self.local, self.divided, why)

    @classmethod
    def __torch_function__(
        cls, func: Function, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        if name in ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name == "requires_grad":
            return args[0].local.requires_grad
        if name in ("grad", "grad_fn"):
            return getattr(args[0].local, name)
        if name == "data":
            return SplitTensor(args[0].local.data, args[0].divided, args[0].group)
        if not torch.is_grad_enabled():
            _check_seen([value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, SplitTensor)])
        if (rule := _first(args, kwargs).group.rules.get(name)) is not None:
            try:
                return rule(name, func, args, kwargs)
            except NoRule:
                pass
        return _on_whole(name, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Function, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise PlanError(
            f"{func} asks for the memory of a value that mesh(tensor=...) divides: leave its layer whole, with split="
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SplitTensor({tuple(self.shape)}, {self.divided})"


def whole_value(value: Tensor, why: str) -> Tensor:
    """All of a value, divided or not."""
    return value.whole(why) if isinstance(value, SplitTensor) else value


_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def _check_seen(values: Sequence[SplitTensor]) -> None:
    """Tell the group of values whose slices autograd does not see: a torch.autograd.Function was given them, or it has
    made them, as an activation checkpoint with use_reentrant=True does."""
    given = _in_function()
    for value in values:
        if given or (value.made_in is not None and value.made_in not in _calls()):
            value.group.unseen(value.divided)


def _in_function() -> bool:
    """Whether a torch.autograd.Function computes that was given a divided value."""
    return any(isinstance(one, SplitTensor) for call in _calls() for one in call.f_locals["args"])


def _function_call() -> FrameType | None:
    """The innermost one under way."""
    return next(_calls(), None)


def _calls() -> Iterator[FrameType]:
    """Of torch.autograd.Functions under way, by their frames: `apply` asks no tensor, and people keep it under other
    names."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            yield frame
        frame = frame.f_back


def _on_whole(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do it with whole values; what would change a slice of one is refused, as only a copy would change."""
    first = next(iter(args), None)
    writes = name in LOST or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    writes = writes or name.startswith("__i") or bool(kwargs.get("inplace")) or kwargs.get("out") is not None
    if writes and isinstance(first, SplitTensor):
        raise PlanError(
            f"{name} changes a value in place that mesh(tensor=...) divides among workers: use what gives a new "
            "value, or leave its layer whole, with split="
        )
    args, kwargs = pytree.tree_map_only(SplitTensor, lambda value: value.whole(name), (list(args), dict(kwargs)))
    return func(*args, **kwargs)


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> SplitTensor:
    if args and isinstance(args[0], SplitTensor):
        return args[0]
    return next(value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, SplitTensor))


def _name(func: Function) -> str:
    """As users write it; properties by their own name."""
    name: str = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(func.__self__, "__name__", name)) + ("" if name == "__get__" else "_")  # type: ignore[attr-defined]
    return name

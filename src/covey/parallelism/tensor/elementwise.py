"""Rules for what treats every number alone, so that it can be done with slices as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from covey.parallelism.tensor.group import Rule, TensorGroup
from covey.parallelism.tensor.layout import SplitLayout
from covey.parallelism.tensor.split_tensor import Function, NoRule, SplitTensor

_ALONE = [
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid", "logsigmoid",
    "softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "tanhshrink",
    "threshold", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "abs", "neg",
    "negative", "sin", "cos", "tan", "atan", "asinh", "sinh", "cosh", "erf", "erfc", "reciprocal", "sign", "floor",
    "ceil", "round", "trunc", "frac", "pow", "add", "sub", "subtract", "mul", "multiply", "div", "divide",
    "true_divide", "floor_divide", "remainder", "fmod", "where", "masked_fill", "maximum", "minimum", "fmax", "fmin",
    "clamp", "clamp_min", "clamp_max", "clip", "lerp", "addcmul", "addcdiv", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan",
    "isinf", "isfinite", "nan_to_num", "to", "type_as", "float", "double", "half", "bfloat16", "bool", "long", "int",
    "contiguous", "clone", "detach", "zeros_like", "ones_like", "full_like", "positive", "xlogy", "hypot", "copysign",
    "__radd__", "__rsub__", "__rmul__", "__rdiv__", "__rtruediv__", "__rpow__", "__pow__", "__and__", "__or__",
    "__xor__", "__invert__", "__eq__", "__ne__",
]  # fmt: skip
_IN_PLACE = [
    "relu_", "relu6_", "leaky_relu_", "elu_", "selu_", "celu_", "silu_", "tanh_", "sigmoid_", "exp_", "sqrt_", "add_",
    "sub_", "mul_", "div_", "pow_", "neg_", "abs_", "square_", "clamp_", "clamp_min_", "clamp_max_", "masked_fill_",
    "lerp_", "addcmul_", "addcdiv_", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ipow__",
]  # fmt: skip


def splits_of(given: object) -> list[SplitTensor]:
    return [value for value in pytree.tree_leaves(given) if isinstance(value, SplitTensor)]


def common(values: Iterable[SplitTensor]) -> SplitLayout:
    """How all of them are divided, the dimension counted from the right; no rule where they differ."""
    first, *others = values
    if any(one.from_right != first.from_right for one in others):
        raise NoRule
    blocks = {one.divided.blocks for one in (first, *others)}
    if len(blocks) > 1:
        coarsest = max(blocks, key=lambda one: max(block.size for block in one))
        for one in (first, *others):
            one.group.wish(one.divided, coarsest if one.divided.blocks != coarsest else None)
        raise NoRule
    origins = first.divided.origins.union(*(one.divided.origins for one in others))
    return SplitLayout(first.from_right, first.divided.blocks, origins)


def beside(group: TensorGroup, value: Tensor, layout: SplitLayout) -> Tensor:
    """A value as it is put beside slices that are divided at this dimension from the right."""
    if isinstance(value, SplitTensor):
        return value.local
    dim = value.dim() - layout.dim
    if dim < 0 or value.shape[dim] == 1:
        return group.copied(value)
    if value.shape[dim] != layout.numbers:
        raise NoRule
    return group.sliced(value, layout.at(dim))


def elementwise(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """With every slice alone; whole values beside them are cut in the same way."""
    if kwargs.get("out") is not None:
        raise NoRule
    found = splits_of((args, kwargs))
    layout, group = common(found), found[0].group
    local = partial(beside, group, layout=layout)
    args, kwargs = pytree.tree_map_only(Tensor, local, (list(args), dict(kwargs)))
    made = func(*args, **kwargs)
    return SplitTensor(made, layout.at(made.dim() - layout.dim), group)


def in_place(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same into a value that is there already."""
    if not isinstance(args[0], SplitTensor):
        raise NoRule
    elementwise(name, func, args, kwargs)
    return args[0]


def dropout(
    name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Draw for the whole value, and keep what the slice has of that: as the model that is not divided would."""
    value, p, training, inplace = _dropout(*args, **kwargs)
    if not training or p == 0:
        return value
    split, local = value.divided, value.local
    order = sorted(range(local.dim()), key=lambda dim: (-local.stride()[dim], dim))  # as the whole one would lie
    sizes = [value.shape[dim] for dim in order]
    drawn = F.dropout(local.new_ones(sizes), p).permute([order.index(dim) for dim in range(local.dim())])
    mask = value.group.cut(drawn, split)
    made = local.mul_(mask) if inplace else local * mask
    return SplitTensor(made, split, value.group)


def _dropout(
    input: SplitTensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[SplitTensor, float, bool, bool]:
    return input, p, training, inplace


def softmax(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Along another dimension than the divided one; shapes stay."""
    value, rest, dim, _ = _along(args, kwargs)
    if not isinstance(value, SplitTensor) or not isinstance(dim, int) or dim % value.dim() == value.divided.dim:
        raise NoRule
    return SplitTensor(func(value.local, *rest, **kwargs), value.divided, value.group)


def total(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A sum or a mean: with slices, and over all members where the divided dimension is among those that vanish."""
    value, rest, dims, keep = _along(args, kwargs)
    if not isinstance(value, SplitTensor) or kwargs.keys() - {"dim", "axis", "keepdim", "keepdims", "dtype"}:
        raise NoRule
    many = [dims] if isinstance(dims, int) else dims or range(value.dim())
    if not all(isinstance(dim, int) for dim in many):
        raise NoRule
    over = {dim % value.dim() for dim in many}
    made = func(value.local, *rest, **kwargs)
    split = value.divided
    if split.dim not in over:
        gone = 0 if keep else sum(dim < split.dim for dim in over)
        return SplitTensor(made, split.at(split.dim - gone), value.group)
    share = value.group.extent(split.blocks) / split.numbers if name == "mean" else 1.0
    return value.group.summed(made * share if share != 1 else made)


def _along(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any], Any, bool]:
    """A value, what follows it, along which dimensions something is done, and whether they are kept.

    Torch takes numpy's names for them, too.
    """
    if not args:
        raise NoRule
    rest = list(args[1:])
    dims = rest[0] if rest else kwargs.get("dim", kwargs.get("axis"))
    return args[0], rest, dims, bool(rest[1] if len(rest) > 1 else kwargs.get("keepdim", kwargs.get("keepdims")))


ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys(_ALONE, elementwise), **dict.fromkeys(_IN_PLACE, in_place),
    "dropout": dropout, "softmax": softmax, "log_softmax": softmax, "sum": total, "mean": total,
}  # fmt: skip

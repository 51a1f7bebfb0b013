"""Rules for what multiplies: linear layers, embeddings, products of matrices, attention, convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.errors import PlanError
from covey.parallelism.tensor.elementwise import beside, common
from covey.parallelism.tensor.group import Rule, TensorGroup
from covey.parallelism.tensor.layout import SplitLayout, UnitBlock
from covey.parallelism.tensor.spatial import convolution_of_rows
from covey.parallelism.tensor.split_tensor import Function, NoRule, SplitTensor


def _whole(value: Any, why: str) -> Any:
    return value.whole(why) if isinstance(value, SplitTensor) else value


def _dim(value: object) -> int | None:
    """Which dimension is divided, if one is."""
    return value.divided.dim if isinstance(value, SplitTensor) else None


def _bias(group: TensorGroup, bias: Tensor | None, layout: SplitLayout) -> Tensor | None:
    """This member's part of a bias for its own outputs."""
    if isinstance(bias, SplitTensor):
        return bias.local if bias.divided.blocks == layout.blocks else group.sliced(bias.whole("bias"), layout.at(0))
    return None if bias is None else group.sliced(bias, layout.at(0))


# -- linear layers ----------------------------------------------------------------------------------------------------


def linear(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """By columns (outputs, from a whole input) or by rows (inputs: a sum, then the bias once)."""
    x, weight, bias = _linear(*args, **kwargs)
    if _dim(weight) == 0 and weight.dim() == 2:
        group, layout = weight.group, weight.divided
        made = F.linear(group.copied(_whole(x, name)), weight.local, _bias(group, bias, layout))
        return SplitTensor(made, layout.at(made.dim() - 1), group)
    if _dim(weight) == 1:
        group, last = weight.group, weight.divided.at(x.dim() - 1)
        if isinstance(x, SplitTensor) and (x.from_right != 1 or x.divided.blocks != last.blocks):
            x = x.whole(name)
        local = x.local if isinstance(x, SplitTensor) else group.sliced(x, last)
        made = group.summed(F.linear(local, weight.local))
        return made if bias is None else made + _whole(bias, name)
    if isinstance(x, SplitTensor) and x.from_right > 1:
        group = x.group
        own = None if bias is None else group.copied(_whole(bias, name))
        return SplitTensor(F.linear(x.local, group.copied(weight), own), x.divided, group)
    raise NoRule


def _linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Any, Any, Any]:  # as torch calls them
    return input, weight, bias


def matmul(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A product of matrices, or of many: by those, by rows of the first, by columns of the second, or along both."""
    if len(args) != 2 or kwargs:
        raise NoRule
    one, two = args
    if one.dim() < 2 or two.dim() < 2:
        raise NoRule
    rows = one.from_right if isinstance(one, SplitTensor) else 0
    columns = two.from_right if isinstance(two, SplitTensor) else 0
    group = (one if rows else two).group
    if rows == 1 and columns == 2 and one.divided.blocks == two.divided.blocks:
        return group.summed(torch.matmul(one.local, two.local))
    if rows > 2 and columns > 2:
        layout = common([one, two])
        made = torch.matmul(one.local, two.local)
    elif rows > 2 or columns > 2:
        if min(rows, columns) > 0 or 1 in (rows, columns):
            raise NoRule
        layout = common([one if rows else two])
        made = torch.matmul(beside(group, one, layout), beside(group, two, layout))
    elif (rows, columns) == (2, 0):
        layout, made = common([one]), torch.matmul(one.local, group.copied(two))
    elif (rows, columns) == (0, 1):
        layout, made = common([two]), torch.matmul(group.copied(one), two.local)
    else:
        raise NoRule
    return SplitTensor(made, layout.at(made.dim() - layout.dim), group)


# -- embeddings -------------------------------------------------------------------------------------------------------


def embedding(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """By vocabulary (each member looks up its own words, then a sum), or by width."""
    index, weight, padding, max_norm, by_count, sparse = _embedding(*args, **kwargs)
    if isinstance(index, SplitTensor) or by_count or sparse:
        raise NoRule
    if max_norm is not None:
        raise PlanError(
            "nn.Embedding(max_norm=...) writes into its weights while it computes, and mesh(tensor=...) divides them: "
            "leave the layer whole, with split=, or omit max_norm"
        )
    group: TensorGroup = weight.group
    if _dim(weight) == 1:
        made = F.embedding(index, weight.local, padding)
        return SplitTensor(made, weight.divided.at(made.dim() - 1), group)
    check_range("word", index, weight.shape[0])
    local, mine = own_places(group, index, weight.divided)
    made = F.embedding(local, weight.local, _own_padding(group, padding, weight))
    return group.summed(made * mine.unsqueeze(-1))


def _own_padding(group: TensorGroup, padding: int | None, weight: Any) -> int | None:
    """Where the word that gets no gradient is in this member's slice, if it is there."""
    if padding is None:
        return None
    place, mine = own_places(group, torch.tensor(padding % weight.shape[0]), weight.divided)
    return int(place) if mine else None


def check_range(what: str, index: Tensor, numbers: int) -> None:
    """Refuse what the layer that is not divided would; a GPU says so later, as it always does."""
    if index.is_cuda:
        torch._assert_async(((index >= 0) & (index < numbers)).all(), f"a {what} is not in [0, {numbers})")
    elif index.numel() and not 0 <= int(index.min()) <= int(index.max()) < numbers:
        raise IndexError(f"a {what} is out of range: {int(index.min())} to {int(index.max())}, not in [0, {numbers})")


def own_places(group: TensorGroup, index: Tensor, layout: SplitLayout) -> tuple[Tensor, Tensor]:
    """Where numbers of the whole dimension are in this member's slice of it, and which of them are there at all."""
    local, mine, at = torch.zeros_like(index), torch.zeros_like(index, dtype=torch.bool), 0
    for first, stop in group.ranges(layout.blocks):
        here = (index >= first) & (index < stop)
        local = torch.where(here, index - first + at, local)
        mine |= here
        at += stop - first
    return local, mine


def _embedding(
    input: Tensor, weight: Any, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> tuple[Tensor, Any, int | None, float | None, bool, bool]:  # fmt: skip
    return input, weight, padding_idx, max_norm, scale_grad_by_freq, sparse


# -- attention --------------------------------------------------------------------------------------------------------


def attention(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """By heads; where several heads of queries share keys and values, they go with those."""
    query, key, value, mask, dropout, causal, scale, grouped = _attention(*args, **kwargs)
    found = [one for one in (query, key, value) if isinstance(one, SplitTensor)]
    if dropout or not isinstance(query, SplitTensor) or any(one.from_right < 3 for one in found):
        raise NoRule
    group, many = query.group, common([query])
    few = many
    if grouped and (times := query.shape[-3] // key.shape[-3]) > 1:
        if query.from_right != 3 or not isinstance(key, SplitTensor):
            raise NoRule
        few = common([one for one in (key, value) if isinstance(one, SplitTensor)])
        wide = tuple(UnitBlock(block.units, block.size * times) for block in few.blocks)
        if wide != many.blocks:
            group.wish(query.divided, wide)
            raise NoRule
    else:
        many = few = common(found)
    if isinstance(mask, SplitTensor):
        common([query, mask])
    mask = None if mask is None else beside(group, mask, many)
    made = func(
        query.local, beside(group, key, few), beside(group, value, few), attn_mask=mask, is_causal=causal, scale=scale,
        enable_gqa=grouped,
    )  # fmt: skip
    return SplitTensor(made, many.at(made.dim() - many.dim), group)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Any, Any, Any, Any, float, bool, float | None, bool]:  # fmt: skip
    return query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa


# -- convolutions -----------------------------------------------------------------------------------------------------


def convolution(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """By output channels, from a whole input; or by input channels: a sum, then the bias once."""
    x, weight, bias, more, groups = _convolution(*args, **kwargs)
    if groups == 1 and isinstance(x, SplitTensor) and not isinstance(weight, SplitTensor):
        return convolution_of_rows(func, x, weight, _whole(bias, name), more)
    if groups != 1 or not isinstance(weight, SplitTensor) or x.dim() != weight.dim():
        raise NoRule
    group, layout = weight.group, weight.divided
    if layout.dim == 0:
        made = func(group.copied(_whole(x, name)), weight.local, _bias(group, bias, layout), *more)
        return SplitTensor(made, layout.at(1), group)
    if layout.dim != 1:
        raise NoRule
    if isinstance(x, SplitTensor) and (x.divided.dim != 1 or x.divided.blocks != layout.blocks):
        x = x.whole(name)
    local = x.local if isinstance(x, SplitTensor) else group.sliced(x, layout)
    made = group.summed(func(local, weight.local, None, *more))
    if bias is None:
        return made
    return made + _whole(bias, name).view(-1, *[1] * (made.dim() - 2))


def _convolution(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Any, Any, Any, tuple[Any, ...], int]:
    return input, weight, bias, (stride, padding, dilation), groups


def by_channels(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Pooling and such: each channel alone, samples and channels coming first."""
    value = args[0] if args else None
    if not isinstance(value, SplitTensor) or value.divided.dim != 1 or kwargs.get("return_indices"):
        raise NoRule
    if value.dim() < 3 or (name[-1] == "d" and value.dim() != int(name[-2]) + 2):
        raise NoRule
    return SplitTensor(func(value.local, *args[1:], **kwargs), value.divided, value.group)


def batch_norm(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Each channel alone; its running mean and variance are brought together, as everybody keeps all of them."""
    value, means, variances, weight, bias, training, momentum, eps = _batch_norm(*args, **kwargs)
    if not isinstance(value, SplitTensor) or value.divided.dim != 1:
        raise NoRule
    group, layout = value.group, value.divided.at(0)
    running = [None if one is None else group.cut(one, layout).clone() for one in (means, variances)]
    given = [None if one is None else _bias(group, one, layout) for one in (weight, bias)]
    made = F.batch_norm(value.local, running[0], running[1], given[0], given[1], training, momentum, eps)
    if training and means is not None and running[0] is not None and running[1] is not None:
        both = group.join(torch.stack([running[0], running[1]]), layout.at(1))
        means.copy_(both[0])
        variances.copy_(both[1])
    return SplitTensor(made, value.divided, group)


def _batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Any, Any, Any, Any, Any, bool, float, float]:  # fmt: skip
    return input, running_mean, running_var, weight, bias, training, momentum, eps


_POOLS = [f"{kind}{dims}d" for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "lp_pool") for dims in (1, 2, 3)]
PRODUCTS: dict[str, Rule] = {
    "linear": linear, "embedding": embedding, "scaled_dot_product_attention": attention, "batch_norm": batch_norm,
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm"), matmul),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys([*_POOLS, "interpolate"], by_channels),
}  # fmt: skip

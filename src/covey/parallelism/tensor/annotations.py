"""Which layer is divided by what? As `split=` says it, or as its kind allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from covey.errors import PlanError
from covey.names import meant
from covey.nn.local2d import Local2d
from covey.parallelism.tensor.split_tensor import SplitTensor

SplitKind = Literal["column", "row", "vocabulary", "width", "output", "input", "spatial"]
DIMS: Mapping[SplitKind, Mapping[str, int]] = {
    "column": {"weight": 0, "bias": 0}, "row": {"weight": 1},
    "vocabulary": {"weight": 0}, "width": {"weight": 1},
    "output": {"weight": 0, "bias": 0}, "input": {"weight": 1}, "spatial": {"weight": 0, "bias": 0},
}  # fmt: skip
"""Which dimension of each of a layer's parameters is divided; the others are whole."""
KINDS: Mapping[type[nn.Module], tuple[SplitKind, ...]] = {
    nn.Linear: ("column", "row"), nn.Embedding: ("vocabulary", "width"),
    nn.Conv1d: ("output", "input"), nn.Conv2d: ("output", "input"), nn.Conv3d: ("output", "input"),
    Local2d: ("spatial",),
}  # fmt: skip

COMPUTED = "its weight is no parameter, but computed from others (weight_norm, spectral_norm, prune)"


def _linear(layer: nn.Module, given: Any, tied: bool) -> SplitKind | None:
    if isinstance(given, SplitTensor) and given.from_right == 1:
        return "row"
    return None if isinstance(given, SplitTensor) else "column"


def _embedding(layer: nn.Module, given: Any, tied: bool) -> SplitKind | None:
    """By vocabulary where it has more numbers than it gives, or is the last layer, too."""
    assert isinstance(layer, nn.Embedding)
    large = layer.weight.numel() > given.numel() * layer.embedding_dim
    return "vocabulary" if (large or tied) and layer.max_norm is None else None


def _convolution(layer: nn.Module, given: Any, tied: bool) -> SplitKind | None:
    if layer.groups != 1:
        return None
    if isinstance(given, SplitTensor):
        return "input" if given.divided.dim == 1 else None
    return "output"


BY: Mapping[type[nn.Module], Callable[[nn.Module, Any, bool], SplitKind | None]] = {
    nn.Linear: _linear, nn.Embedding: _embedding,
    nn.Conv1d: _convolution, nn.Conv2d: _convolution, nn.Conv3d: _convolution,
    Local2d: lambda layer, given, tied: "spatial",
}  # fmt: skip
"""By what a layer is best divided, when its forward is given this; a `tied` one has weights of another layer."""


def layer_kinds(named: Mapping[str, nn.Module], split: str, members: int) -> dict[str, SplitKind] | None:
    """The layers that are named, each with its kind; None where the best is to be found."""
    if split == "best":
        return None
    layers = {name: layer for name, layer in named.items() if type(layer) in KINDS}
    found: dict[str, SplitKind] = {}
    for word in () if split == "none" else split.split():
        pattern, _, kind = word.rpartition(":")
        names = [name for name in layers if fnmatchcase(name, pattern)]
        if not pattern:
            raise PlanError(f"split={split!r}: write LAYER:KIND, such as blocks.*.up:column, or best, or none")
        if not names:
            raise PlanError(f"split={split!r}: there is no layer {pattern!r}{meant(pattern, layers)}")
        for name in names:
            found[name] = _checked(split, name, layers[name], kind, members)
    return found


def _checked(split: str, name: str, layer: nn.Module, kind: str, members: int) -> SplitKind:
    known = KINDS[type(layer)]
    if kind not in known:
        raise PlanError(f"split={split!r}: {name} is {type(layer).__name__}, which is divided by {' or '.join(known)}")
    checked = next(one for one in known if one == kind)
    weight = layer._parameters.get("weight")
    if weight is None:
        raise PlanError(f"split={split!r}: {name} cannot be divided: {COMPUTED}: leave it out of split")
    size = weight.shape[DIMS[checked]["weight"]]
    if size < members:
        raise PlanError(
            f"split={split!r}: {name} has {size} of what {kind} divides, too few for {members} members: use "
            f"tensor={size} or fewer, or leave it out of split"
        )
    return checked

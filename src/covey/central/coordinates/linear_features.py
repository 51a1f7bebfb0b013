"""The one linear layer that a model consists of, and what goes into it, as hooks on a worker see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.model.replica import Replica
from covey.vector import Vector

MOST_FEATURES = 4096
"""Of which all pairs are compared: their products take 128 MB."""

MODEL = "strads trains one nn.Linear(d, 1) with nn.MSELoss or nn.BCEWithLogitsLoss"
ComputeBatch = Callable[[int], Awaitable[Vector]]
"""Forward and backward on this worker's batch of a step."""

CURVATURE = {"squares": 2.0, "logits": 0.25}
"""The most that a loss bends, per sample, over its output: of (o - y)^2, and of a sigmoid's log-likelihood."""

TARGETS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squares": lambda outputs, slopes: outputs - slopes / 2,
    "logits": lambda outputs, slopes: outputs.sigmoid() - slopes,
}
"""What a sample's target is, given its output and the slope of its own loss there."""


def layer_of(replica: Replica) -> nn.Linear:
    """The linear layer whose numbers are all that is trained; other models are refused."""
    trained = {id(parameter) for parameter in replica.module.parameters() if parameter.requires_grad}
    layers = [module for module in replica.module.modules() if type(module) is nn.Linear]
    if len(layers) != 1 or {id(p) for p in layers[0].parameters() if p.requires_grad} != trained:
        raise PlanError(
            f"{MODEL}: this model has {len(layers)} nn.Linear, or other layers that are trained (one that is only "
            "timed knows no layers); use bsp, or freeze all but one such layer"
        )
    layer = layers[0]
    if layer.out_features != 1 or not layer.weight.requires_grad:
        raise PlanError(f"{MODEL}: this layer has {layer.out_features} outputs, or a frozen weight; use bsp")
    if layer.in_features > MOST_FEATURES:
        raise PlanError(
            f"strads compares all pairs of features, of which {layer.in_features} are too many: at most {MOST_FEATURES}"
        )
    return layer


@dataclass
class LayerUse:
    """One forward through the layer: a row for each sample."""

    inputs: Tensor
    outputs: Tensor
    slopes: Tensor | None = None  # of the loss over the outputs


@dataclass(frozen=True)
class WholeBatch:
    """The same for all samples of a batch, with the slope of each one's own loss."""

    inputs: Tensor
    outputs: Tensor
    slopes: Tensor
    exact: float  # the share to which outputs and slopes were rounded

    @property
    def rounding(self) -> Tensor:
        """By how much a target that is computed from these may be wrong."""
        return 1e-4 + 4 * self.exact * (self.outputs.abs() + self.slopes.abs())


@dataclass
class LinearFeatures:
    """The features of a worker's samples: what goes into the layer, and a 1 for its bias."""

    replica: Replica
    layer: nn.Linear
    uses: list[LayerUse] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See what goes into the layer for as long as this lasts."""
        handle = self.layer.register_forward_hook(self._forward)
        try:
            yield
        finally:
            handle.remove()

    def _forward(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        use = LayerUse(given[0].detach().reshape(-1, self.layer.in_features), output.detach().reshape(-1))
        self.uses.append(use)
        if output.requires_grad:
            output.register_hook(lambda slopes: setattr(use, "slopes", slopes.detach().reshape(-1)))

    def rows(self) -> Tensor:
        """The features of all samples since they were last taken, a row for each."""
        inputs = torch.cat([use.inputs for use in self.uses])
        self.uses.clear()
        return self._with_bias(inputs)

    def _with_bias(self, inputs: Tensor) -> Tensor:
        one = [inputs.new_ones(len(inputs), 1)] if self.layer.bias is not None and self.layer.bias.requires_grad else []
        return torch.cat([inputs, *one], dim=1)

    async def products(self, compute: ComputeBatch, steps: int) -> Tensor:
        """The sums of the products of all pairs of features, over the batches of these steps."""
        width = self.replica.flat.numel
        total = torch.zeros(width, width, dtype=torch.float64)
        for step in range(steps):
            await compute(step)
            rows = self.rows().double().cpu()
            total += rows.T @ rows
        return total

    async def loss_kind(self, compute: ComputeBatch) -> str:
        """Whether the loss is of squares or of logits: at two different weights the same samples have the same targets.

        Of a mean of squares a target is its output minus half the slope times the samples, of logits the chance that
        the output stands for minus the slope times the samples.
        """
        await compute(0)
        before = self._whole_batch()
        kept, (weights,) = self.replica.flat.clone(), self.replica.flat.parts
        aim = max(1.0, _size(before.outputs), _size(before.slopes) / 2)
        weights.add_(aim * self._shift(before.inputs).to(weights))
        await compute(0)
        self.replica.flat.copy_(kept)
        after = self._whole_batch()
        if not 0.5 < _size(after.outputs - before.outputs) / aim < 2:
            raise PlanError(f"{MODEL}: other weights do not change this model's outputs as they should; use bsp")
        for kind, target in TARGETS.items():
            one, other = (target(use.outputs, use.slopes) for use in (before, after))
            if bool(((one - other).abs() <= before.rounding + after.rounding).all()):
                return kind
        raise PlanError(f"{MODEL}, each the mean over the samples: this task has another loss; use bsp")

    def _whole_batch(self) -> WholeBatch:
        """All forwards of a batch, which `Task(accumulate=2)` computes in two."""
        uses = list(self.uses)
        self.uses.clear()
        if not uses or any(use.slopes is None for use in uses):
            raise PlanError(f"{MODEL}: the loss of this task does not depend on that layer's output; use bsp")
        inputs, outputs = torch.cat([use.inputs for use in uses]), torch.cat([use.outputs for use in uses])
        slopes = torch.cat([use.slopes for use in uses if use.slopes is not None])
        return WholeBatch(inputs, outputs.double(), slopes.double() * len(slopes), torch.finfo(outputs.dtype).eps)

    def _shift(self, inputs: Tensor) -> Tensor:
        """What to add to the weights so that outputs change by about 1."""
        rows = self._with_bias(inputs).double()
        way = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(rows)
        if not (size := _size(rows @ way)):
            raise PlanError(f"{MODEL}: all features of the first batch are 0; use bsp")
        return way / size


def _size(values: Tensor) -> float:
    return float(values.square().mean().sqrt())

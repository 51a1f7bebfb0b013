"""The one linear layer that a model consists of, and what goes into it, as hooks on a worker see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
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
        found: dict[str, list[Tensor]] = {kind: [] for kind in CURVATURE}
        for shift in (0.0, 0.5):
            kept = self.replica.flat.clone()
            for part in self.replica.flat.parts:
                part.add_(shift)
            await compute(0)
            self.replica.flat.copy_(kept)
            use = self.uses.pop()
            self.uses.clear()
            if use.slopes is None:
                break
            slopes, outputs = use.slopes.double() * len(use.outputs), use.outputs.double()
            found["squares"].append(outputs - slopes / 2)
            found["logits"].append(outputs.sigmoid() - slopes)
        for kind, targets in found.items():
            if len(targets) == 2 and torch.allclose(targets[0], targets[1], rtol=1e-3, atol=1e-3):
                return kind
        raise PlanError(f"{MODEL}, each the mean over the samples: this task has another loss; use bsp")

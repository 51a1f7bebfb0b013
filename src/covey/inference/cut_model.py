"""A served model that is cut into stages, each of which is computed by a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.inference.served_model import ServedModel
from covey.parallelism.chain import Chain, chain_of
from covey.parallelism.plan.cut import best_cut
from covey.parallelism.plan.measure import measure
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.terms import CutTerms
from covey.parallelism.stages import Stage
from covey.store.export.loaded import task_inputs

EXAMPLES = 8  # inputs on which a model is traced: enough to see what depends on their number
REPEATS = 3  # of a measurement of each layer
COPIES = "sum"  # weights that several stages use need not be refused: nothing is trained, so each has a copy


@dataclass(frozen=True, slots=True)
class CutModel:
    """A model in stages; called, it computes all of them."""

    served: ServedModel
    chain: Chain
    stages: Sequence[Stage]

    def part(self, number: int, values: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        """What a stage makes of what the one before gave, for so many inputs; the last one gives the answers."""
        with torch.inference_mode():
            made = self.stages[number](tuple(values))
            if number < len(self.stages) - 1:
                return [value.contiguous() for value in made]
            return [self.served.checked(self.chain.rebuild(made), count)]

    def __call__(self, rows: Tensor) -> Tensor:
        values: Sequence[Tensor] = [rows]
        for number in range(len(self.stages)):
            values = self.part(number, values, len(rows))
        return values[0]


def cut_at(served: ServedModel, after: Sequence[int]) -> CutModel:
    """The model, cut after these layers."""
    chain = _chain(served)
    return CutModel(served, chain, chain.stages(after, COPIES).stages)


def best_places(served: ServedModel, stages: int) -> tuple[int, ...]:
    """After which layers to cut so that the slowest stage is fastest; PlanError, as of `covey cut`, if none will do."""
    chain = _chain(served)
    found = measure(chain, (_examples(served),), repeat=REPEATS, tied=COPIES)
    forward = [replace(layer, backward=0.0, returns=0) for layer in found.layers]
    after = best_cut(Profile(tuple(forward), found.inputs), CutTerms(stages=stages)).after
    chain.stages(after, COPIES)
    return after


def _chain(served: ServedModel) -> Chain:
    return chain_of(served.module, (_examples(served),))


def _examples(served: ServedModel) -> Tensor:
    return next(iter(task_inputs(served.task, EXAMPLES, served.name)))

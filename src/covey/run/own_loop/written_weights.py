"""Weights that a loop changes itself between two steps: no strategy exchanges that."""

from __future__ import annotations

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.model.flat import Flat

SAMPLED = 4096  # numbers of each part that are compared
EVERY = 50  # steps on a GPU, where a comparison waits for the device
WRITTEN = (
    "the loop itself changed weights between two steps (first found in {name!r}), which no strategy exchanges: "
    "servers and averages overwrite the change, and under `allreduce` it must be the same on all workers. Give the "
    "parameter to an optimizer, or change it before covey.join"
)


class WrittenWeights:
    """Compares a sample of the weights with what the last step left."""

    def __init__(self, layout: Flat) -> None:
        self._layout = layout
        chance = torch.Generator().manual_seed(0)
        self._sampled = [
            (torch.randperm(part.numel(), generator=chance)[:SAMPLED]).sort().values.to(part.device)
            for part in layout.params.parts
        ]  # fmt: skip
        self._left: list[Tensor] = []  # empty: nothing to compare with
        self._addresses: dict[str, int] = {}
        self._steps = 0

    def note(self) -> None:
        """Remember the weights that the loop is given."""
        self._steps += 1
        waits = any(part.is_cuda for part in self._layout.seen.parts)
        if self._layout.written_by_others or (waits and self._steps % EVERY):
            self._left = []
        else:
            self._left = self._sample()
        self._addresses = {name: parameter.data_ptr() for name, parameter in self._layout.parameters.items()}

    def check(self) -> str | None:
        """The name of a parameter that the loop has written into; one that is another tensor now is refused."""
        for name, parameter in self._layout.parameters.items():
            if self._addresses.get(name, parameter.data_ptr()) != parameter.data_ptr():
                raise PlanError(
                    f"the loop replaced the tensor of parameter {name!r} after covey.join (model.to, model.half, "
                    "parameter.data = …): convert the model before covey.join, and write with parameter.data.copy_(…)"
                )
        if not self._left:
            return None
        for part, (before, now) in enumerate(zip(self._left, self._sample(), strict=True)):
            if not torch.equal(before, now):
                differs = before.ne(now) & ~(before.isnan() & now.isnan())
                if differs.any():
                    return self._name(part, int(self._sampled[part][differs][0]))
        return None

    def _sample(self) -> list[Tensor]:
        parts = zip(self._layout.seen.parts, self._sampled, strict=True)
        return [part.detach().index_select(0, where) for part, where in parts]

    def _name(self, part: int, position: int) -> str:
        return next(s.name for s in self._layout.slots if s.part == part and s.start <= position < s.stop)

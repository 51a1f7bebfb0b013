"""Versions of the weights, put aside for batches that are under way while the weights move on (PipeDream's stash)."""

from __future__ import annotations

from torch import Tensor

from covey.model.flat import Flat
from covey.program import Memory
from covey.vector import Vector

STASH = "stash"
"""Its name among what a role remembers."""


class Stash:
    """Version v is the weights after v updates. What is kept survives a restart, as batches then set out again."""

    def __init__(self, kept: Memory[dict[int, Vector]], layout: Flat) -> None:
        self._kept, self._layout = kept, layout
        self._leaves: dict[int, dict[str, Tensor]] = {}

    def keep(self, version: int, weights: Vector) -> None:
        """Put a copy of the newest weights aside."""
        if version not in self._kept.value:
            self._kept.value[version] = weights.clone()

    def nearest(self, version: int) -> int:
        """This version, or the newest, where it was not kept: the model was cut in another way then."""
        return version if version in self._kept.value else max(self._kept.value)

    def weights(self, version: int) -> dict[str, Tensor]:
        """A version by name; gradients of it are added to the replica's."""
        if version not in self._leaves:
            kept, grads = self._kept.value[version], self._layout.grads
            self._leaves[version] = {slot.name: slot.view(kept).requires_grad_() for slot in self._layout.slots}
            for slot in self._layout.slots:
                self._leaves[version][slot.name].grad = slot.view(grads)
        return self._leaves[version]

    def forget(self, oldest: int) -> None:
        """Let go of what is older than any batch under way."""
        for version in [kept for kept in self._kept.value if kept < oldest]:
            del self._kept.value[version]
            self._leaves.pop(version, None)

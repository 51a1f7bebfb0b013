"""Optimizer steps on slices, each when its gradient is complete, or on all slices at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from covey.central.scheduled.slices import Slice, piece, view
from covey.model.optimizers import ELEMENTWISE
from covey.model.replica import Replica


class Stepping:
    """One role's optimizer over the slices that it owns, each of which has its own state; `together`: never apart.

    By the norm of all of it, or by an optimizer that counts its steps itself, a step is taken as a whole.
    """

    def __init__(
        self, replica: Replica, slices: Sequence[Slice], owned: Iterable[int], *, buffers: bool, together: bool = False
    ) -> None:
        self.replica, self.slices = replica, slices
        timed = any(part.is_meta for part in replica.flat.parts)
        alone = timed or type(replica.optimizer) in ELEMENTWISE
        # a loop of the user's own may clip any step, of which it says so when its gradients are there
        clips = replica.updates.clip_norm is not None or replica.updates.settings is not None
        self.apart = alone and not clips and not together
        kept = [slices[place] for place in owned]
        replica.keep(piece(len(replica.flat.parts), kept, self.apart and not timed), buffers=buffers)
        groups = replica.optimizer.param_groups
        self.shards = {p.data_ptr(): (group, p) for group in groups for p in group["params"] if p.numel()}

    def step(self, places: Iterable[int]) -> None:
        """Step on these slices of one parameter only."""
        views = [view(self.replica.flat, self.slices[place]).parts[0] for place in places]
        found = [self.shards[numbers.data_ptr()] for numbers in views if numbers.data_ptr() in self.shards]
        if not found:  # no numbers
            return
        optimizer, group = self.replica.optimizer, found[0][0]
        groups, params = optimizer.param_groups, group["params"]
        optimizer.param_groups, group["params"] = [group], [shard for _, shard in found]
        try:
            self.replica.update()
        finally:
            optimizer.param_groups, group["params"] = groups, params


@contextmanager
def lying(replica: Replica, slots: Iterable[int]) -> Iterator[None]:
    """Let these parameters have the gradients that lie in the replica; backward takes them off, and puts them back."""
    given: list[tuple[nn.Parameter, Tensor | None]] = []
    for slot in (replica.layout.slots[place] for place in slots):
        parameter = replica.layout.parameters[slot.name]
        given.append((parameter, parameter.grad))
        parameter.grad = slot.view(replica.grad)
    try:
        yield
    finally:
        for parameter, grad in given:
            parameter.grad = grad

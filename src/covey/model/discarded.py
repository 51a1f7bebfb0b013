"""Steps that leave no trace: a role does them to be warm before the clock starts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.model.batches import Losses
from covey.model.replica import Replica
from covey.nn.routing import RoutingNotes


@contextmanager
def discarded(replica: Replica, step: int) -> Iterator[None]:
    """Undo afterwards what training has done: to weights, buffers, optimizer, chance and the position in the data.

    The steps inside have an optimizer of their own; the replica's does not take part. `step` is the one that comes
    afterwards: processes that load samples begin to load its batch.
    """
    modules, chance = ModuleStates(replica.layout.modules, not replica.layout.apart), GlobalChance()
    numbers = replica.flat.clone() if replica.layout.apart else None
    before = [(part, dict(vars(part))) for part in replica.changing()]
    replica.updates.keep(replica.layout, replica.trained)
    replica.compute.losses = Losses()
    yield
    for part, attributes in before:
        vars(part).clear()
        vars(part).update(attributes)
    layout = replica.layout
    layout.aim(layout.params)
    modules.restore()
    for layer in replica.compute.experts:
        layer.notes = RoutingNotes()
    if numbers is not None:
        layout.params.copy_(numbers)
    layout.attach()
    layout.grads.zero_()
    replica.batch_source.begin(step)
    chance.restore()


class ModuleStates:
    """What modules hold: parameters, buffers, tensors of other kinds, and attributes that are given new values.

    A list or an object of the user's that is changed in place stays changed.
    """

    def __init__(self, roots: Sequence[nn.Module], parameters: bool = True) -> None:
        """Without the parameters where these are copies, which each step makes anew."""
        self._modules = list({id(module): module for root in roots for module in root.modules()}.values())
        self._attributes = [dict(vars(module)) for module in self._modules]
        self._buffers = [dict(module._buffers.items()) for module in self._modules]
        self._numbers: dict[int, tuple[Tensor, Tensor]] = {}
        for module, attributes, buffers in zip(self._modules, self._attributes, self._buffers, strict=True):
            own = [value for value in attributes.values() if isinstance(value, Tensor) and value.is_leaf]
            for tensor in (*(module._parameters.values() if parameters else ()), *buffers.values(), *own):
                if tensor is not None and id(tensor) not in self._numbers:
                    self._numbers[id(tensor)] = tensor, tensor.detach().clone()

    @torch.no_grad()
    def restore(self) -> None:
        """Bring them back; parameters lie where the caller has laid them."""
        for module, attributes, buffers in zip(self._modules, self._attributes, self._buffers, strict=True):
            _rebind(vars(module), attributes)
            _rebind(module._buffers, buffers)
        for tensor, numbers in self._numbers.values():
            tensor.detach().copy_(numbers)


def _rebind(now: dict[str, Any], before: dict[str, Any]) -> None:
    """Give names the values that they had; only where they have others, for a scripted module allows no more."""
    names = list(now.keys())  # a scripted module's is no dict
    for name in names:
        if name not in before:
            del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


class GlobalChance:
    """The states of the generators that everybody in a process shares: torch's, numpy's and Python's."""

    def __init__(self) -> None:
        self._here, self._python, self._numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self._gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        torch.set_rng_state(self._here)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._gpus:
            torch.cuda.set_rng_state_all(self._gpus)

"""A GradScaler in a run: gradients are unscaled before they are exchanged, and all workers skip the same steps."""

from __future__ import annotations

from collections.abc import Callable

from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from covey.run.own_loop.trained import parameters_of


def overflowed(scaler: GradScaler, optimizer: Optimizer, anywhere: Callable[[bool], bool]) -> bool:
    """Unscale the gradients, and say whether one is not finite `anywhere`: then this step is to be skipped.

    It leaves the scaler as its own `step` would, so that `scaler.update()` finds the same on all workers.
    """
    if not scaler.is_enabled():
        return False
    state = scaler._per_optimizer_states[id(optimizer)]  # as torch's own sharded scaler does
    if state["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
    found = state["found_inf_per_device"]
    here = any(bool(one.item()) for one in found.values())
    skipped = anywhere(here)
    if skipped and not here:
        for one in found.values():
            one.fill_(1.0)
    state["stage"] = OptState.STEPPED
    return skipped


def forget_gradients(optimizer: Optimizer, scaler: GradScaler | None) -> None:
    """This step was taken before the run was kept: all that is left of it is what the scaler will ask for."""
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad.zero_()
    if scaler is not None:
        overflowed(scaler, optimizer, lambda here: here)

"""Momentum before compression: what an optimizer would do later is done where the gradient is still whole.

Whatever receives such gradients must have no momentum of its own.
"""

from __future__ import annotations

from torch.optim import Optimizer

from covey.errors import PlanError
from covey.exchange.codec import Codec


def has_momentum(optimizer: Optimizer) -> bool:
    """Whether it goes on in the direction of earlier gradients."""
    return any(group.get("momentum") or (group.get("betas") or (0,))[0] for group in optimizer.param_groups)


def check_momentum(codec: str, momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise PlanError(f"{codec}(momentum={momentum:g}): 0 or more, and less than 1")


def check_optimizer(codec: Codec, shared: bool, optimizer: Optimizer) -> None:
    """Refuse momentum that would be applied twice, and momentum of all workers, which no worker can reset."""
    if not has_momentum(optimizer):
        return
    if codec.traits.momentum == "reset" and shared:
        raise PlanError(
            f"{codec.name} must reset the momentum of the values it sends, which is impossible in "
            f"{type(optimizer).__name__}, shared by all workers: use SGD without momentum and a codec that applies it "
            "itself, such as sbc(momentum=0.9), or topk"
        )
    if codec.traits.momentum == "own":
        raise PlanError(
            f"{codec.name} brings the momentum itself, before numbers are left out, and {type(optimizer).__name__} "
            "would add its own: give the task torch.optim.SGD without momentum, or use topk, which leaves it to "
            "the optimizer"
        )

"""What each layer costs by counting: the same numbers on every machine and in every run, for virtual time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from covey.model.compute_shares import BACKWARD, FORWARD
from covey.parallelism.stages import Stage
from covey.parallelism.trace import Inputs

FLOPS = 2e10  # a second, of one thread
BYTES = 5e9  # a second, in and out of memory


def counted(parts: Sequence[Stage], inputs: Inputs) -> list[tuple[float, float]]:
    """Seconds forward and backward of each layer, if a thread had such speeds."""
    times, values = [], tuple(inputs)
    for part in parts:
        with FlopCounterMode(display=False) as counter:
            made = part(values)
        forward = counter.get_total_flops() / FLOPS + (_bytes(values) + _bytes(made)) / BYTES
        times.append((forward, BACKWARD / FORWARD * forward))
        values = tuple(x.detach().requires_grad_(x.requires_grad) for x in made)
    return times


def _bytes(values: Sequence[Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)

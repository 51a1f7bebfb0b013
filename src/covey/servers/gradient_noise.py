"""How noisy is a gradient? The batch at which noise and signal are equal, from the gradients of an update."""

from __future__ import annotations

from collections.abc import Sequence

from covey.program import Node
from covey.vector import Vector, mean

SAMPLED = 20  # updates of which one is looked at


def measure_noise(node: Node, grads: Sequence[Vector], samples: Sequence[int]) -> None:
    """Tell of the variance of a sample's gradient and of the squared norm of the true one.

    McCandlish et al. 2018, appendix A.1: both are unbiased, their ratio is the simple noise scale. Servers that
    hold parts of the model tell of their parts, and the sums of these are those of the whole.
    """
    if len(grads) < 2 or len(set(samples)) > 1 or not samples[0]:
        return
    if any(part.is_meta for part in grads[0].parts):  # of a run that is only timed
        return
    few, many = samples[0], sum(samples)
    small = sum(grad.norm() ** 2 for grad in grads) / len(grads)
    large = mean(grads, [1.0] * len(grads)).norm() ** 2
    node.host.measure("gradient variance", (small - large) / (1 / few - 1 / many))
    node.host.measure("squared gradient", (many * large - few * small) / (many - few))

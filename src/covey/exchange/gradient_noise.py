"""How noisy is a gradient? The batch at which noise and signal are equal, from the gradients of a step."""

from __future__ import annotations

from collections.abc import Sequence

from covey.program import Node
from covey.vector import Vector, mean

SAMPLED, LATER = 20, 100  # steps or updates of which one is looked at, at first and later


def due(number: int) -> bool:
    """Whether this step or update is one of those; the first are looked at more often, as most runs are short."""
    return number % (SAMPLED if number < 10 * SAMPLED else LATER) == 1


def measure_noise(node: Node, grads: Sequence[Vector], samples: Sequence[int]) -> None:
    """Tell of the noise of the gradients of an update; those of servers with parts of the model add up."""
    if len(grads) < 2 or len(set(samples)) > 1 or _is_timed(grads[0]):
        return
    small = sum(grad.quick_norm() ** 2 for grad in grads) / len(grads)
    large = mean(grads, [1.0] * len(grads)).quick_norm() ** 2
    _tell(node, small, samples[0], large, sum(samples))


class NoiseProbe:
    """What a worker has made, alone, before the mean with those of others takes its place: a gradient, or a change.

    The mean over the workers of what they tell is what a server with all gradients would tell.
    """

    def __init__(self, node: Node, mine: Vector, samples: int) -> None:
        self.node, self.samples = node, samples
        self.square = 0.0 if _is_timed(mine) else mine.quick_norm() ** 2

    def met(self, mean: Vector, samples: int) -> None:
        """The mean of all, of this many samples together."""
        if not _is_timed(mean) and samples > self.samples:
            _tell(self.node, self.square, self.samples, mean.quick_norm() ** 2, samples)


def _is_timed(vector: Vector) -> bool:
    """Whether the run is only timed, so that there are no numbers."""
    return any(part.is_meta for part in vector.parts)


def _tell(node: Node, small: float, few: int, large: float, many: int) -> None:
    """The variance of a sample's gradient, and the squared norm of the true one, from the squares of two batches.

    McCandlish et al. 2018, appendix A.1: both are unbiased, their ratio is the simple noise scale.
    """
    if few:
        node.host.measure("gradient variance", (small - large) / (1 / few - 1 / many))
        node.host.measure("squared gradient", (many * large - few * small) / (many - few))

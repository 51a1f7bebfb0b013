"""How long an operator takes on inputs of one shape: measured once, or counted, and then known."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from covey.model.compute_shares import BACKWARD, FORWARD
from covey.parallelism.plan.estimate import BYTES, FLOPS
from covey.parallelism.plan.measure import clock_for


class OperatorTimes:
    """Seconds forward and backward, by what the operator is and the shapes that it is given.

    The median of `repeat` passes, on a CPU of a thread's own time; with repeat=0 its operations and bytes are counted.
    """

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat
        self.known: dict[str, tuple[float, float]] = {}

    def of(
        self, signature: str, work: Callable[..., Any], args: Any, kwargs: Any, weights: Sequence[Tensor]
    ) -> tuple[float, float]:  # fmt: skip
        if signature not in self.known:
            given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            find = self._timed if self.repeat else self._counted
            self.known[signature] = find(lambda: work(*args, **kwargs), given, weights)
        return self.known[signature]

    def _timed(
        self, work: Callable[[], Any], given: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[float, float]:  # fmt: skip
        passes = [_once(work, [*given, *weights]) for _ in range(self.repeat + 1)][1:]
        return statistics.median(one for one, _ in passes), statistics.median(other for _, other in passes)

    def _counted(
        self, work: Callable[[], Any], given: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[float, float]:  # fmt: skip
        with FlopCounterMode(display=False) as counter:
            made = [x for x in pytree.tree_leaves(work()) if isinstance(x, Tensor)]
        size = sum(x.numel() * x.element_size() for x in (*given, *made))
        forward = counter.get_total_flops() / FLOPS + size / BYTES
        return forward, BACKWARD / FORWARD * forward


def _once(work: Callable[[], Any], inputs: Sequence[Tensor]) -> tuple[float, float]:
    clock = clock_for(inputs)
    begin = clock()
    made = [x for x in pytree.tree_leaves(work()) if isinstance(x, Tensor) and x.requires_grad]
    between = clock()
    wanted = [x for x in inputs if x.requires_grad]
    if made and wanted:
        torch.autograd.grad(made, wanted, [torch.ones_like(x) for x in made], allow_unused=True)
    return between - begin, clock() - between if made and wanted else 0.0

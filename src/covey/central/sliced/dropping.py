"""BigDL's way with stragglers: parts of batches that are not ready after a learned time are dropped (Dai et al. 2019).

As in BigDL's DistriOptimizer, which computes the parts of a batch side by side on a machine's cores; here they follow
one another, and work that has begun is not broken off, so a slow worker is late by a part at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from covey.model.batches import Batch
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class PartsReady(NamedTuple):
    """What a worker has ready: the mean gradient over this many samples; microseconds until each part of it was."""

    grad: Vector
    samples: int
    times: tuple[int, ...] = ()


@dataclass(slots=True)
class Patience:
    """What all owners know of how long parts take, from the same messages; it survives a restart."""

    limit: int | None = None  # microseconds; None: all are waited for
    steps: int = 0
    dropped: int = 0  # parts, since the limit was learned
    times: list[int] = field(default_factory=list)  # of the others


@dataclass(frozen=True, slots=True)
class Dropping:
    """After `warmup` steps, and again every `window`, learn the time that all but a share `drop` of parts keep to."""

    drop: float
    most: float
    parts: int
    warmup: int
    window: int

    async def ready(self, node: Node, replica: Replica, limit: int | None) -> PartsReady:
        """The gradient of the parts of the next batch that are ready within the limit."""
        begin, times, total = await node.now(), [], replica.grad.map(torch.zeros_like)
        samples, losses = 0, 0.0
        for part in range(self.parts):
            grad = await replica.gradient_of(node, node.rank, node.step, part, self.parts)
            took = round((await node.now() - begin) * 1e6)
            if limit is not None and took > limit:
                break
            times.append(took)
            if replica.batch.samples:
                total.add_(grad, alpha=replica.batch.samples)
                samples, losses = samples + replica.batch.samples, losses + replica.batch.loss * replica.batch.samples
        await replica.report(node, Batch(losses / samples if samples else float("nan"), samples))
        return PartsReady(total.mul_(1 / max(1, samples)), samples, tuple(times))

    def enough(self, times: Sequence[tuple[int, ...]], patience: Patience) -> bool:
        """Whether a step that was ready so far makes an update; every owner learns the same from it."""
        ready, asked = [time for of_one in times for time in of_one], self.parts * len(times)
        patience.steps += 1
        patience.dropped += asked - len(ready)
        patience.times += ready
        since = patience.steps - self.warmup
        if since > 0 and since % self.window == 0:
            patience.limit = self.learn(patience)
        if since <= 0 or since % self.window == 0:
            patience.dropped, patience.times = 0, []
        return len(ready) >= (1 - self.most) * asked

    def learn(self, patience: Patience) -> int | None:
        """As many more are to be dropped as make the share; where it is reached, a little more time is given."""
        more = int(self.drop * (len(patience.times) + patience.dropped)) - patience.dropped
        if more > 0:
            return sorted(patience.times, reverse=True)[min(more, len(patience.times) - 1)]
        return None if patience.limit is None else patience.limit * 101 // 100

"""ByteScheduler's credit, found by measuring: each of a few is tried for some steps.

Peng et al. 2019 search for partition and credit together, by Bayesian optimization over measured steps. Here all of a
short list of credits are tried; the partition says how parameters are divided among servers, and stays.
"""

from __future__ import annotations

from covey.program import Node

PARTITIONS = (1, 2, 4, 8, 16)  # that may be on their way
TRIAL = 4  # steps of each; the first still has transfers of the one before
ALIKE = 1.02  # times that differ by less


class Search:
    """A worker's; all workers try the same credits in the same steps, and their steps take equally long."""

    def __init__(self, node: Node, partition: int) -> None:
        self.node, self.credits = node, [partition * count for count in PARTITIONS]
        self.taken: list[float] = node.remember([]).value  # seconds of the steps so far
        self.began: float | None = None
        self.told = False

    async def credit(self) -> int:
        """The bytes that may be on their way in the step that begins now."""
        now = await self.node.now()
        if self.began is not None and len(self.taken) < TRIAL * len(self.credits):
            self.taken.append(now - self.began)
        self.began = now
        tried = len(self.taken) // TRIAL
        if tried < len(self.credits):
            return self.credits[tried]
        found = self.found()
        if not self.told and self.node.rank == 0:
            await self.node.note("credit", found)
        self.told = True
        return found

    def found(self) -> int:
        """The least credit that is about as fast as any: what has not left can still be overtaken."""
        trials = [self.taken[first + 1 : first + TRIAL] for first in range(0, len(self.taken), TRIAL)]
        seconds = [sum(steps) for steps in trials]
        return next(c for c, taken in zip(self.credits, seconds, strict=True) if taken <= ALIKE * min(seconds))

"""Micro-batches of members that divide experts: where one of them has samples, all of them compute."""

from __future__ import annotations

from typing import Any

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.parallelism.pipeline.stage_compute import Microbatch, Microbatches
from covey.task import Task
from covey.vector import chunk

FEW = 2  # samples, with which batch-norm can compute


class ServedMicrobatches(Microbatches):
    """Those of one member. Where it has none left it takes samples again, which count nothing and send no token."""

    def __init__(self, task: Task, feed: Feed, batches: GroupBatches, rank: int, group: range) -> None:
        """`group` are the shares of the data of all members that divide its experts."""
        super().__init__(task, feed, batches, rank)
        self.group = group

    def serves(self, micro: Microbatch) -> bool:
        """Whether others have samples in it and this member has none."""
        return not self._samples_of(self.rank, micro) and any(self._samples_of(rank, micro) for rank in self.group)

    def samples(self, micro: Microbatch) -> int:
        return FEW if self.serves(micro) else super().samples(micro)

    def share(self, micro: Microbatch) -> float:
        return 0.0 if self.serves(micro) else super().share(micro)

    def _samples_of(self, rank: int, micro: Microbatch) -> int:
        start, stop = chunk(self.batches.batch(rank, micro.step), micro.parts, micro.number)
        return stop - start

    def _taken(self, micro: Microbatch) -> Any:
        if not self.serves(micro):
            return super()._taken(micro)
        return self.feed.take(self.deal.indices(self.rank, self._own(micro))[:FEW])

    def _own(self, micro: Microbatch) -> int:
        """Where no batch is left, the first one of the pass."""
        own = self.batches.own(self.rank, micro.step)
        passes = micro.step // self.batches.steps(self.rank // self.batches.members)
        return passes * self.deal.steps(self.rank) if own is None else own

"""Batches of one worker's shard of a data set, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.engines.process.launcher.own_loops import SHARD
from covey.run.own_loop.loading import LoaderWorker, Sizes
from covey.task.data import Data


class ShardEpochs:
    """The batches of one worker; each iteration is the next epoch."""

    def __init__(self, member: LoaderWorker, data: Data, deal: Shards) -> None:
        self.member, self.deal = member, deal
        self.feed = Feed(data, deal, member.rank)

    def __len__(self) -> int:
        """The number of batches of an epoch, the same for all workers, so that none waits for one that has ended."""
        return self.deal.steps(self.deal.workers - 1)

    def __iter__(self) -> Iterator[Any]:
        deal, rank, begun = self.deal, self.member.rank, self.member._begin_pass()
        if begun is None:
            return
        self.member._reads(begun.order, f"{SHARD} {deal.samples} samples in batches of {deal.batch_size}")
        first = begun.order * deal.steps(rank) + begun.skip
        with begun:
            for number, batch in enumerate(islice(self.feed.start(first), len(self) - begun.skip), begun.skip):
                sizes = [deal.batch(each, number) for each in range(deal.workers)]
                if not self.member._pulled(Sizes(sizes[rank], sum(sizes), tuple(sizes))):
                    return
                begun.give()
                yield batch

"""`member.shard`: each worker's share of a data set, in as many batches for all, whatever the remainder."""

from __future__ import annotations

import pytest
import torch

from covey.data.shards import Shards
from covey.run.own_loop.sharding import ShardEpochs
from tests.run.own_loop.test_loading import Reader

BATCH = 3


def shares(samples: int, workers: int) -> tuple[list[Reader], list[ShardEpochs]]:
    readers = [Reader(rank, workers) for rank in range(workers)]
    data = (torch.arange(samples),)
    return readers, [ShardEpochs(reader, data, Shards(samples, workers, BATCH)) for reader in readers]


def passed(share: ShardEpochs) -> list[list[int]]:
    """One pass over it, batch by batch."""
    return [batch[0].tolist() for batch in share]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", range(12, 25))
def test_all_workers_get_equally_many_batches_and_know_how_large_they_are(samples: int, workers: int) -> None:
    """Where a worker has one sample more than another, it takes no step that the other does not take."""
    readers, found = shares(samples, workers)
    first, second = [passed(share) for share in found], [passed(share) for share in found]
    for epoch in (first, second):
        steps = list(zip(*epoch, strict=True))  # as many for all
        assert {len(share) for share in found} == {len(steps)}
        seen = [number for step in steps for batch in step for number in batch]
        assert len(seen) == len(set(seen)) > samples - workers, "nothing twice; at most one is left out of each share"
    sizes = [[len(batch) for batch in step] for epoch in (first, second) for step in zip(*epoch, strict=True)]
    for rank, reader in enumerate(readers):
        assert [(size.mine, size.everybody) for size in reader.sizes] == [(step[rank], sum(step)) for step in sizes]
    assert first != second, "each epoch has an order of its own"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_resumed_pass_goes_on_behind_what_was_given(workers: int) -> None:
    _, found = shares(20, workers)
    whole = [passed(share) for share in found]
    readers, resumed = shares(20, workers)
    for reader in readers:
        reader.skip = 2
    assert [passed(share) for share in resumed] == [batches[2:] for batches in whole]

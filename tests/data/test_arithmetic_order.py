"""The order by arithmetic: each sample once, at any position at once, for any number of readers."""

from __future__ import annotations

import time
from itertools import islice

import numpy as np
import pytest
import torch

from covey.data.arithmetic_order import ArithmeticShards, GlobalBatches, Permutation
from covey.run.changed_plan import position


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 16, 17, 1000, 65537])
def test_every_epoch_is_a_permutation(samples: int) -> None:
    epochs = [Permutation(samples, 3, epoch).at(range(samples)).tolist() for epoch in range(3)]
    assert all(sorted(epoch) == list(range(samples)) for epoch in epochs)
    assert samples < 16 or epochs[0] != epochs[1] != list(range(samples))


def test_every_place_is_equally_likely() -> None:
    """Pearson's chi square of 2,000 seeds, with 49 degrees of freedom: 85.4 is exceeded by chance once in 1,000."""
    seen = np.zeros((8, 8))
    for seed in range(2_000):
        seen[np.arange(8), Permutation(8, seed, 0).at(range(8)).astype(int)] += 1
    assert ((seen - 250) ** 2 / 250).sum() < 85.4


def test_neighbours_are_torn_apart() -> None:
    order = Permutation(100_000, 0, 0).at(range(100_000)).astype(float)
    gaps = np.abs(np.diff(order))
    assert 0.32 < gaps.mean() / 100_000 < 0.345, "a third, as for independent samples"
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02


def test_ten_million_samples_on_the_order_goes_on_at_once() -> None:
    deal = ArithmeticShards(50_000_000, 4, 32, 0)
    begin = time.process_time()
    deal.indices(1, 10_000_000 // (4 * 32))
    GlobalBatches(50_000_000, 128).part(10_000_000 // 128, 1, 4)
    assert time.process_time() - begin < 0.1


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_batches_are_those_of_the_epochs_order(workers: int) -> None:
    deal = ArithmeticShards(103, workers, 8, 5)
    for rank in range(workers):
        whole = torch.cat(list(islice(deal.draws(rank), 2 * deal.steps(rank))))
        assert torch.equal(whole, torch.cat([deal.shard(0, rank), deal.shard(1, rank)]))
        for step in (0, 1, deal.steps(rank) - 1, deal.steps(rank)):
            assert torch.equal(deal.indices(rank, step), list(islice(deal.draws(rank), step + 1))[-1])
            assert len(deal.indices(rank, step)) == deal.batch(rank, step)
    assert sorted(torch.cat([deal.shard(1, rank) for rank in range(workers)]).tolist()) == list(range(103))
    assert torch.equal(deal.order(1)[0::workers], deal.shard(1, 0))


@pytest.mark.parametrize("start", [1, 6, 12, 13, 20])
def test_who_begins_in_the_middle_of_an_epoch_has_the_later_ones_whole(start: int) -> None:
    """52 samples of each worker are 7 batches."""
    deal = ArithmeticShards(104, 2, 8, 5)
    drawn = torch.cat(list(islice(deal.draws(1, start), 28 - start)))
    whole = [deal.shard(epoch, 1) for epoch in range(4)]
    assert torch.equal(drawn, torch.cat([whole[start // 7][start % 7 * 8 :], *whole[start // 7 + 1 :]]))


def test_a_run_that_is_killed_at_any_step_goes_on_with_any_number_of_workers() -> None:
    """As a run does that is resumed with others: what all have seen together is a prefix of the same order."""
    order = ArithmeticShards(96, 1, 1, 2).order(0).tolist()
    for before in (1, 2, 4):
        for after in (1, 2, 4):
            old, new = ArithmeticShards(96, before, 4, 2), ArithmeticShards(96, after, 4, 2)
            for killed in range(0, 24 // before, max(1, after // before)):
                seen = [n for step in range(killed) for rank in range(before) for n in old.indices(rank, step).tolist()]
                steps = [position(new, rank, len(seen), None) for rank in range(after)]
                rest = [
                    n
                    for rank in range(after)
                    for at in range(steps[rank], new.steps(rank))
                    for n in new.indices(rank, at).tolist()
                ]
                assert sorted(seen) == sorted(order[: len(seen)]) and sorted(seen + rest) == list(range(96))


@pytest.mark.parametrize("killed", range(0, 40, 3))
def test_readers_go_on_at_any_batch_in_any_number(killed: int) -> None:
    """50 samples in batches of 8: batches cross the ends of epochs."""
    batches = GlobalBatches(50, 8, seed=9)
    unbroken = batches.between(0, 8 * 44)
    first = [list(islice(batches.parts(0, reader, 2), killed)) for reader in range(2)]
    seen = [number for parts in zip(*first, strict=True) for part in parts for number in part]
    for readers in (1, 2, 3, 4):
        later = [list(islice(batches.parts(killed, reader, readers), 44 - killed)) for reader in range(readers)]
        assert seen + [n for parts in zip(*later, strict=True) for part in parts for n in part] == unbroken
    assert [sorted(unbroken[at : at + 50]) for at in range(0, 350, 50)] == [list(range(50))] * 7

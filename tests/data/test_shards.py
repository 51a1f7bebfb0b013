"""Every sample is dealt once an epoch, and n workers together see what one would."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.data.shards import Shards
from covey.errors import PlanError

quick = settings(deadline=None, max_examples=60)


@st.composite
def shards(draw: st.DrawFn) -> Shards:
    samples = draw(st.integers(1, 60))
    return Shards(samples, draw(st.integers(1, min(samples, 9))), draw(st.integers(1, 12)), draw(st.integers(0, 3)))


def batches(deal: Shards, rank: int, epoch: int) -> list[list[int]]:
    """One worker's batches of an epoch."""
    steps = deal.steps(rank)
    return [deal.indices(rank, step).tolist() for step in range(epoch * steps, (epoch + 1) * steps)]


@quick
@given(shards(), st.integers(0, 4))
def test_every_sample_is_seen_exactly_once_an_epoch(deal: Shards, epoch: int) -> None:
    seen = [number for rank in range(deal.workers) for batch in batches(deal, rank, epoch) for number in batch]
    assert sorted(seen) == list(range(deal.samples))


@quick
@given(shards(), st.integers(0, 4))
def test_the_workers_together_see_the_batches_of_one(deal: Shards, epoch: int) -> None:
    alone = Shards(deal.samples, 1, deal.workers * deal.batch_size, deal.seed)
    parts = [batches(deal, rank, epoch) for rank in range(deal.workers)]
    for step, whole in enumerate(batches(alone, 0, epoch)):
        together = [number for part in parts if step < len(part) for number in part[step]]
        assert sorted(together) == sorted(whole)


@quick
@given(shards(), st.integers(0, 30))
def test_sizes_need_no_drawing(deal: Shards, step: int) -> None:
    for rank in range(deal.workers):
        assert deal.batch(rank, step) == len(deal.indices(rank, step)) > 0
        assert deal.size(rank) == len(deal.shard(0, rank)) == sum(deal.batch(rank, s) for s in range(deal.steps(rank)))


@quick
@given(shards(), st.integers(0, 30))
def test_draws_are_the_indices_from_a_step_on(deal: Shards, step: int) -> None:
    rank = deal.workers - 1
    for number, drawn in enumerate(islice(deal.draws(rank, step), 20), start=step):
        assert torch.equal(drawn, deal.indices(rank, number))


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    deal = Shards(100, 3, 8, seed=5)
    torch.manual_seed(1)
    assert torch.equal(deal.order(2), Shards(100, 7, 1, seed=5).order(2))
    assert not torch.equal(deal.order(2), deal.order(3))
    assert not torch.equal(deal.order(2), Shards(100, 3, 8, seed=6).order(2))
    # Fixed for good: a checkpoint that is resumed with a newer covey must see the same samples.
    assert Shards(8, 1, 8).order(0).tolist() == [2, 4, 3, 6, 5, 0, 1, 7]


def test_neighbouring_seeds_have_no_order_in_common() -> None:
    orders = [Shards(40, 1, 4, seed).order(epoch).tolist() for seed in range(4) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((3, 4, 1), "3 samples are too few for 4 workers: .* use at most 3 workers"),
        ((0, 1, 1), "samples must be at least 1, not 0"),
        ((3, 0, 1), "workers must be at least 1"),
        ((3, 1, 0), "batch_size must be at least 1"),
        ((3, 1, 1, -1), "seed must be at least 0, not -1"),
        ((3, 1, 1, 1 << 63), r"seed must be below 2\*\*63"),
        ((1 << 63, 1, 1), r"samples must be below 2\*\*63"),
    ],
)
def test_what_cannot_be_dealt_says_what_would_work(settings: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Shards(*settings)

"""Batches are the samples that the shards name, whatever the data is made of, from any step on."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.task.data import Loading

X = torch.arange(46).reshape(23, 2).float()
Y = torch.arange(23)


class OneByOne(Dataset[tuple[Tensor, int]]):
    """Samples that have to be asked for one at a time."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return X[number], int(Y[number])


class AtOnce(OneByOne):
    """Samples that can be asked for many at a time."""

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        raise AssertionError("one by one is slow")

    def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, int]]:
        return [(X[number], int(Y[number])) for number in numbers]


class Doubled(TensorDataset):
    """Tensors that change on the way out."""

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        return 2 * self.tensors[0][number], self.tensors[1][number]


PLAIN: list[Any] = [(X, Y), TensorDataset(X, Y), Subset(TensorDataset(X, Y), range(23)), OneByOne(), AtOnce()]
SHARDS = Shards(23, 3, 4, seed=1)


def pairs(feed: Feed, step: int, count: int) -> list[tuple[list[list[float]], list[int]]]:
    return [(x.tolist(), y.tolist()) for x, y in islice(feed.start(step), count)]


@pytest.mark.parametrize("data", PLAIN, ids=lambda data: type(data).__name__)
def test_a_batch_is_what_the_shards_name(data: Any) -> None:
    for step, (x, y) in enumerate(islice(Feed(data, SHARDS, 2).start(), 9)):
        assert torch.equal(y, SHARDS.indices(2, step))
        assert torch.equal(x, X[y])


@settings(deadline=None, max_examples=40)
@given(data=st.sampled_from(PLAIN), rank=st.integers(0, 2), step=st.integers(0, 15))
def test_a_resumed_feed_is_the_tail_of_the_whole(data: Any, rank: int, step: int) -> None:
    feed = Feed(data, SHARDS, rank)
    assert pairs(feed, step, 5) == pairs(feed, 0, step + 5)[step:]


@pytest.mark.parametrize("data", [OneByOne(), AtOnce()])
def test_loader_processes_change_nothing_but_the_speed(data: Any) -> None:
    assert pairs(Feed(data, SHARDS, 1, loading=Loading(loaders=2)), 3, 8) == pairs(Feed(data, SHARDS, 1), 3, 8)


def test_a_subset_keeps_its_own_numbers() -> None:
    even = Subset(TensorDataset(X, Y), range(0, 22, 2))
    seen = torch.cat([y for _, y in islice(Feed(even, Shards(11, 1, 4), 0).start(), 3)])
    assert sorted(seen.tolist()) == list(range(0, 22, 2))


def test_a_data_set_that_changes_its_samples_is_asked_for_them() -> None:
    x, y = next(Feed(Doubled(X, Y), SHARDS, 0).start())
    assert torch.equal(x, 2 * X[y])


def test_a_feed_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    for data in PLAIN:
        pairs(Feed(data, SHARDS, 0), 0, 9)
    assert torch.equal(torch.get_rng_state(), before)


class Growing(OneByOne):
    length = 23

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("length", [22, 24])
def test_data_that_change_their_length_are_named_in_the_next_pass(length: int) -> None:
    data = Growing()
    feed = Feed(data, SHARDS, 1)
    batches = feed.start()
    for _ in range(SHARDS.steps(1)):
        next(batches)
    data.length = length
    with pytest.raises(PlanError, match=rf"len\(data\) was 23 .* is {length} now, in pass 1 of worker 1"):
        next(batches)
    with pytest.raises(PlanError, match="must keep its length"):
        next(feed.start(1))

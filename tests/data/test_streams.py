"""A stream is divided among workers item by item, each item once in a pass; one worker trains as a plain loop does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import covey
from covey.data.feed import Feed
from covey.errors import CoveyError, PlanError
from covey.model import build
from covey.model.threads import one_thread
from covey.task import Task
from tests.worlds import CLUSTER, cloud, sgd

X, Y = cloud(50)
ENGINES = ["simulated", "local"]


class Stream(IterableDataset[Any]):
    """Items in their order, or shuffled from the global generators."""

    def __init__(self, shuffled: bool = False, items: int = 50) -> None:
        self.shuffled, self.items = shuffled, items

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = list(range(self.items))
        if self.shuffled:
            random.shuffle(order)
        return iter([(X[number], Y[number]) for number in order])


class Counted(Stream):
    """One that says how long it is."""

    said = 50

    def __len__(self) -> int:
        return self.said


class Divided(Counted):
    """One that divides itself: each worker a range."""

    def shard(self, num_shards: int, index: int) -> list[Any]:
        return list(islice(iter(self), index * self.items // num_shards, (index + 1) * self.items // num_shards))


def task(data: Any, **more: Any) -> Task:
    given: dict[str, Any] = {"model": lambda: nn.Linear(6, 3).double(), "optimizer": sgd(0.2), "batch_size": 8}
    return Task(data=data, loss=nn.functional.cross_entropy, **(given | more))


def labels(given: Task, workers: int, passes: int = 1, **more: Any) -> list[list[tuple[float, ...]]]:
    """The items that each worker sees."""
    deal = build.shards(given, workers, 3, **more)
    found = []
    for rank in range(workers):
        batches = Feed(build.data_of(given), deal, rank, given.loading).start()
        taken = list(islice(batches, passes * deal.steps(rank)))
        found.append([tuple(row.tolist()) for x, _ in taken for row in x])
    return found


@pytest.mark.parametrize("data", [Counted(), Counted(shuffled=True), DataLoader(Counted(), batch_size=8)])
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_each_item_is_seen_once_in_a_pass(data: Any, workers: int) -> None:
    once = Counter(tuple(row.tolist()) for row in X)
    for passes in (1, 2):
        seen = Counter(item for items in labels(task(data), workers, passes) for item in items)
        assert seen == Counter(dict.fromkeys(once, passes))


def test_worker_i_takes_items_i_i_plus_n_and_so_on() -> None:
    rows = [tuple(row.tolist()) for row in X]
    assert labels(task(Counted()), 3) == [rows[0::3], rows[1::3], rows[2::3]]
    divided = task(Divided(items=50), batch_size=5)
    assert labels(divided, 2) == [rows[:25], rows[25:]], "or as the set divides itself"


def test_a_shuffled_pass_is_another_one_and_comes_again() -> None:
    first = labels(task(Counted(shuffled=True)), 2, passes=2)
    assert first == labels(task(Counted(shuffled=True)), 2, passes=2)
    assert first[0][:25] != first[0][25:]


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_feed_can_start_at_any_step(loaders: int) -> None:
    given = task(Counted(shuffled=True), loaders=loaders)
    deal = build.shards(given, 2, 0)
    whole = [x for x, _ in islice(Feed(build.data_of(given), deal, 1, given.loading).start(0), 9)]
    for step in (2, 4, 7):
        batches = islice(Feed(build.data_of(given), deal, 1, given.loading).start(step), 9 - step)
        assert all(torch.equal(x, before) for (x, _), before in zip(batches, whole[step:], strict=True))


def by_hand(steps: int, batch: int) -> dict[str, Tensor]:
    with one_thread():
        torch.manual_seed(0)
        model = nn.Linear(6, 3).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        done = 0
        while done < steps:
            for x, y in DataLoader(Counted(), batch_size=batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break
    return {name: value.detach() for name, value in model.state_dict().items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("workers", [1, 2])
def test_it_trains_as_the_plain_loop(workers: int, engine: str) -> None:
    found = covey.fit(task(Counted()), "allreduce", workers, engine=engine, epochs=3, runs=False)
    assert found.samples == 150
    assert apart(found.weights, by_hand(3 * -(-50 // (8 * workers)), 8 * workers)) <= (0 if workers == 1 else 1e-12)


def test_processes_do_too() -> None:
    shuffled = task(Counted(shuffled=True))
    here, there = (covey.fit(shuffled, "bsp", 2, engine=engine, epochs=2, runs=False) for engine in ENGINES)
    assert here.samples == there.samples == 100 and apart(here.weights, there.weights) < 1e-12


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    given: dict[str, Any] = {"epochs": 4, "engine": "simulated", "cluster": CLUSTER}
    shuffled, place = task(Counted(shuffled=True)), tmp_path / "kept"
    whole = covey.fit(shuffled, "bsp", 2, **given)
    covey.fit(shuffled, "bsp", 2, until="loss<=1.0", checkpoint=place, every="25ms", **given)
    assert apart(whole.weights, covey.fit(shuffled, "bsp", 2, resume=place, **given).weights) == 0


def test_a_stream_without_a_length_begins_again_where_it_ends() -> None:
    found = covey.fit(task(Stream()), "bsp", 2, engine="simulated", steps=10)
    assert found.samples == 160
    with pytest.raises(PlanError, match=r"without a length: say how long to train with steps="):
        covey.fit(task(Stream()), "bsp", 2, engine="simulated", epochs=2)
    seen = labels(task(Stream(), batch_size=10), 2, taken=100)
    assert seen[0] == [tuple(row.tolist()) for row in X[0::2]] * 2


def test_a_stream_without_a_length_is_told_each_pass() -> None:
    told: list[int] = []

    class Told(Stream):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    labels(task(Told(), batch_size=10), 1, taken=100)
    assert told == [0, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": [1, 2]}, "omit sampler"),
        ({"drop_last": True}, "omit drop_last"),
        ({"loaders": 2}, "loaders must be 0 or 1"),
    ],
)
def test_what_samples_without_numbers_cannot_have_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        task(Counted(), **settings)


@pytest.mark.parametrize("strategy", ["gradient_coding", "a_bsp(chunks=2)", "allreduce with mesh(stage=2)"])
def test_strategies_that_want_numbers_are_refused(strategy: str) -> None:
    with pytest.raises(PlanError, match=r"samples by number|stream"):
        covey.fit(task(Counted()), strategy, 2, engine="simulated", epochs=1)


@pytest.mark.parametrize(("said", "words"), [(60, "fewer items"), (40, "more items")])
def test_a_length_that_is_not_true_is_told(said: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "said", said)
    with pytest.raises(CoveyError, match=words):
        covey.fit(task(Counted()), "bsp", 2, engine="simulated", epochs=2)

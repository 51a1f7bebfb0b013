"""A task's data in a DataLoader: its sampler, collate_fn, batch size and the rest are those of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import covey
from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.model import build

X, Y = torch.arange(46.0).reshape(23, 2), torch.arange(23)
WHOLE = TensorDataset(X, Y)


def task(data: Any, **others: Any) -> covey.Task:
    return covey.Task(
        model=lambda: nn.Linear(2, 23), data=data, optimizer=lambda p: torch.optim.SGD(p, lr=0.01),
        loss=nn.functional.cross_entropy, **others,
    )  # fmt: skip


def labels(given: covey.Task, rank: int, workers: int, steps: int, first: int = 0, seed: int = 0) -> list[list[int]]:
    deal = build.shards(given, workers, seed)
    feed = Feed(build.data_of(given), deal, rank, given.loading)
    return [y.tolist() for _, y in islice(feed.start(first), steps)]


def passes(given: covey.Task, workers: int = 1, seed: int = 0) -> list[list[int]]:
    """What all workers together see in each of two passes, in order."""
    deal = build.shards(given, workers, seed)
    return [deal.order(epoch).tolist() for epoch in (0, 1)]


def test_a_loader_that_only_shuffles_is_dealt_out_like_its_data_set() -> None:
    found = build.shards(task(DataLoader(WHOLE, 4, shuffle=True)), 3, 7)
    assert found == Shards(23, 3, 4, 7)


@pytest.mark.parametrize("sampler", [Y > 11, [True] * 23, [0.5] * 23, torch.linspace(0, 22, 23)])
def test_what_is_no_number_of_a_sample_is_refused(sampler: Any) -> None:
    with pytest.raises(PlanError, match="must give numbers of samples, and it gave .* of a mask give the places"):
        passes(task(WHOLE, sampler=sampler))


def test_a_sampler_may_give_numbers_of_torch_and_numpy() -> None:
    whole = [list(range(23))] * 2
    assert passes(task(WHOLE, sampler=torch.arange(23))) == passes(task(WHOLE, sampler=list(Y.numpy()))) == whole


def test_a_loader_that_does_not_shuffle_keeps_its_order() -> None:
    assert passes(task(DataLoader(WHOLE, 4))) == [list(range(23))] * 2
    assert labels(task(DataLoader(WHOLE, 4)), 1, 2, 3) == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19, 21]]


SAMPLERS = {
    "subset": SubsetRandomSampler(range(0, 20, 2)),
    "weighted": WeightedRandomSampler([1.0] * 3 + [0.0] * 20, 12),
    "replaced": RandomSampler(WHOLE, replacement=True, num_samples=15),
    "list": [3, 1, 2, 5, 8],
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_chooses_the_samples_of_each_pass(name: str) -> None:
    sampler: Any = SAMPLERS[name]
    given = task(WHOLE, sampler=sampler, batch_size=2)
    first, second = passes(given)
    assert len(first) == len(second) == len(sampler)
    allowed = {"subset": range(0, 20, 2), "weighted": range(3), "replaced": range(23), "list": [1, 2, 3, 5, 8]}[name]
    assert set(first) <= set(allowed)
    assert (first == second) == (name == "list")  # chance differs from pass to pass
    assert passes(given) == [first, second] == passes(given, workers=2)  # … and from nothing else
    if name != "list":
        assert passes(given, seed=1) != [first, second]
    shares = [build.shards(given, 2, 0).shard(0, rank).tolist() for rank in (0, 1)]
    assert shares == [first[0::2], first[1::2]]


class TurningSampler(SequentialSampler):
    """Begins each pass a sample later, as it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([(self.epoch + number) % 23 for number in range(23)])


def test_a_sampler_is_told_the_pass() -> None:
    first, second = passes(task(WHOLE, sampler=TurningSampler(WHOLE), batch_size=2))
    assert first == list(range(23)) and second == [*range(1, 23), 0]


def test_a_generator_of_the_users_own_governs_the_order() -> None:
    def drawn(seed: int) -> list[list[int]]:
        return passes(task(DataLoader(WHOLE, 4, shuffle=True, generator=torch.Generator().manual_seed(seed))))

    assert drawn(1) == drawn(1) != drawn(2)


def test_drawing_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    passes(task(WHOLE, sampler=RandomSampler(WHOLE, replacement=True)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "sampler",
    [
        *SAMPLERS.values(), RandomSampler(WHOLE, num_samples=9), RandomSampler(WHOLE, num_samples=40),
        RandomSampler(WHOLE, generator=torch.Generator().manual_seed(3)),
    ],
    ids=[*SAMPLERS, "fewer", "more", "seeded"],
)  # fmt: skip
def test_a_sampler_in_a_loader_counts_as_one_of_the_task(sampler: Any) -> None:
    """Only one that does nothing but shuffle is left out."""
    inside = task(DataLoader(WHOLE, 4, sampler=sampler))
    assert inside.sampler is sampler
    assert passes(inside) == passes(task(WHOLE, sampler=sampler, batch_size=4))
    assert [len(one) for one in passes(inside)] == [len(sampler)] * 2


def test_a_resumed_pass_is_the_tail_of_the_whole() -> None:
    given = task(WHOLE, sampler=SAMPLERS["subset"], batch_size=3)
    assert labels(given, 0, 1, 5, first=2) == labels(given, 0, 1, 7)[2:]


@pytest.mark.parametrize(("workers", "whole"), [(1, 20), (2, 16), (3, 12)])
def test_drop_last_leaves_out_what_makes_no_whole_batch(workers: int, whole: int) -> None:
    for given in (task(DataLoader(WHOLE, 4, shuffle=True, drop_last=True)), task(WHOLE, batch_size=4, drop_last=True)):
        deal = build.shards(given, workers, 0)
        assert deal.samples == whole
        assert {deal.batch(rank, step) for rank in range(workers) for step in range(deal.steps(rank))} == {4}
        dropped = [set(range(23)) - set(order) for order in passes(given, workers)]
        assert dropped[0] != dropped[1]  # other samples in another pass


class Texts(Dataset[list[int]]):
    """Samples of different lengths."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> list[int]:
        return [number] * (1 + number % 3)


def padded(samples: list[list[int]]) -> Tensor:
    most = max(map(len, samples))
    return torch.tensor([sample + [0] * (most - len(sample)) for sample in samples])


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 4)

    def forward(self, numbers: Tensor) -> Tensor:
        found: Tensor = self.embedding(numbers).square().mean()
        return found


def test_samples_of_different_lengths_are_collated_by_the_users_function() -> None:
    def made(data: Any, **others: Any) -> covey.Task:
        return covey.Task(
            model=Embedded, data=data, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            step=lambda model, batch: model(batch), **others,
        )  # fmt: skip

    inside = made(DataLoader(Texts(), 3, shuffle=True, collate_fn=padded))
    beside = made(Texts(), batch_size=3, collate_fn=padded)
    results = [covey.fit(one, "allreduce", workers=2, engine="simulated", steps=4) for one in (inside, beside)]
    assert torch.equal(results[0].weights["embedding.weight"], results[1].weights["embedding.weight"])
    deal = build.shards(inside, 2, 0)
    feed = Feed(build.data_of(inside), deal, 1, inside.loading)
    assert torch.equal(feed.take(deal.indices(1, 0)), next(feed.start()))


def test_tensors_are_collated_too_where_the_loader_says_how() -> None:
    def doubled(samples: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([2 * x for x, _ in samples]), torch.stack([y for _, y in samples])

    given = task(DataLoader(WHOLE, 4, shuffle=True, collate_fn=doubled))
    x, y = next(Feed(build.data_of(given), build.shards(given, 1, 0), 0, given.loading).start())
    assert torch.equal(x, 2 * X[y])


def test_loading_processes_are_set_up_as_the_loader_says(tmp_path: Any) -> None:
    def begun(number: int) -> None:
        (tmp_path / f"begun-{number}").touch()

    given = task(DataLoader(Texts(), 3, num_workers=2, worker_init_fn=begun, collate_fn=padded))
    next(Feed(build.data_of(given), build.shards(given, 1, 0), 0, given.loading).start())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun-0", "begun-1"]


def test_a_loader_trains_like_what_it_holds() -> None:
    for strategy in ("bsp", "allreduce"):
        whole = covey.fit(task((X, Y), batch_size=4), strategy, workers=2, engine="simulated", epochs=2)
        loader = task(DataLoader(WHOLE, 4, shuffle=True))
        assert torch.equal(
            covey.fit(loader, strategy, workers=2, engine="simulated", epochs=2).weights["weight"],
            whole.weights["weight"],
        )


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(X)


class Short(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Batches(BatchSampler):
    """Batches of the user's own."""


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": DataLoader(Stream(), 4, drop_last=True)}, "data is a stream, .* omit drop_last"),
    ({"data": DataLoader(WHOLE, batch_sampler=Batches(SequentialSampler(WHOLE), 3, True))}, "batch_sampler of its"),
    ({"data": DataLoader(WHOLE, batch_size=None)}, "makes no batches .batch_size=None.*covey.join"),
    ({"data": DataLoader(WHOLE, sampler=DistributedSampler(WHOLE, 2, 0))}, "DistributedSampler.* omit it"),
    ({"data": DataLoader(WHOLE, 4), "batch_size": 8}, "its own batch_size; give it there"),
    ({"data": DataLoader(WHOLE, 4, num_workers=2), "loaders": 0}, "its own loaders; give it there"),
    ({"data": DataLoader(WHOLE, 4), "loaders": 2}, "its own loaders"),
    ({"data": DataLoader(WHOLE, 4), "sampler": range(3)}, "its own sampler"),
    ({"data": DataLoader(WHOLE, 4), "collate_fn": padded}, "its own collate_fn"),
    ({"data": DataLoader(WHOLE, 4), "drop_last": True}, "its own drop_last"),
    ({"data": (X, Y), "collate_fn": padded}, "collate_fn is for a data set"),
    ({"data": WHOLE, "collate_fn": 3}, "collate_fn must be a function"),
    ({"data": WHOLE, "sampler": iter(range(3))}, "sample numbers and their count"),
    ({"data": WHOLE, "drop_last": 1}, "drop_last must be True or False"),
    ({"data": WHOLE, "batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
]


def test_torchs_own_batch_sampler_says_how_large_batches_are() -> None:
    order = [3, 1, 4, 1, 5, 9, 2]
    found = task(DataLoader(WHOLE, batch_sampler=BatchSampler(order, 3, True)))
    assert (found.batch_size, found.drop_last) == (3, True) and labels(found, 0, 1, 2) == [[3, 1, 4], [1, 5, 9]]
    shuffled = task(DataLoader(WHOLE, batch_sampler=BatchSampler(RandomSampler(WHOLE), 4, False)))
    assert build.shards(shuffled, 3, 7) == Shards(23, 3, 4, 7)
    with pytest.raises(PlanError, match="DistributedSampler"):
        task(DataLoader(WHOLE, batch_sampler=BatchSampler(DistributedSampler(WHOLE, 2, 0), 4, False)))


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_dealt_out_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        task(**given)


@pytest.mark.parametrize(
    ("sampler", "others", "words"),
    [
        (Short(WHOLE), {}, r"len\(sampler\) is 23, but it gave 5 samples in pass 0"),
        ([1, 23], {}, "gave 1 to 23 in pass 0; data has 0 to 22"),
        ([-1, 2], {}, "gave -1 to 2 in pass 0"),
        ([1, 2, 3], {"drop_last": True, "batch_size": 4}, "drop_last leaves nothing of a pass"),
    ],
)
def test_samplers_that_give_something_else_are_refused(sampler: Any, others: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        passes(task(WHOLE, sampler=sampler, **others))


def test_a_task_can_be_made_of_another_one() -> None:
    given = task(DataLoader(WHOLE, 4, pin_memory=True, collate_fn=padded))
    again = replace(given, accumulate=2)
    assert (again.batch_size, again.collate_fn, again.loading) == (4, padded, given.loading)
    assert again.loading.others == {"pin_memory": True}

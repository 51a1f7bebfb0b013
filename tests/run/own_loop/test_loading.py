"""Each worker's share of a DataLoader: nothing twice, as many batches for all, everything else as the user made it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from covey.errors import PlanError
from covey.run.own_loop.loading import Loader, Sizes, samples_in
from covey.run.own_loop.position import Pass, Position


class Reader:
    """A worker, as far as a loader knows it."""

    def __init__(self, rank: int = 0, workers: int = 1, seed: int = 0) -> None:
        self.rank, self.workers, self.seed = rank, workers, seed
        self.epoch = self.skip = 0
        self.orders: list[str] = []
        self.sizes: list[Sizes] = []
        self.most = 1_000_000

    def _begin_pass(self) -> Pass:
        self.epoch += 1
        return Pass(Position(), 0, self.epoch - 1, self.skip)

    def _reads(self, order: int, fingerprint: str, loader: Any = None) -> None:
        self.orders.append(fingerprint)

    def _pulled(self, sizes: Sizes) -> bool:
        self.sizes.append(sizes)
        return len(self.sizes) <= self.most


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


class Stream(IterableDataset[int]):
    """Each of several processes gives its own part."""

    start = 0

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, by = (info.id, info.num_workers) if info else (0, 1)
        yield from range(self.start + first, self.start + self.count, by)


def epoch(make: Any, workers: int, epochs: int = 1, seed: int = 0) -> list[list[list[int]]]:
    """The last of several passes, by worker and batch."""
    found = []
    for rank in range(workers):
        torch.manual_seed(100 + rank)  # what a worker's own chance is must not matter
        random.seed(rank)
        np.random.seed(rank)
        loader = Loader(Reader(rank, workers, seed), make())
        for _ in range(epochs):
            batches = [batch.tolist() if isinstance(batch, Tensor) else list(batch) for batch in loader]
        found.append(batches)
    return found


def together(shares: list[list[list[int]]]) -> list[set[int]]:
    """What all workers see at each step."""
    assert len({len(share) for share in shares}) == 1, "all workers get equally many batches"
    return [set().union(*step) for step in zip(*shares, strict=True)]


SAMPLERS = {
    "in order": lambda data: {},
    "shuffled": lambda data: {"shuffle": True},
    "by a generator": lambda data: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "weighted": lambda data: {"sampler": WeightedRandomSampler(torch.arange(1.0, 41), 33, replacement=False)},
    "subset": lambda data: {"sampler": SubsetRandomSampler(range(3, 38))},
    "some": lambda data: {"sampler": RandomSampler(data, num_samples=24)},
    "numpy's": lambda data: {"sampler": Lazy(lambda: np.random.permutation(40).tolist())},
    "Python's": lambda data: {"sampler": Lazy(lambda: random.sample(range(40), 40))},
}  # fmt: skip


class Lazy:
    """A sampler as people write them."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        yield from self.draw()

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_workers_share_what_one_would_see_with_a_larger_batch(name: str, drop_last: bool) -> None:
    def make(batch_size: int) -> DataLoader[int]:
        data = Numbers(40)
        return DataLoader(data, batch_size, drop_last=drop_last, **SAMPLERS[name](data))

    for passed in (1, 2):
        alone = together(epoch(lambda: make(6), 1, passed))
        shared = together(epoch(lambda: make(3), 2, passed))
        whole = [step for step in alone if len(step) == 6]
        assert not drop_last or whole == alone, "no short batch at the end"
        assert shared[: len(whole)] == whole, "step by step the same samples"
        assert len(shared) == len(alone) - (not drop_last and len(alone[-1]) < 2)
        seen = Counter(number for share in epoch(lambda: make(3), 2, passed) for batch in share for number in batch)
        assert set(seen.values()) == {1} or name == "some", "nothing is duplicated at the end"


def test_an_epoch_is_another_order_and_so_is_another_seed() -> None:
    def make() -> DataLoader[int]:
        return DataLoader(Numbers(40), 4, shuffle=True)

    first, second, other = epoch(make, 2, 1), epoch(make, 2, 2), epoch(make, 2, 1, seed=1)
    assert first != second and first != other
    assert first == epoch(make, 2, 1)


def test_a_generators_own_seed_governs_the_order_and_is_left_alone() -> None:
    def make(seed: int) -> DataLoader[int]:
        return DataLoader(Numbers(40), 4, shuffle=True, generator=torch.Generator().manual_seed(seed))

    assert epoch(lambda: make(1), 2) != epoch(lambda: make(2), 2)
    loader = make(1)
    assert loader.generator is not None
    before = loader.generator.get_state()
    list(Loader(Reader(), loader))
    assert torch.equal(loader.generator.get_state(), before)


def test_what_the_script_draws_is_not_disturbed() -> None:
    states = [torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()]  # type: ignore[index]
    list(Loader(Reader(), DataLoader(Numbers(40), 4, shuffle=True)))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # type: ignore[index]
    assert random.getstate() == states[2]


@pytest.mark.parametrize("count", range(1, 14))
def test_a_short_end_is_dealt_out_or_left_out(count: int) -> None:
    shares = epoch(lambda: DataLoader(Numbers(count), 2), 3)
    seen = [number for share in shares for batch in share for number in batch]
    rest = count % 6
    assert sorted(seen) == list(range(count if rest >= 3 or not rest else count - rest))
    loader = Loader(Reader(1, 3), DataLoader(Numbers(count), 2))
    assert len(loader) == len(shares[1])


def test_every_worker_knows_how_many_samples_all_have() -> None:
    readers = [Reader(rank, 3) for rank in range(3)]
    shares = [list(Loader(reader, DataLoader(Numbers(11), 2, num_workers=rank))) for rank, reader in enumerate(readers)]
    for rank, reader in enumerate(readers):
        assert [sizes.mine for sizes in reader.sizes] == [len(batch) for batch in shares[rank]]
        assert [sizes.everybody for sizes in reader.sizes] == [6, 5]


def test_batches_of_ones_own_are_dealt_as_they_are() -> None:
    class Buckets:
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([0, 1, 2], [3], [4, 5], [6, 7, 8], [9])

        def __len__(self) -> int:
            return 5

    shares = epoch(lambda: DataLoader(Numbers(10), batch_sampler=Buckets()), 2)
    assert shares == [[[0, 1, 2], [4, 5]], [[3], [6, 7, 8]]]
    reader = Reader(1, 2)
    loader = Loader(reader, DataLoader(Numbers(10), batch_sampler=Buckets()))
    assert len(loader) == len(list(loader)) == 2
    assert reader.sizes == [Sizes(1, 4, (3, 1)), Sizes(3, 5, (2, 3))]


def test_a_batch_sampler_of_torchs_own_is_dealt_by_samples() -> None:
    def make() -> DataLoader[int]:
        return DataLoader(Numbers(8), batch_sampler=BatchSampler(range(8), 2, drop_last=False))

    assert epoch(make, 2) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_an_endless_sampler_is_read_as_far_as_it_is_asked() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            while True:
                yield int(torch.randint(10, ()))

    def make() -> DataLoader[int]:
        return DataLoader(Numbers(10), 2, sampler=Endless())  # type: ignore[arg-type]

    reader = Reader(0, 2)
    reader.most = 3
    assert len(list(Loader(reader, make()))) == 3, "no more than the run wants"
    firsts = [next(iter(Loader(Reader(rank, 2), make()))).tolist() for rank in range(2)]
    alone = next(iter(Loader(Reader(), DataLoader(Numbers(10), 4, sampler=Endless())))).tolist()  # type: ignore[arg-type]
    assert [firsts[0][0], firsts[1][0], firsts[0][1], firsts[1][1]] == alone


def test_one_sample_may_be_a_batch() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(torch.arange(12).view(5 - 1, 3), batch_size=None)  # type: ignore[arg-type]

    assert epoch(make, 2) == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
    reader = Reader(0, 2)
    list(Loader(reader, make()))
    assert reader.sizes == [Sizes(3, None)] * 2, "how many the others have nobody knows here"


@pytest.mark.parametrize("processes", [0, 2])
def test_a_stream_is_dealt_out_by_samples(processes: int) -> None:
    shares = epoch(lambda: DataLoader(Stream(22), 2, num_workers=processes), 2)
    steps = together(shares)
    assert sum(map(len, steps)) == (22 if not processes else 20), "a process may leave out one"
    assert len(set().union(*steps)) == sum(map(len, steps))


def test_a_stream_keeps_its_attributes_for_whoever_sets_them_in_a_process() -> None:
    def shift(number: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.start = 100

    made = DataLoader(Stream(4), 2, num_workers=1, worker_init_fn=shift)
    assert [batch.tolist() for batch in Loader(Reader(0, 2), made)] == [[100, 102]]


def test_a_stream_that_shuffles_does_so_alike_on_all_workers() -> None:
    class Shuffled(Stream):
        def __iter__(self) -> Iterator[int]:
            yield from torch.randperm(self.count).tolist()

    for passed in (1, 2):
        steps = together(epoch(lambda: DataLoader(Shuffled(12), 3), 2, passed))
        assert set().union(*steps) == set(range(12))
    assert epoch(lambda: DataLoader(Shuffled(12), 3), 2, 1) != epoch(lambda: DataLoader(Shuffled(12), 3), 2, 2)


def noisy(batch: list[int]) -> list[float]:
    return torch.rand(len(batch)).tolist()


def test_processes_that_load_have_seeds_of_their_own_on_each_worker() -> None:
    def noise(rank: int) -> list[list[float]]:
        made = DataLoader(
            Numbers(8), 2, num_workers=1, collate_fn=noisy, persistent_workers=True,
            generator=torch.Generator().manual_seed(3),
        )  # fmt: skip
        return list(Loader(Reader(rank, 2), made))

    assert noise(0) != noise(1) and noise(1) == noise(1)


def test_everything_else_is_as_the_user_made_it() -> None:
    class Own(DataLoader[int]):
        pass

    made = Own(Numbers(8), 2, collate_fn=tuple, pin_memory=False, timeout=0)
    loader = Loader(Reader(1, 2), made)
    assert list(loader) == [(1, 3), (5, 7)]
    assert loader.dataset is made.dataset and loader.batch_size == 2 and type(loader.mine) is Own
    assert list(made) == [(0, 1), (2, 3), (4, 5), (6, 7)], "the loader itself is not changed"


def test_processes_that_persist_serve_the_next_epoch() -> None:
    loader = Loader(Reader(0, 2), DataLoader(Numbers(8), 2, num_workers=1, persistent_workers=True, shuffle=True))
    first, second = [batch.tolist() for batch in loader], [batch.tolist() for batch in loader]
    assert first != second and len(first) == len(second) == 2


def test_what_divides_the_data_already_is_refused() -> None:
    data = Numbers(8)
    divided = DataLoader(data, 2, sampler=DistributedSampler(data, 2, 0))
    with pytest.raises(PlanError, match="DistributedSampler.*omit it"):
        Loader(Reader(0, 2), divided)
    Loader(Reader(), divided)


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(PlanError, match=r"takes a torch\.utils\.data\.DataLoader, not a list.*samples=n"):
        Loader(Reader(), [torch.ones(3)])  # type: ignore[arg-type]


def test_all_tell_the_same_fingerprint_unless_they_draw_differently() -> None:
    def told(rank: int, seed: int) -> str:
        reader = Reader(rank, 2)
        made = DataLoader(Numbers(8), 2, shuffle=True, generator=torch.Generator().manual_seed(seed))
        list(Loader(reader, made))
        return reader.orders[0]

    assert told(0, 1) == told(1, 1) != told(1, 2)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(5, 2), 5), ((torch.ones(4), torch.ones(3)), 4), ({"x": torch.ones(6), "y": 3}, 6),
        ([["a", "b"], torch.ones(2)], 2), (torch.tensor(1.0), None), ("text", None), (object(), None),
    ],
)  # fmt: skip
def test_how_many_samples_a_batch_shows(batch: Any, samples: int | None) -> None:
    assert samples_in(batch) == samples


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["shuffled", "stream", "processes"])
def test_a_pass_that_was_under_way_goes_on_where_it_was(workers: int, kind: str) -> None:
    if kind == "stream":
        loader = DataLoader(Stream(40), batch_size=3)
    else:
        loader = DataLoader(Numbers(40), batch_size=3, shuffle=True, num_workers=2 if kind == "processes" else 0)
    for rank in range(workers):
        whole, rest = Reader(rank, workers), Reader(rank, workers)
        rest.skip = 2
        expected = [batch.tolist() for batch in Loader(whole, loader)]
        assert [batch.tolist() for batch in Loader(rest, loader)] == expected[2:]
        assert rest.sizes == whole.sizes[2:]

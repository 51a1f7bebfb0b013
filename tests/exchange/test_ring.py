"""The ring all-reduce: a sum, the same bits everywhere, no more bytes than its formula, and only neighbours speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.exchange.collectives import ring_slices as slices
from covey.exchange.collectives.by_name import PATTERNS, of_bucket
from covey.exchange.collectives.ring_slices import ring_sent, ring_slices
from covey.exchange.collectives.sums import Chunk, ring
from covey.model.replica import Replica
from covey.program import Node
from covey.simulate import Seconds
from covey.strategy import workers
from covey.vector import Vector, chunk
from tests.worlds import CLUSTER, INSTANT, Program, Recorder, paced, perform

LENGTHS = st.one_of(st.integers(0, 9), st.integers(10, 200))


def numbers(ranks: int, *lengths: int, dtypes: Sequence[torch.dtype] = (torch.float32,), seed: int = 0) -> list[Vector]:
    """For every rank a vector with parts of these lengths."""
    chance = torch.Generator().manual_seed(seed)
    kinds = [dtypes[index % len(dtypes)] for index in range(len(lengths))]
    return [
        Vector(torch.randn(length, generator=chance).to(kind) for length, kind in zip(lengths, kinds, strict=True))
        for _ in range(ranks)
    ]


def reduce(vectors: Sequence[Vector], slow: Sequence[float] = (), times: int = 1) -> Recorder:
    """Sum the vectors in place, one on each rank; rank r begins after slow[r] batches."""
    group = workers(len(vectors))

    def program(vector: Vector) -> Program:
        async def run(node: Node, replica: Replica) -> None:
            await node.compute(lambda: None)
            for _ in range(times):
                await ring(node, vector, group)

        return run

    return perform(*(program(vector) for vector in vectors), cluster=paced(slow))


def expected(parts: Sequence[Tensor]) -> Tensor:
    """The sum with the ring's own order of additions: slice c is added from rank c on."""
    total, ranks = torch.empty_like(parts[0]), len(parts)
    for index in range(ranks):
        start, stop = chunk(len(total), ranks, index)
        piece = parts[index][start:stop].clone()
        for hop in range(1, ranks):
            piece = parts[(index + hop) % ranks][start:stop] + piece
        total[start:stop] = piece
    return total


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 8), length=LENGTHS, data=st.data())
def test_sum_for_any_number_of_ranks_and_any_length(ranks: int, length: int, data: st.DataObject) -> None:
    slow = data.draw(st.lists(st.floats(0.1, 5.0), min_size=ranks, max_size=ranks))
    vectors = numbers(ranks, length)
    inputs = [vector.parts[0].clone() for vector in vectors]
    log = reduce(vectors, slow)
    for vector in vectors:
        assert torch.equal(vector.parts[0], expected(inputs)), "not the same bits on every rank"
    assert torch.allclose(expected(inputs).double(), torch.stack(inputs).double().sum(0), atol=1e-4)
    assert_formula(log, ranks, length, width=4)


def assert_formula(log: Recorder, ranks: int, length: int, width: int) -> None:
    """2 (n-1) messages from every rank to its next, 2 D - |chunk(r+1)| - |chunk(r+2)| numbers in all."""
    for rank, who in enumerate(workers(ranks)):
        mine = [sent for sent in log.sends if sent.sender == who]
        assert len(mine) == 2 * (ranks - 1)
        assert {sent.to for sent in mine} <= {workers(ranks)[(rank + 1) % ranks]}
        spared = sum(size(length, ranks, rank + hop) for hop in (1, 2))
        assert log.bytes_from(who) == ((2 * length - spared) * width if ranks > 1 else 0)


def size(length: int, pieces: int, index: int) -> int:
    start, stop = chunk(length, pieces, index % pieces)
    return stop - start


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_mixed_parts(ranks: int) -> None:
    """Parts of several dtypes, one shorter than the ring and one empty."""
    dtypes = (torch.float64, torch.bfloat16, torch.float32)
    vectors = numbers(ranks, 11, 2, 0, dtypes=dtypes)
    inputs = [vector.clone() for vector in vectors]
    reduce(vectors)
    for part in range(3):
        total = expected([vector.parts[part] for vector in inputs])
        assert all(torch.equal(vector.parts[part], total) for vector in vectors)


def test_views_that_are_not_contiguous() -> None:
    bases = [torch.arange(20, dtype=torch.float64) * (rank + 1) for rank in range(3)]
    vectors = [Vector([base[::2]]) for base in bases]
    reduce(vectors)
    for base in bases:
        assert torch.equal(base[::2], torch.arange(0, 20, 2, dtype=torch.float64) * 6)
    assert torch.equal(bases[2][1::2], torch.arange(1, 20, 2, dtype=torch.float64) * 3), "what lies between was touched"


def test_several_sums_one_after_the_other_do_not_mix() -> None:
    """A fast rank may be two rounds ahead of a slow one that holds its first messages still."""
    vectors = numbers(4, 10)
    inputs = [vector.parts[0].clone() for vector in vectors]
    reduce(vectors, slow=[1, 50, 1, 7], times=3)
    once = expected(inputs)
    thrice = expected([expected([once] * 4)] * 4)
    assert all(torch.equal(vector.parts[0], thrice) for vector in vectors)


def test_the_schedule_of_three() -> None:
    """The worked example of Patarasu & Yuan's ring: which slice goes where in which round."""
    vectors = [Vector([torch.tensor([1.0, 10.0, 100.0]) * (rank + 1)]) for rank in range(3)]
    log = reduce(vectors)
    rounds: dict[int, list[str]] = {}
    for sent in log.sends:
        assert isinstance(sent.message, Chunk)
        rounds.setdefault(sent.message.step, []).append(f"{sent.sender.rank}->{sent.to.rank}:{column(sent.message)}")
    assert [" ".join(sorted(moves)) for _, moves in sorted(rounds.items())] == [
        "0->1:c0 1->2:c1 2->0:c2",
        "0->1:c2 1->2:c0 2->0:c1",
        "0->1:c1 1->2:c2 2->0:c0",
        "0->1:c0 1->2:c1 2->0:c2",
    ]
    assert all(vector.parts[0].tolist() == [6.0, 60.0, 600.0] for vector in vectors)


def column(message: Chunk) -> str:
    """The powers of ten say which slice it is, however much has been added to it."""
    return f"c{len(str(int(message.part.parts[0].item()))) - 1}"


def test_time_of_a_ring() -> None:
    """2 (n-1) rounds of |w| / n bytes: 4 ranks, 4 kB, a kB a millisecond, after a batch of 10 ms."""
    vectors = numbers(4, 1000)
    ends = []

    def program(vector: Vector) -> Program:
        async def run(node: Node, replica: Replica) -> None:
            await node.compute(lambda: None)
            await ring(node, vector, workers(4))
            ends.append(await node.now())

        return run

    perform(*(program(vector) for vector in vectors), cluster=replace(CLUSTER, compute=INSTANT.compute))
    assert ends == pytest.approx([0.010 + 6 * 0.001] * 4)


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_grains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of at most 5 float32 numbers, so that a few dozen of them make several rows."""
    monkeypatch.setattr(slices, "GRAIN", 20)


@pytest.mark.usefixtures("small_grains")
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_long_vector_goes_in_rows_and_sends_no_byte_more(ranks: int) -> None:
    vectors = numbers(ranks, 211, 40, dtypes=(torch.float32, torch.float64))
    inputs = [vector.clone() for vector in vectors]
    log = reduce(vectors, slow=[1, 4, 2, 1, 3][:ranks])
    for part in range(2):
        total = torch.stack([vector.parts[part].double() for vector in inputs]).sum(0)
        assert all(torch.equal(vector.parts[part], vectors[0].parts[part]) for vector in vectors)
        assert torch.allclose(vectors[0].parts[part].double(), total, atol=1e-4)
    sent = ring_sent(ring_slices(inputs[0], ranks))
    assert [log.bytes_from(who) for who in workers(ranks)] == sent
    rows_of = max(-(-211 * 4 // (20 * ranks)), -(-40 * 8 // (20 * ranks)))
    assert len(log.sends) == ranks * 2 * (ranks - 1) * -(-min(slices.MOST, rows_of) // slices.BUNDLE)


@pytest.mark.usefixtures("small_grains")
@pytest.mark.parametrize("pattern", ["ring", "hierarchical"])
def test_a_bucket_is_added_as_it_would_be_in_the_whole(pattern: str) -> None:
    """Whatever the borders of the buckets; slices of their own would add in another order of ranks."""
    whole, apart, alone = (numbers(6, 100, seed=9) for _ in range(3))
    group, borders = workers(6), [0, 1, 17, 18, 60, 100]

    def program(rank: int) -> Program:
        async def run(node: Node, replica: Replica) -> None:
            await PATTERNS[pattern](node, whole[rank], group)
            for start, stop in pairwise(borders):
                bucket = Vector([apart[rank].parts[0][start:stop]])
                await of_bucket(pattern, PATTERNS[pattern], ((start, 100),))(node, bucket, group)
                await PATTERNS[pattern](node, Vector([alone[rank].parts[0][start:stop]]), group)

        return run

    perform(*(program(rank) for rank in range(6)))
    for rank in range(6):
        assert torch.equal(apart[rank].parts[0], whole[0].parts[0])
    assert not torch.equal(alone[0].parts[0], whole[0].parts[0]), "the test would not notice"


@pytest.mark.usefixtures("small_grains")
def test_rows_hide_the_latency_behind_one_another() -> None:
    """One slice waits for the other's arrival only where there is one row; 4 ranks, 2 ms from rank to rank."""
    slow = replace(CLUSTER, link=replace(CLUSTER.link, latency=Seconds(0.002)))
    group, ends = workers(4), []

    async def run(node: Node, replica: Replica) -> None:
        await ring(node, Vector([torch.zeros(4000)]), group)
        ends.append(await node.now())

    perform(*[run] * 4, cluster=slow)
    bytes_alone, one_row = 1.5 * 0.016, 1.5 * 0.016 + 6 * 0.002
    assert bytes_alone < max(ends) < bytes_alone + 0.5 * (one_row - bytes_alone)

"""The ring all-reduce: a sum, the same bits everywhere, no more bytes than its formula, and only neighbours speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.exchange.collectives import Chunk, ring
from covey.program import Node
from covey.replica import Replica
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

"""The other patterns of a sum: who speaks to whom in which round, for how long, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.exchange.collectives import PATTERNS, Chunk, Group
from covey.program import Node
from covey.replica import Replica
from covey.strategy import workers
from covey.vector import Vector
from tests.worlds import Program, Recorder, paced, perform

OTHERS = [name for name in PATTERNS if name != "ring"]


def reduce(name: str, vectors: Sequence[Vector], slow: Sequence[float] = (), root: int = 0) -> tuple[Recorder, float]:
    """Sum the vectors in place, one on each rank, and say how long that took after all had begun."""
    ranks = workers(len(vectors))
    group: Group = (*ranks[root:], *ranks[:root])
    ends: list[float] = []

    def program(vector: Vector) -> Program:
        async def run(node: Node, replica: Replica) -> None:
            await node.compute(lambda: None)
            await PATTERNS[name](node, vector, group)
            ends.append(await node.now())

        return run

    return perform(*(program(vector) for vector in vectors), cluster=paced(slow)), max(ends) - 0.010


def kilobytes(ranks: int) -> list[Vector]:
    return [Vector([torch.full((250,), float(rank))]) for rank in range(ranks)]


def rounds(log: Recorder) -> list[str]:
    """The moves of every round, the way back of a tree (its steps are negative) last; `a<->b` where both send."""
    found: dict[int, set[tuple[int, int]]] = {}
    for sent in log.sends:
        assert isinstance(sent.message, Chunk)
        found.setdefault(sent.message.step, set()).add((sent.sender.rank, sent.to.rank))
    return [
        " ".join(sorted(_move(a, b, moves) for a, b in moves if a < b or (b, a) not in moves))
        for _, moves in sorted(found.items(), key=lambda item: (item[0] < 0, item[0]))
    ]


def _move(a: int, b: int, moves: set[tuple[int, int]]) -> str:
    return f"{a}<->{b}" if (b, a) in moves else f"{a}->{b}"


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(OTHERS), ranks=st.integers(1, 9), length=st.integers(0, 40), root=st.integers(0, 8),
    data=st.data(),
)  # fmt: skip
def test_sum_for_any_number_of_ranks_and_any_length(
    name: str, ranks: int, length: int, root: int, data: st.DataObject
) -> None:
    """Also with fewer numbers than ranks, and none; whoever is slow."""
    slow = data.draw(st.lists(st.floats(0.1, 5.0), min_size=ranks, max_size=ranks))
    chance = torch.Generator().manual_seed(length)
    vectors = [Vector([torch.randn(length, generator=chance)]) for _ in range(ranks)]
    total = torch.stack([vector.parts[0].double() for vector in vectors]).sum(0)
    reduce(name, vectors, slow, root % ranks)
    for vector in vectors:
        assert torch.equal(vector.parts[0], vectors[0].parts[0]), "not the same bits on every rank"
        assert torch.allclose(vector.parts[0].double(), total, atol=1e-4)


def test_the_hub_of_a_star_sends_whole_vectors_to_all() -> None:
    log, took = reduce("star", kilobytes(5))
    assert rounds(log) == ["1->0 2->0 3->0 4->0", "0->1 0->2 0->3 0->4"]
    assert log.bytes_from(workers(1)[0]) == 4 * 1000
    assert took == pytest.approx(2 * 4 * 0.001), "one after the other, in and out"


@pytest.mark.parametrize(
    ("ranks", "root", "schedule"),
    [
        (6, 2, ["1->0 3->2 5->4", "4->2", "0->2", "2->0", "2->4", "0->1 2->3 4->5"]),
        (7, 0, ["1->0 3->2 5->4", "2->0 6->4", "4->0", "0->4", "0->2 4->6", "0->1 2->3 4->5"]),
        (3, 0, ["1->0", "2->0", "0->2", "0->1"]),
    ],
)
def test_the_binomial_tree(ranks: int, root: int, schedule: list[str]) -> None:
    log, took = reduce("binomial", kilobytes(ranks), root=root)
    assert rounds(log) == schedule
    assert took == pytest.approx(len(schedule) * 0.001)
    assert sum(sent.size for sent in log.sends) == 2 * (ranks - 1) * 1000


@pytest.mark.parametrize(
    ("ranks", "schedule"),
    [
        (8, ["0<->1 2<->3 4<->5 6<->7", "0<->2 1<->3 4<->6 5<->7", "0<->4 1<->5 2<->6 3<->7"]),
        (6, ["0->1 2->3", "1<->3 4<->5", "1<->4 3<->5", "1->0 3->2"]),
        (5, ["0->1", "1<->2 3<->4", "1<->3 2<->4", "1->0"]),
    ],
)
def test_recursive_doubling(ranks: int, schedule: list[str]) -> None:
    """Whole vectors; ranks beyond a power of two are passive between the first round and the last."""
    log, took = reduce("doubling", kilobytes(ranks))
    assert rounds(log) == schedule
    assert took == pytest.approx(len(schedule) * 0.001)


def test_scatter_and_gather_in_two_hops() -> None:
    """2 (n-1)/n of a vector from every rank, and as long as that takes."""
    log, took = reduce("scatter", kilobytes(5))
    everyone = [f"{a}<->{b}" for a in range(5) for b in range(a + 1, 5)]
    assert rounds(log) == [" ".join(everyone)] * 2
    assert [log.bytes_from(who) for who in workers(5)] == [2 * 4 * 200] * 5
    assert took == pytest.approx(2 * 4 / 5 * 0.001)

"""Butterflies of any radix and Bruck's gathering; and what all patterns have in common: any dtype, the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from covey.exchange.collectives.butterfly import gather_bruck, radices
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.sums import Chunk
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import workers
from covey.vector import Vector
from tests.exchange.summing import kilobytes, reduce, rounds
from tests.worlds import perform


@pytest.mark.parametrize(
    ("ranks", "schedule"),
    [
        (8, ["0<->1 2<->3 4<->5 6<->7", "0<->2 1<->3 4<->6 5<->7", "0<->4 1<->5 2<->6 3<->7"]),
        (6, ["0<->1 2<->3 4<->5", "0<->2 0<->4 1<->3 1<->5 2<->4 3<->5"]),
        (5, [" ".join(f"{a}<->{b}" for a in range(5) for b in range(a + 1, 5))]),
    ],
)
def test_a_butterfly_has_a_stage_for_each_prime_factor_and_nobody_is_passive(ranks: int, schedule: list[str]) -> None:
    log, took = reduce("butterfly", kilobytes(ranks))
    assert rounds(log) == schedule
    others = sum(radix - 1 for radix in radices(ranks))
    assert [log.bytes_from(who) for who in workers(ranks)] == [others * 1000] * ranks
    assert took == pytest.approx(others * 0.001)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 8])
def test_bruck_gathers_blocks_of_any_length_in_the_fewest_rounds(ranks: int) -> None:
    """Round k: rank r sends its first min(2^k, n - 2^k) blocks, r, r+1 and so on, to rank r - 2^k."""
    group, got = workers(ranks), {}

    async def run(node: Node, replica: Replica) -> None:
        blocks = [Vector([torch.zeros(place + 1)]) for place in range(ranks)]
        blocks[node.rank].parts[0].fill_(node.rank)
        await gather_bruck(node, blocks, group)
        got[node.rank] = [block.parts[0].tolist() for block in blocks]

    log = perform(*[run] * ranks)
    assert all(blocks == [[float(place)] * (place + 1) for place in range(ranks)] for blocks in got.values())
    moves: dict[int, set[tuple[int, int, tuple[float, ...]]]] = {}
    for sent in log.sends:
        assert isinstance(sent.message, Chunk)
        blocks = tuple(part[0].item() for part in sent.message.part.parts)
        moves.setdefault(sent.message.step, set()).add((sent.sender.rank, sent.to.rank, blocks))
    hops = [1 << k for k in range((ranks - 1).bit_length())]
    assert moves == {
        hop: {
            (r, (r - hop) % ranks, tuple(float((r + b) % ranks) for b in range(min(hop, ranks - hop))))
            for r in range(ranks)
        }
        for hop in hops
    }


def test_the_halves_of_five_slice_by_slice() -> None:
    """Taxonomy C.5: which of four slices goes from whom to whom; 0 hands all of it to 1 before, and gets all back."""
    log, _ = reduce("halving", [Vector([torch.tensor([1.0, 1e2, 1e4, 1e6]) * (rank + 1)]) for rank in range(5)])
    moves: dict[int, list[str]] = {}
    for sent in log.sends:
        assert isinstance(sent.message, Chunk)
        places = [(len(str(int(number))) - 1) // 2 for number in sent.message.part.parts[0].tolist()]
        moves.setdefault(sent.message.step, []).append(
            f"{sent.sender.rank}->{sent.to.rank}:[{places[0]},{places[-1] + 1})"
        )
    assert [" ".join(sorted(moves[step])) for step in sorted(moves)] == [
        "0->1:[0,4)",
        "1->3:[2,4) 2->4:[2,4) 3->1:[0,2) 4->2:[0,2)",
        "1->2:[1,2) 2->1:[0,1) 3->4:[3,4) 4->3:[2,3)",
        "1->2:[0,1) 2->1:[1,2) 3->4:[2,3) 4->3:[3,4)",
        "1->3:[0,2) 2->4:[0,2) 3->1:[2,4) 4->2:[2,4)",
        "1->0:[0,4)",
    ]


@pytest.mark.parametrize("name", PATTERNS)
def test_any_dtype(name: str) -> None:
    dtypes = [torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
    vectors = [Vector(torch.arange(7).to(dtype) + rank for dtype in dtypes) for rank in range(5)]
    reduce(name, vectors)
    for vector in vectors:
        for part, dtype in zip(vector.parts, dtypes, strict=True):
            assert part.dtype == dtype and torch.equal(part, (torch.arange(7) * 5 + 10).to(dtype))


@pytest.mark.parametrize("name", PATTERNS)
def test_the_same_bits_whoever_is_late(name: str) -> None:
    def summed(slow: Sequence[float]) -> torch.Tensor:
        chance = torch.Generator().manual_seed(5)
        vectors = [Vector([torch.randn(50, generator=chance)]) for _ in range(6)]
        reduce(name, vectors, slow)
        return vectors[3].parts[0]

    assert torch.equal(summed([1] * 6), summed([3, 1, 7, 2, 5, 1.5]))

"""Means of vectors that travel compressed: gathered around a ring, or as sums of what travels."""

from __future__ import annotations

import pytest
import torch

from covey.exchange.codec import Codec
from covey.exchange.codecs.bits import Fp16, TwoBit
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.compressed import Means, Wire, beside, gather, scaled
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import workers
from covey.vector import Vector
from tests.exchange.plain_codecs import Exact, Few
from tests.worlds import Recorder, perform, vector


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_everybody_gathers_wires_of_any_length_in_the_order_of_ranks(size: int) -> None:
    found: dict[int, list[Vector]] = {}

    async def program(node: Node, replica: Replica) -> None:
        mine = Vector([torch.full((node.rank,), node.rank, dtype=torch.int16), torch.tensor([node.rank])])
        found[node.rank] = await gather(node, mine, workers(size))

    log = perform(*[program] * size)
    for wires in found.values():
        assert [wire.parts[0].tolist() for wire in wires] == [[rank] * rank for rank in range(size)]
        assert [int(wire.parts[1]) for wire in wires] == list(range(size))
    lengths = [2 * rank + 8 for rank in range(size)]
    assert sum(sent.size for sent in log.kinds(Wire)) == (size - 1) * sum(lengths), "each travels n - 1 hops"


def means(codec: Codec, size: int, pattern: str, *, count: int = 11, times: int = 1) -> tuple[list[Vector], Recorder]:
    """What every rank finds to be the mean of vectors of rank + 1, rank + 2…, the last of several times."""
    found: dict[int, Vector] = {}

    async def program(node: Node, replica: Replica) -> None:
        mine = vector(*(node.rank + 1.0 + place for place in range(count)))
        averaging = Means(node, codec.carrying().made(Form.plain(mine), node.rank))
        for _ in range(times):
            found[node.rank] = await averaging.mean(mine, workers(size), PATTERNS[pattern])

    log = perform(*[program] * size)
    return [found[rank] for rank in range(size)], log


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_of_wires_work_in_every_pattern(pattern: str, size: int) -> None:
    found, log = means(Exact(adds=True).codec(), size, pattern)
    middle = vector(*((size + 1) / 2 + place for place in range(11)))
    assert all(torch.allclose(mine.parts[0], middle.parts[0]) for mine in found)
    assert all(torch.equal(mine.parts[0], found[0].parts[0]) for mine in found)
    assert not log.kinds(Wire)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_patterns_sum_whole_and_narrow_numbers(pattern: str, dtype: torch.dtype) -> None:
    found: list[Vector] = []

    async def program(node: Node, replica: Replica) -> None:
        mine = Vector([torch.arange(-5, 6).to(dtype), torch.tensor([node.rank], dtype=torch.int32)])
        await node.sum(mine, workers(3), PATTERNS[pattern])
        found.append(mine)

    perform(*[program] * 3)
    for mine in found:
        assert mine.parts[0].dtype == dtype and mine.parts[0].tolist() == [3 * n for n in range(-5, 6)]
        assert mine.parts[1].tolist() == [3]


def test_gathered_wires_are_decoded_in_one_order_and_what_they_drop_comes_later() -> None:
    once, log = means(Few(density=0.2).codec(), 4, "ring")
    assert all(torch.equal(mine.parts[0], once[0].parts[0]) for mine in once)
    assert int(once[0].parts[0].count_nonzero()) == 2, "of eleven numbers everybody sends the same two"
    assert sum(sent.size for sent in log.kinds(Wire)) == 4 * 3 * 2 * (4 + 8)
    later, _ = means(Few(density=0.2).codec(), 4, "ring", times=2)
    assert later[0].parts[0][:7].count_nonzero() == 0 and later[0].parts[0][7:9].gt(15).all(), "twice as much, once"


def test_statistics_beside_parameters_travel_as_they_are() -> None:
    form = Form.plain(vector(1.0, 2.0, 3.0, 4.0))
    coder = beside(Few(density=0.25).codec().made(form, 0), 1)
    model = vector(1.0, -5.0, 3.0, 4.0).join(vector(0.1, 0.2))
    wire, _ = coder.encode(model, coder.memory)
    parameters, statistics = coder.decode(wire).parts
    assert parameters.tolist() == [0, -5, 0, 0] and statistics.tolist() == [0.1, 0.2]


def test_a_sum_leaves_what_it_is_given_as_it_is() -> None:
    coder = beside(Fp16().codec().made(Form.plain(vector(1.0, 2.0)), 0), 1)
    model = vector(1.0, 2.0).join(vector(0.5))

    async def add(wire: Vector) -> None:
        wire.mul_(2)  # somebody else has the same

    assert coder.total is not None
    with pytest.raises(StopIteration) as ended:
        coder.total(model, coder.memory, add).send(None)  # type: ignore[attr-defined]
    assert [part.tolist() for part in ended.value.value[0].parts] == [[2.0, 4.0], [1.0]]
    assert [part.tolist() for part in model.parts] == [[1.0, 2.0], [0.5]]


def test_a_coder_for_smaller_vectors_makes_of_them_what_it_makes_of_usual_ones() -> None:
    codec = TwoBit(threshold=0.5).codec()
    coder = scaled(codec, codec.carrying().made(Form.plain(vector(0.0, 0.0, 0.0)), 0), 0.01)
    wire, memory = coder.encode(vector(0.006, -0.006, 0.001), coder.memory)
    assert coder.decode(wire).parts[0].tolist() == pytest.approx([0.005, -0.005, 0.0])
    wire, _ = coder.encode(vector(0.0, 0.0, 0.0045), memory)
    assert coder.decode(wire).parts[0].tolist() == pytest.approx([0.0, 0.0, 0.005]), "what waited is of the same size"

"""A few flat tensors that behave as one vector."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import WireError
from covey.model.differentiation import WorkingCopy
from covey.model.flat import Flat
from covey.vector import STRETCH, Vector, chunk, chunks, fingerprint, mean, mean_


def mixed() -> Vector:
    return Vector([torch.arange(4, dtype=torch.float32), torch.tensor([1.0, -1.0], dtype=torch.float64)])


def test_size_counts_every_part_in_its_own_width() -> None:
    assert mixed().numel == 6
    assert mixed().nbytes == 4 * 4 + 2 * 8
    assert Vector(()).numel == Vector(()).nbytes == 0
    assert repr(mixed()) == "Vector(4 x float32, 2 x float64)"


def test_arithmetic_in_place_returns_itself() -> None:
    one, other = mixed(), mixed()
    assert one.add_(other, alpha=2) is one
    assert one.parts[0].tolist() == [0, 3, 6, 9] and one.parts[1].tolist() == [3, -3]
    assert one.mul_(0.5) is one
    assert one.parts[1].tolist() == [1.5, -1.5]
    assert one.copy_(other) is one and one.parts[0].tolist() == [0, 1, 2, 3]
    assert one.zero_() is one and one.norm() == 0
    assert other.parts[0].tolist() == [0, 1, 2, 3]


def test_arithmetic_that_makes_a_new_one() -> None:
    one = mixed()
    difference = one - one * 3
    assert difference.parts[0].tolist() == [0, -2, -4, -6]
    assert one.parts[0].tolist() == [0, 1, 2, 3]


def test_lerp_goes_part_of_the_way() -> None:
    one = Vector([torch.zeros(2), torch.zeros(1).bfloat16()])
    other = Vector([torch.tensor([4.0, 8.0]), torch.ones(1).bfloat16()])
    one.lerp_(other, 0.25)
    assert one.parts[0].tolist() == [1, 2] and one.parts[1].item() == 0.25


def test_norm_is_over_all_parts() -> None:
    assert Vector([torch.tensor([3.0]), torch.tensor([4.0]).double()]).norm() == 5
    assert math.isclose(mixed().norm(), math.sqrt(0 + 1 + 4 + 9 + 1 + 1))


def test_cut_and_join_are_views() -> None:
    one = mixed()
    one.cut(((1, 3), (0, 1))).mul_(10)
    assert one.parts[0].tolist() == [0, 10, 20, 3] and one.parts[1].tolist() == [10, -1]
    one.join(Vector([torch.ones(1)])).zero_()
    assert one.norm() == 0


def test_a_clone_is_not() -> None:
    one = mixed()
    one.clone().zero_()
    assert one.norm() > 0


def test_vectors_of_other_parts_are_not_mixed() -> None:
    assert mixed().like(mixed()) and not mixed().like(Vector([torch.arange(4.0)]))
    with pytest.raises(ValueError, match="zip"):
        mixed().add_(Vector([torch.arange(4.0)]))
    with pytest.raises(AssertionError, match="a piece of another vector"):
        mixed().cut(((0, 1),))


@pytest.mark.parametrize("numbers", [1, 3])
def test_what_came_over_a_wire_is_stretched_neither_to_another_nor_by_one(numbers: int) -> None:
    came, mine = Vector([torch.ones(numbers)], "worker 1"), Vector([torch.ones(4 - numbers)])
    for one, other in ((came, mine), (mine, came)):
        with pytest.raises(WireError, match=f"worker 1 sent Vector.{numbers} x float32., which does not fit"):
            one.add_(other)


@given(length=st.integers(0, 200), pieces=st.integers(1, 50))
def test_chunks_cover_everything_once_and_evenly(length: int, pieces: int) -> None:
    ends = [chunk(length, pieces, index) for index in range(pieces)]
    assert ends[0][0] == 0 and ends[-1][1] == length
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    sizes = [stop - start for start, stop in ends]
    assert max(sizes) - min(sizes) <= 1


def test_chunks_cut_every_part() -> None:
    assert chunks(mixed(), 3) == [((0, 1), (0, 0)), ((1, 2), (0, 1)), ((2, 4), (1, 2))]


@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_mean_is_weighted(weights: list[float]) -> None:
    vectors = [Vector([torch.full((2,), float(index), dtype=torch.float64)]) for index in range(len(weights))]
    into = Vector([torch.full((2,), math.nan, dtype=torch.float64)]).zero_()
    mean_(into, vectors, weights)
    expected = sum(index * weight for index, weight in enumerate(weights)) / sum(weights)
    assert torch.allclose(into.parts[0], torch.full((2,), expected, dtype=torch.float64), atol=1e-12)


def test_a_mean_is_made_on_the_device_that_is_named() -> None:
    found = mean([Vector([torch.ones(3)])] * 2, [1.0, 1.0], torch.device("meta"))
    assert [part.device.type for part in found.parts] == ["meta"]


def test_mean_forgets_what_was_there() -> None:
    into = Vector([torch.full((2,), math.nan)])
    mean_(into, [Vector([torch.ones(2)])], [3])
    assert into.parts[0].tolist() == [1, 1]


@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_mean_may_take_the_place_of_one_of_its_vectors(own: int) -> None:
    """To the bit what it is elsewhere, over more than one stretch."""
    numbers = torch.Generator().manual_seed(own)
    vectors = [Vector([torch.randn(STRETCH + 77, generator=numbers), torch.randn(3).double()]) for _ in range(3)]
    weights = [7.0, 1.0, 5.0]
    apart = mean_(vectors[0].map(torch.empty_like), vectors, weights)
    naive = vectors[0] * (7 / 13)
    naive.add_(vectors[1], alpha=1 / 13).add_(vectors[2], alpha=5 / 13)
    mean_(vectors[own], vectors, weights)
    for mine, elsewhere, expected in zip(vectors[own].parts, apart.parts, naive.parts, strict=True):
        assert torch.equal(mine, elsewhere)
        assert torch.equal(mine, expected)


def test_a_vector_is_shortened_to_a_norm_and_never_made_longer() -> None:
    one = Vector([torch.tensor([3.0, 0.0]), torch.tensor([4.0], dtype=torch.float64)])
    assert one.shorten_(10.0).norm() == 5.0
    assert one.shorten_(2.5).norm() == pytest.approx(2.5, abs=1e-5)
    assert one.shorten_(1.0, norm=4.0).norm() == pytest.approx(0.625, abs=1e-5), (
        "of a longer one that this is a part of"
    )
    assert one.shorten_(1.0, norm=math.nan).parts[0].isnan().all(), "as torch does it"


def test_a_fingerprint_knows_the_order_of_numbers() -> None:
    one, other = (Vector([torch.tensor(numbers)]) for numbers in ([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]))
    assert fingerprint(one) == fingerprint(one.clone()) != fingerprint(other)
    halves = [Vector([torch.ones(4, dtype=dtype)]) for dtype in (torch.float16, torch.bfloat16)]
    assert fingerprint(halves[0]) != fingerprint(halves[1])
    whole, cut = Vector([torch.zeros(4)]), Vector([torch.zeros(1), torch.zeros(3)])
    whole_numbers = Vector([torch.zeros(4, dtype=torch.int32)])
    assert len({fingerprint(one) for one in (whole, cut, whole_numbers)}) == 3, "of the same bits"


def test_a_step_that_raises_leaves_the_module_on_its_working_copy() -> None:
    module = torch.nn.Linear(2, 2)
    working = WorkingCopy(layout := Flat(module))
    working.make()
    place = module.weight.data_ptr()
    with working.aside():
        assert module.weight.data_ptr() == layout.params.parts[0].data_ptr() != place
    with pytest.raises(ZeroDivisionError), working.aside():
        raise ZeroDivisionError
    assert module.weight.data_ptr() == place


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_quick_norm_is_the_norm_within_single_precision(dtype: torch.dtype) -> None:
    parts = [torch.full((100_000,), 3.0, dtype=dtype), torch.full((70_000,), -2.0, dtype=dtype)]
    assert Vector(parts).quick_norm() == pytest.approx(Vector(parts).norm(), rel=1e-5)
    assert Vector([]).quick_norm() == 0

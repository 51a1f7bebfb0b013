"""Filters and keys on their own."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import WireError
from covey.exchange import filters
from covey.exchange.filters import KeyCache, gather, scatter, sign
from covey.vector import Vector
from tests.worlds import vector


def test_kkt_looks_at_the_weight_and_at_the_gradient() -> None:
    grad, params = vector(0.1, -0.1, 0.3, -0.3, 0.2), vector(0.0, 1.0, 0.0, 0.0, 0.0)
    masks = filters.kkt(l1=0.2, slack=0.0).pick(grad, grad, params, Random(0))
    assert masks is not None and masks.parts[0].tolist() == [False, True, True, True, False]
    careful = filters.kkt(l1=0.2, slack=0.15).pick(grad, grad, params, Random(0))
    assert careful is not None and careful.parts[0].all()


def test_random_skip_is_as_frequent_as_asked_and_repeatable() -> None:
    pending = Vector([torch.ones(10_000)])
    once, again = (filters.random_skip(0.3).pick(pending, pending, pending, Random(1)) for _ in range(2))
    assert once is not None and again is not None
    assert once.parts[0].float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert torch.equal(once.parts[0], again.parts[0])


@given(st.lists(st.lists(st.sampled_from([0.0, 1.5, -2.0]), max_size=9), max_size=3))
def test_scatter_brings_back_what_gather_took(numbers: list[list[float]]) -> None:
    whole = Vector(torch.tensor(part, dtype=torch.float64) for part in numbers)
    keys, values = gather(whole, whole.map(lambda part: part != 0))
    back = scatter(keys, values, whole)
    assert all(torch.equal(a, b) for a, b in zip(whole.parts, back.parts, strict=True))
    assert values.numel == sum(number != 0 for part in numbers for number in part)


def test_keys_travel_once() -> None:
    here, there = KeyCache(), KeyCache()
    lists = [[1, 2], [1, 2], [3], [1, 2]]
    for n, numbers in enumerate(lists):
        keys = Vector([torch.tensor(numbers, dtype=torch.int32)])
        signature, wire = here.shorten(keys)
        assert bool(wire.parts) == (n != 1)
        assert there.restore(signature, wire).parts[0].tolist() == numbers
    with pytest.raises(AssertionError, match="never came"):
        there.restore(5, Vector(()))


def test_signatures_tell_lists_apart() -> None:
    def of(*parts: list[int]) -> int:
        return sign(Vector(torch.tensor(part, dtype=torch.int32) for part in parts))

    assert len({of([1, 2]), of([2, 1]), of([1], [2]), of([1, 2], []), of([]), of()}) == 6


@pytest.mark.parametrize(("keys", "values"), [([-1], [1.0]), ([4], [1.0]), ([0, 1], [1.0]), ([0], [1.0, 2.0])], ids=str)
def test_keys_that_do_not_fit_are_refused(keys: list[int], values: list[float]) -> None:
    """They come from a peer: a negative one would count from the end, one value be stretched over several keys."""
    given = Vector([torch.tensor(keys, dtype=torch.int32)]), Vector([torch.tensor(values)])
    with pytest.raises(WireError, match="do not fit"):
        scatter(*given, vector(0.0, 0.0, 0.0, 0.0))
    with pytest.raises(WireError, match="do not fit"):
        scatter(*given, Vector([torch.zeros(1), torch.zeros(1)]))

"""Codes for whole numbers: as many bits as they say, whoever writes or reads them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import WireError
from covey.exchange.codecs import bit_codes
from covey.exchange.codecs.bit_codes import (
    elias,
    elias_bits,
    elias_read,
    golomb,
    golomb_bits,
    golomb_read,
    golomb_width,
)


@pytest.fixture(params=["compiled", "plain"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With numba, and as without it."""
    if request.param == "plain":
        monkeypatch.setattr(bit_codes, "fast", None)
    else:
        assert bit_codes.fast, "numba is there"
    return str(request.param)


NUMBERS = st.lists(st.one_of(st.integers(1, 5), st.integers(1, 2**40)), max_size=60)


@settings(max_examples=40, deadline=None)
@given(NUMBERS)
def test_elias_comes_back(numbers: list[int]) -> None:
    given = torch.tensor(numbers, dtype=torch.int64)
    data, pages = elias(given)
    assert elias_read(data, pages, len(numbers)).tolist() == numbers
    bits = sum(2 * (number.bit_length() - 1) + 1 for number in numbers)
    assert elias_bits(given) == bits and data.numel() == -(-bits // 8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=60), st.integers(0, 8))
def test_golomb_comes_back(gaps: list[int], width: int) -> None:
    data, pages = golomb(torch.tensor(gaps, dtype=torch.int64), width)
    assert golomb_read(data, pages, len(gaps), width).tolist() == gaps
    assert data.numel() == -(-sum((gap - 1 >> width) + 1 + width for gap in gaps) // 8)


def test_both_forms_write_the_same(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    numbers = torch.randint(1, 300, (5000,), generator=chance)
    monkeypatch.setattr(bit_codes, "PAGE", 1024)
    for data, pages in (elias(numbers), golomb(numbers, 5)):
        assert pages.numel() == 5 and int(pages.sum()) == data.numel()
    mine = elias(numbers), golomb(numbers, 5)
    monkeypatch.setattr(bit_codes, "fast", None)
    for (data, pages), (other, sizes) in zip(mine, (elias(numbers), golomb(numbers, 5)), strict=True):
        assert torch.equal(data, other) and torch.equal(pages, sizes)


def test_a_code_ends_where_it_says(form: str) -> None:
    """Prefix-free: every beginning of a page is no page."""
    data, pages = elias(torch.tensor([1, 7, 300, 2, 5000]))
    for cut in range(data.numel()):
        with pytest.raises(WireError):
            elias_read(data[:cut], torch.tensor([cut], dtype=torch.int32), 5)
    with pytest.raises(WireError, match="codes that do not stand for 9 numbers"):
        elias_read(data, pages, 9)
    with pytest.raises(WireError, match="1 pages of 3 bytes"):
        elias_read(data, torch.tensor([3], dtype=torch.int32), 5)


def test_a_number_that_is_too_long_is_refused(form: str) -> None:
    zeros = torch.zeros(20, dtype=torch.uint8)
    zeros[12] = 1  # 96 zeros and a one, and 56 bits
    with pytest.raises(WireError):
        elias_read(zeros, torch.tensor([20], dtype=torch.int32), 1)


@pytest.mark.parametrize(
    ("density", "width", "bits"), [(0.01, 6, 8.108), (0.001, 9, 11.495), (0.5, 0, 2.0), (1.0, 0, 1.0)]
)
def test_the_width_of_a_gap_is_the_best(density: float, width: int, bits: float) -> None:
    """Sattler et al. 2019; for one of a hundred 6 bits and about 8.1 in the mean."""
    assert golomb_width(density) == width and golomb_bits(density) == pytest.approx(bits, rel=1e-3)


def test_gaps_take_as_many_bits_as_expected() -> None:
    chance = torch.Generator().manual_seed(1)
    places = (torch.rand(400_000, generator=chance) < 0.01).nonzero().view(-1)
    data, _ = golomb(places.diff(prepend=torch.tensor([-1])), golomb_width(0.01))
    assert 8 * data.numel() / places.numel() == pytest.approx(golomb_bits(0.01), rel=0.01)

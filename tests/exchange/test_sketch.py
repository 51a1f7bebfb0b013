"""Sketches (Konecny et al. 2016): the rotation, and what it is for; test_codecs holds that they are unbiased."""

from __future__ import annotations

import pytest
import torch

from covey.errors import PlanError
from covey.exchange.codecs.sketch import Sketch, hadamard, padded, rotated, turned_back, width
from covey.vector import Vector
from tests.exchange.coders import flat, roundtrip, whole


def test_the_rotation_is_orthogonal_and_its_inverse_restores_exactly() -> None:
    chance = torch.Generator().manual_seed(1)
    rows = torch.randint(-100, 100, (3, 64), generator=chance).double()
    signs = (2 * torch.randint(2, (64,), generator=chance) - 1).double()
    turned = rotated(rows, signs)
    assert torch.equal(turned_back(turned, signs), rows), "of whole numbers and a width of 4^n: to the bit"
    assert torch.allclose(turned.norm(dim=1), rows.norm(dim=1), rtol=1e-14)
    matrix = hadamard(torch.eye(16, dtype=torch.float64))
    assert torch.equal(matrix @ matrix.T, torch.eye(16, dtype=torch.float64))
    assert set(matrix.reshape(-1).tolist()) == {0.25, -0.25}


def test_rotation_keeps_one_large_number_from_widening_the_steps_of_all() -> None:
    """Its purpose (Konecny et al., section 4.2)."""
    shape = flat(1024)
    peaked = Vector([torch.randn(1024, generator=torch.Generator().manual_seed(1)) * 0.01])
    peaked.parts[0][17] = 10.0

    def error(rotate: bool) -> float:
        coder = Sketch(bits=2, keep=1.0, rotate=rotate).codec().made(shape, 3)
        wrong = whole(roundtrip(coder, peaked)) - whole(peaked)
        return float(wrong.norm())

    assert error(True) < 0.5 * error(False)


def test_what_is_kept_is_scaled_up_and_the_rest_is_zero() -> None:
    shape = flat(1000)
    ones = Vector([torch.ones(1000)])
    arrived = whole(roundtrip(Sketch(bits=8, keep=0.2, rotate=False).codec().made(shape, 3), ones))
    assert int((arrived != 0).sum()) == 200 and float(arrived.max()) == pytest.approx(5.0)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_bytes_are_those_of_the_bits(bits: int) -> None:
    codec = Sketch(bits=bits, keep=0.5).codec()
    coder = codec.made(flat(4096), 3)
    wire, _ = coder.encode(flat(4096).like, coder.memory)
    assert wire.nbytes == codec.nbytes(flat(4096)) == 8 + 2048 * bits // 8 + 2 * 8


def test_rows_end_with_a_byte() -> None:
    assert [(width(count), padded(count)) for count in (1, 8, 9, 1000, 1025)] == [
        (8, 8), (8, 8), (16, 16), (1024, 1024), (1024, 2048),
    ]  # fmt: skip
    assert padded(0) == 0


@pytest.mark.parametrize("wrong", [{"bits": 3}, {"bits": 0}, {"keep": 0.0}, {"keep": 1.1}])
def test_settings_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        Sketch(**wrong).codec()  # type: ignore[arg-type]

"""Shamir's shares, whole numbers for floats, and masks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from covey.errors import PlanError, WireError
from covey.privacy.randomness import SYSTEM, SeededRandomness, below
from covey.privacy.secagg import FixedPoint
from covey.privacy.secagg.masks import STRETCH, add_masks_, unsigned
from covey.privacy.secagg.shamir import PRIME, recover, split
from covey.vector import Vector


@pytest.mark.parametrize("secret", [0, 1, PRIME - 1, (1 << 256) - 1, 0xC0FFEE])
def test_any_three_of_five_shares_give_the_secret_and_two_do_not(secret: int) -> None:
    shares = split(secret, [1, 2, 5, 7, 4096], 3, SeededRandomness(1))
    for chosen in combinations(shares, 3):
        assert recover({holder: shares[holder] for holder in chosen}) == secret
    assert recover(shares) == secret
    for chosen in combinations(shares, 2):
        assert recover({holder: shares[holder] for holder in chosen}) != secret


def test_two_shares_fit_every_secret() -> None:
    """For any guess there is a third share with which the two give it: they say nothing about the secret."""
    shares = split(42, [1, 2, 3], 3, SeededRandomness(2))
    seen = []
    for guess in (0, 7, PRIME - 1):
        # the parabola through the guess at 0 and the two shares
        one, two = shares[1], shares[2]
        third = (guess - 3 * one + 3 * two) % PRIME
        assert recover({1: one, 2: two, 3: third}) == guess
        seen.append(third)
    assert len(set(seen)) == 3


def test_shares_are_spread_over_the_whole_field_and_are_new_each_time() -> None:
    shares = [split(1, [1], 2, SYSTEM)[1] for _ in range(400)]
    assert len(set(shares)) == 400
    assert 140 < sum(share > PRIME // 2 for share in shares) < 260
    assert 140 < sum(share % 2 for share in shares) < 260


def test_numbers_below_a_limit_are_uniform() -> None:
    drawn = [below(5, SeededRandomness(seed)) for seed in range(3000)]
    assert set(drawn) == set(range(5))
    assert all(480 < drawn.count(number) < 720 for number in range(5))


# -- whole numbers -----------------------------------------------------------------------------------------------------


def test_numbers_go_to_the_nearest_level_and_back() -> None:
    fixed = FixedPoint(clip=2.0, levels=1000)
    given = Vector([torch.tensor([0.5, -0.0009, 0.0011]), torch.tensor([[5.0], [-7.0]], dtype=torch.float64)])
    whole = fixed.quantise(given)
    assert whole.tolist() == [250, 0, 1, 1000, -1000] and whole.dtype == torch.int32
    back = fixed.restore(whole.long() * 2, given)
    assert back.parts[0].tolist() == pytest.approx([1.0, 0.0, 0.004])
    assert back.parts[1].tolist() == [[4.0], [-4.0]] and back.parts[1].dtype == torch.float64


def test_the_largest_number_of_clients_fits_to_the_bit_and_one_more_is_refused() -> None:
    fixed = FixedPoint(levels=1 << 22)
    most = ((1 << 31) - 1) // fixed.levels
    assert most == 511
    fixed.check(most)
    assert most * fixed.levels <= torch.iinfo(torch.int32).max < (most + 1) * fixed.levels
    with pytest.raises(PlanError, match="At most 511 clients fit; or take at most 4194303 levels, or bits=64"):
        fixed.check(most + 1)
    FixedPoint(levels=1 << 52, bits=64).check(2047)
    for wrong in (FixedPoint(bits=16), FixedPoint(clip=0.0), FixedPoint(clip=float("nan")), FixedPoint(levels=0)):
        with pytest.raises(PlanError):
            wrong.check(2)
    with pytest.raises(WireError, match="NaN or infinite"):
        fixed.quantise(Vector([torch.tensor([float("nan")])]))


# -- masks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_mask_is_the_key_stream_of_aes_256_in_counter_mode(dtype: torch.dtype) -> None:
    """Reckoned here block by block, over more than one stretch; taken off again it leaves nothing."""
    key, count = bytes(range(32)), STRETCH // 4 + 7
    numbers = torch.zeros(count, dtype=dtype)
    add_masks_(unsigned(numbers), [key])
    blocks = b"".join(place.to_bytes(16, "big") for place in range(count * numbers.element_size() // 16 + 1))
    stream = Cipher(AES(key), ECB()).encryptor().update(blocks)
    assert unsigned(numbers).tobytes() == stream[: count * numbers.element_size()]
    add_masks_(unsigned(numbers), [bytes(32)], [key])
    assert numbers.any()
    add_masks_(unsigned(numbers), [], [bytes(32)])
    assert not numbers.any()


def test_masks_wrap_around() -> None:
    numbers = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32)
    before = numbers.clone()
    for _ in range(3):
        add_masks_(unsigned(numbers), [bytes([7]) * 32])
    add_masks_(unsigned(numbers), [], [bytes([7]) * 32] * 3)
    assert numbers.equal(before) and unsigned(numbers).dtype == np.uint32

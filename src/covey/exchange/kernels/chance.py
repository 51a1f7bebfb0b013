"""Counter-based random numbers: value `i` of a tensor draws the same on every device, in every order and thread count.

`u(seed, i) = mix(i) / 2^24`, where `mix` is two multiply-and-shift rounds on 32 bits (the constants of Wellons'
`lowbias32`) with half of a 64-bit key put in before each; the key is splitmix64 of the seed. It is a hash and no
cipher. Numbers 2^32 apart in one tensor draw alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, SECOND = 0x7FEB352D, 0x846CA68B
_WORD = 2**64 - 1


def keys(seed: int) -> tuple[int, int]:
    """Two 32-bit keys: splitmix64 of the seed, so that seeds 0, 1, 2, ... have nothing in common."""
    word = (seed + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    word ^= word >> 31
    return word & 0xFFFFFFFF, word >> 32


def signed(word: int) -> int:
    """The int32 of the same 32 bits."""
    return word - 2**32 if word >= 2**31 else word


def word(seed: int, i: int) -> int:
    """The 32 random bits of number i."""
    one, two = keys(seed)
    mixed = i ^ one
    mixed = ((mixed ^ (mixed >> 16)) * FIRST + two) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * SECOND) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)


def words(seed: int, count: int, device: torch.device) -> Tensor:
    """The 32 random bits of numbers 0 to count - 1, as int32 (whose product wraps as an unsigned one does)."""
    one, two = keys(seed)
    mixed = torch.arange(count, dtype=torch.int64, device=device).to(torch.int32)
    mixed ^= signed(one)
    mixed ^= (mixed >> 16) & 0xFFFF
    mixed *= FIRST
    mixed += signed(two)
    mixed ^= (mixed >> 15) & 0x1FFFF
    mixed *= signed(SECOND)
    mixed ^= (mixed >> 16) & 0xFFFF
    return mixed


def uniform(seed: int, count: int, device: torch.device) -> Tensor:
    """Float32 in [0, 1), in steps of 2^-24."""
    return ((words(seed, count, device) >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24

"""Where random bytes come from: the operating system; or a seed, which only a simulation may ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Randomness(Protocol):
    """A source of random bytes."""

    @property
    def source(self) -> str:
        """What results say of it."""
        ...

    @property
    def seeded(self) -> bool:
        """Whether somebody who knows the seed knows all bytes."""
        ...

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        ...


@dataclass(frozen=True)
class SystemRandomness:
    """The operating system's generator."""

    source: str = "operating system"
    seeded: bool = False

    def take(self, count: int) -> bytes:
        return os.urandom(count)


class SeededRandomness:
    """Bytes that follow from a seed, for simulation: they hide nothing from those who know it.

    >>> SeededRandomness(7).take(2) == SeededRandomness(7).take(2)
    True
    """

    source = "a seed, for simulation only"
    seeded = True

    def __init__(self, seed: int | str) -> None:
        self._stream = Random(seed)

    def take(self, count: int) -> bytes:
        return self._stream.randbytes(count)


SYSTEM = SystemRandomness()


class RandomnessSource(Protocol):
    """Gives randomness for each use of it: what a program is handed, so that it never asks where it runs."""

    @property
    def source(self) -> str:
        """What results say of it."""
        ...

    def of(self, *use: object) -> Randomness:
        """For one use, such as ("noise", 3)."""
        ...


class SystemSource:
    """The operating system's generator for every use: what deployed runs draw from."""

    source = SYSTEM.source

    def of(self, *use: object) -> Randomness:
        return SYSTEM


@dataclass(frozen=True, slots=True)
class SeededSource:
    """Another stream of bytes for each use, all of which follow from one seed: for simulation."""

    seed: int
    source: str = SeededRandomness.source

    def of(self, *use: object) -> Randomness:
        return SeededRandomness("/".join(map(str, (self.seed, *use))))


def below(limit: int, randomness: Randomness) -> int:
    """A uniform number from 0 to `limit` - 1."""
    bits = (limit - 1).bit_length()
    while True:  # on average less than twice
        drawn = int.from_bytes(randomness.take((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if drawn < limit:
            return drawn

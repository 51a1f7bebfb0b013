"""A separate random state for drawing samples, which neither uses nor changes the script's."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


def mixed(*numbers: int) -> int:
    """One seed out of several numbers."""
    state = np.random.SeedSequence([number % (1 << 64) for number in numbers]).generate_state(1, np.uint64)
    return int(state[0]) % (1 << 63)


def seed_all(seed: int) -> None:
    """Seed torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)


class SeededDraws:
    """Inside, torch, numpy and Python draw from a seed, and go on from there when it is entered again.

    A generator that the user has made is seeded by its own seed too, so that this one still governs the order.
    """

    def __init__(self, seed: int, generators: Iterable[Any] = ()) -> None:
        self._seed = seed
        self._own = [found for found in generators if isinstance(found, torch.Generator)]
        self._inside: list[Any] | None = None
        self._outside: list[Any] = []

    def __enter__(self) -> None:
        self._outside = self._states()
        if self._inside is not None:
            return self._restore(self._inside)
        torch.default_generator.manual_seed(self._seed)
        np.random.seed(self._seed % (1 << 32))
        random.seed(self._seed)
        for own in self._own:
            own.manual_seed(mixed(self._seed, own.initial_seed()))

    def __exit__(self, *_: object) -> None:
        self._inside = self._states()
        self._restore(self._outside)

    def _states(self) -> list[Any]:
        return [torch.get_rng_state(), np.random.get_state(), random.getstate(), *(g.get_state() for g in self._own)]

    def _restore(self, states: list[Any]) -> None:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        for own, state in zip(self._own, states[3:], strict=True):
            own.set_state(state)

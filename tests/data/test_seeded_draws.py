"""Draws from a seed, beside those of the script."""

from __future__ import annotations

import random

import numpy as np
import torch

from covey.data.seeded_draws import SeededDraws


def test_draws_go_on_where_they_were_left_and_those_of_the_script_too() -> None:
    def drawn(draws: SeededDraws) -> tuple[float, float, float]:
        with draws:
            return float(torch.rand(())), float(np.random.rand()), random.random()

    once, again = SeededDraws(3), SeededDraws(3)
    outside = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr]
    first, second = drawn(once), drawn(once)
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert (drawn(again), drawn(again)) == (first, second)
    assert torch.equal(torch.get_rng_state(), outside[0]) and random.getstate() == outside[2]
    assert np.random.get_state()[1].tolist() == outside[1]  # type: ignore[index, union-attr]

"""The chance inside a model: seeded as torch does it, but without its cost, and carried on elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from covey.model.randomness import Chance, seed_of, seed_torch


def test_it_draws_what_torch_would() -> None:
    for seed in (0, 7, seed_of(3, 1, 1000), seed_of(3, 1, 1000, 2)):
        torch.manual_seed(seed)
        expected = torch.rand(5), nn.functional.dropout(torch.ones(100))
        seed_torch(seed)
        assert torch.equal(torch.rand(5), expected[0]) and torch.equal(
            nn.functional.dropout(torch.ones(100)), expected[1]
        )


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device to seed")
def test_nothing_is_written_down_for_devices_that_are_not_there() -> None:
    """What torch keeps for a GPU that may come: where it was called from, which is what takes long."""
    torch.manual_seed(1)
    kept = torch.cuda._lazy_seed_tracker.manual_seed_all_cb
    seed_torch(2)
    assert torch.cuda._lazy_seed_tracker.manual_seed_all_cb is kept


def test_a_seed_belongs_to_one_batch() -> None:
    seeds = [seed_of(seed, rank, step) for seed in range(3) for rank in range(4) for step in range(50)]
    parts = [seed_of(0, rank, step, part) for rank in range(4) for step in range(50) for part in range(4)]
    assert len(set(seeds)) == len(seeds) and len(set(parts)) == len(parts)
    assert max(parts) < 1 << 63, "torch takes no more"


def test_it_goes_on_where_it_was() -> None:
    chance = Chance(torch.device("cpu"))
    seed_torch(5)
    torch.rand(3)
    state = chance.state()
    expected = torch.rand(3)
    seed_torch(9)
    chance.restore(state)
    assert torch.equal(torch.rand(3), expected)

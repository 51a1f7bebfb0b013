"""What tells butterfly mixing apart: one partner a step, and everybody's model with everybody after log2 n steps."""

from __future__ import annotations

import pytest
import torch

from covey import catalog
from covey.decentral.gossip.butterfly_mixing import Mix, partner
from covey.errors import PlanError
from tests.worlds import quadratic, run, spread


def test_partners_of_eight() -> None:
    assert [[partner(rank, step, 8) for rank in (0, 5)] for step in range(4)] == [[1, 4], [2, 7], [4, 1], [1, 4]]
    assert partner(0, 3, 1) == 0


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_consensus_after_log2_n_steps_and_not_before(workers: int) -> None:
    stages = workers.bit_length() - 1
    for steps in range(1, stages + 1):
        flats = [
            r.flat.parts[0]
            for r in run(quadratic(lr=0.0), "butterfly", workers, steps=steps, before=spread()).workers()
        ]
        agreed = all(torch.equal(flats[0], other) for other in flats)
        assert agreed == (steps == stages)


def test_the_mean_stays() -> None:
    start = run(quadratic(lr=0.0), "local_sgd(period=100)", 8, steps=1, before=spread()).scored["w"]
    for steps in range(1, 6):
        world = run(quadratic(lr=0.0), "butterfly", 8, steps=steps, before=spread())
        assert torch.allclose(world.scored["w"], start, atol=1e-12)


def test_one_model_a_step_from_everyone() -> None:
    log = run(quadratic(), "butterfly", 8, steps=5).log
    assert len(log.kinds(Mix)) == len(log.sends) == 8 * 5
    assert {sent.size for sent in log.sends} == {5 * 8}


@pytest.mark.parametrize(("workers", "use"), [(3, "use 2 or 4"), (5, "use 4 or 8"), (12, "use 8 or 16")])
def test_other_numbers_are_refused(workers: int, use: str) -> None:
    with pytest.raises(PlanError, match=use):
        catalog.resolve("butterfly", workers)

"""`ssp(bound=0)` waits exactly as `bsp` does and, with plain SGD, ends at its weights."""

from __future__ import annotations

import pytest
import torch

from covey.simulate import Cluster
from tests.worlds import CLUSTER, mlp, run, sgd, slowed

RULES = ("notes staleness", "notes update")
"""Told in other words: one update of a whole round, or one for each push."""


def waits(trace: str) -> list[str]:
    return [line for line in trace.splitlines() if not any(rule in line for rule in RULES)]


@pytest.mark.parametrize("cluster", [CLUSTER, slowed(w1=3.0), slowed(w0=2.5, w3=1.7)], ids=["even", "one slow", "two"])
@pytest.mark.parametrize("servers", [1, 2])
def test_bound_0_waits_as_bsp(cluster: Cluster, servers: int) -> None:
    ssp, bsp = (
        run(mlp(), name, 4, servers=servers, steps=8, cluster=cluster).trace for name in ("ssp(bound=0)", "bsp")
    )
    assert waits(ssp) == waits(bsp)
    assert any("waits" in line for line in waits(ssp))


def test_bound_1_does_not() -> None:
    """Or the comparison above could not fail."""
    ssp, bsp = (run(mlp(), name, 4, steps=8, cluster=slowed(w1=3.0)).trace for name in ("ssp(bound=1)", "bsp"))
    assert waits(ssp) != waits(bsp)


@pytest.mark.parametrize("servers", [1, 3])
def test_bound_0_ends_at_the_weights_of_bsp_with_plain_sgd(servers: int) -> None:
    """Each of the n pushes counts 1/n, and plain SGD does not care whether they come one by one."""
    ssp, bsp = (run(mlp(sgd()), name, 4, servers=servers, steps=40).scored for name in ("ssp(bound=0)", "bsp"))
    for name, tensor in bsp.items():
        torch.testing.assert_close(ssp[name], tensor, atol=1e-9, rtol=0)


def test_bound_0_does_not_with_momentum() -> None:
    """n steps with momentum are not one step with the mean (Ho et al. 2013 assume additive updates)."""
    ssp, bsp = (run(mlp(sgd(momentum=0.9)), name, 4, steps=40).scored for name in ("ssp(bound=0)", "bsp"))
    assert max(float((ssp[name] - bsp[name]).abs().max()) for name in bsp) > 1e-3


def test_a_bound_that_is_never_met_is_asynchronous() -> None:
    ssp, free = (run(mlp(), name, 4, steps=8, cluster=slowed(w1=3.0)) for name in ("ssp(bound=100)", "asynchronous"))
    assert ssp.trace == free.trace
    assert all(torch.equal(ssp.scored[name], free.scored[name]) for name in free.scored)

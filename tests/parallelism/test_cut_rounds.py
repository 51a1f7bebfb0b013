"""A worker of a cut model is lost: it is restarted with its part of another replica, and all go on together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.check.fault_seeds import FaultCase, tried
from covey.errors import PeerLost, PlanError
from covey.simulate import Cluster, Seconds

CUT = "allreduce with mesh(replica=2, stage=2, cut=4)"  # where it is measured, a sum may have another order
CLUSTER = Cluster(compute=Seconds(0.01), jitter=0.3)
chance = torch.Generator().manual_seed(2)
DATA = torch.randn(96, 6, dtype=torch.float64, generator=chance), torch.randint(0, 3, (96,), generator=chance)


def model() -> nn.Module:
    """With float buffers, counters and chance: all that a step which is done again must not change twice."""
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 8), nn.BatchNorm1d(8)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 3)).double()


def fit(spec: str = CUT, workers: int = 4, samples: int = 96, **given: Any) -> covey.Result:
    task = covey.Task(
        model=model, data=(DATA[0][:samples], DATA[1][:samples]), loss=nn.functional.cross_entropy, batch_size=8,
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1, momentum=0.5),
    )  # fmt: skip
    return covey.fit(
        task, spec, workers, engine="simulated", cluster=CLUSTER, runs=False, **{"steps": 6, **given}
    )  # fmt: skip


def same(one: covey.Result, other: covey.Result) -> bool:
    return one.samples == other.samples and all(torch.equal(one.weights[n], other.weights[n]) for n in other.weights)


@pytest.mark.parametrize(
    "faults",
    [
        *(f"kill worker {who}#{effect}" for who, effect in [(0, 7), (1, 20), (2, 33), (3, 41)]),
        "kill worker 1@30ms; kill worker 2@30ms", "kill worker 0@25ms; kill worker 1@26ms",
        "kill worker 3@20ms; kill worker 3@340ms; kill worker 0@345ms",
        "delay worker 0 -> worker 3@1ms by 300ms; kill worker 1@200ms",  # 3 has its sum, and others are a step further
    ],
)  # fmt: skip
def test_the_weights_are_those_of_a_run_that_lost_nobody(faults: str) -> None:
    found = fit(on_failure="continue", faults=faults)
    assert same(found, fit()) and found.failures == []
    assert isinstance(found.membership, list) and len(found.membership) == faults.count("kill")


@pytest.mark.full
@pytest.mark.parametrize("victim", range(4))
def test_whenever_a_worker_is_lost(victim: int) -> None:
    plain = fit(steps=3)
    for effect in range(1, 90):
        found = fit(steps=3, on_failure="continue", faults=f"kill worker {victim}#{effect}")
        assert same(found, plain), f"worker {victim}, effect {effect}"


@pytest.mark.parametrize(
    ("spec", "workers", "given"),
    [
        ("allreduce with mesh(replica=3, stage=2, cut=4)", 6, {}),
        ("allreduce with mesh(replica=2, stage=3, timetable=gpipe, microbatches=2, cut=3:5)", 6, {}),
        ("allreduce(pattern=binomial) with mesh(replica=2, stage=2, cut=4)", 4, {}),
    ],
)
def test_other_meshes_and_patterns(spec: str, workers: int, given: dict[str, Any]) -> None:
    found = fit(spec, workers, on_failure="continue", faults="kill worker 3@25ms; kill worker 0@900ms", **given)
    assert same(found, fit(spec, workers, **given))


def test_seeds_of_faults_break_nothing() -> None:
    case = FaultCase("allreduce with mesh(replica=2, stage=2)", 4, elastic=True)
    assert [str(found) for seed in range(6) if (found := tried(case, seed)).broken] == []


def test_a_part_that_nobody_has_any_more_ends_the_run() -> None:
    with pytest.raises(PeerLost, match=r"worker \d was lost, and no other worker had (its part of )?the model"):
        fit(on_failure="continue", faults="kill worker 1@25ms; kill worker 3@25ms")


@pytest.mark.parametrize(
    ("spec", "workers", "why"),
    [
        ("allreduce with mesh(stage=2)", 2, "nobody else has a lost worker.s part of the model: use allreduce"),
        ("bsp with mesh(replica=2, stage=2)", 4, "takes along its part of the model: use allreduce with mesh"),
        ("allreduce with mesh(replica=2, tensor=2)", 4, "takes along its part of the model"),
        ("allreduce with mesh(replica=2, stage=2, timetable=pipedream)", 4, "has weights of several steps in one part"),
    ],
)
def test_other_meshes_are_refused(spec: str, workers: int, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        fit(spec, workers, on_failure="continue")

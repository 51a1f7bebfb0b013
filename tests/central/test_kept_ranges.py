"""Checkpoints of runs to which workers come and go: a resumed run does exactly the batches that are left."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.checkpoint import CheckpointDirectory
from covey.data.leases import LeaseRecord, Ledger
from covey.engines.virtual.computing import Computing
from covey.errors import CheckpointError, CoveyError, PlanError
from covey.simulate import Cluster, Seconds
from tests.central.ranged_runs import STEPS, run
from tests.central.test_leased import Applied, applied, check, check_replay, weights

__all__ = ["applied"]
EFFECTS = 40


@pytest.fixture
def at_checkpoint(applied: Applied, monkeypatch: pytest.MonkeyPatch) -> list[Applied]:
    """What each server had applied when a checkpoint was written."""
    found: list[Applied] = []
    commit = CheckpointDirectory.commit

    def noting(self: Any, *given: Any) -> Any:
        found.append(deepcopy(applied))
        return commit(self, *given)

    monkeypatch.setattr(CheckpointDirectory, "commit", noting)
    return found


def go_back(applied: Applied, then: Applied) -> None:
    applied.clear()
    applied.update(deepcopy(then))


@pytest.mark.parametrize("servers", [1, 2])
def test_where_nobody_goes_a_resumed_run_ends_with_the_same_bits(servers: int, tmp_path: Path) -> None:
    whole = run("bsp", servers=servers, steps=12)
    run("bsp", servers=servers, steps=6, checkpoint=tmp_path, every="20ms")
    rest = run("bsp", servers=servers, steps=12, resume=tmp_path)
    assert rest.samples == whole.samples and all(map(torch.equal, weights(rest), weights(whole)))


CASES = [
    ("bsp", 1, "leave worker 1#{n}", ""),
    ("bsp", 2, "leave worker 1#{n}; join worker 1@25ms", "leave worker 0@38ms"),
    ("bsp", 2, "join worker 2@{n}ms; leave worker 0#{n}", "kill worker 1@35ms; leave worker 2@45ms"),
    ("ssp(bound=1)", 2, "leave worker 1#{n}; kill worker 2@21ms", "leave worker 2@40ms; join worker 2@45ms"),
    ("asynchronous", 2, "leave worker 1#{n}; leave worker 2@30ms; join worker 1@33ms", "kill worker 1@40ms"),
    ("quorum(late=fold)", 2, "leave worker 1#{n}; join worker 1@25ms", ""),
    ("softsync", 1, "kill worker 1#{n}; leave worker 2@15ms", "leave worker 0@40ms"),
]


def there_and_back(
    applied: Applied, at_checkpoint: list[Applied], strategy: str, servers: int, faults: str, later: str, place: Path
) -> None:
    """Train with checkpoints, go on from the newest, and look at what both runs have applied together."""
    run(strategy, faults, servers=servers, checkpoint=place, every="9ms")
    if not at_checkpoint:
        return applied.clear()
    go_back(applied, at_checkpoint[-1])
    at_checkpoint.clear()
    rest = run(strategy, later, servers=servers, resume=place)
    if strategy == "bsp":
        check_replay(rest, applied, servers)
    assert rest.samples == 3 * STEPS * 8
    check(applied, servers)


@pytest.mark.parametrize(("strategy", "servers", "faults", "later"), CASES)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 7))])
def test_each_batch_counts_once_in_both_runs_together(
    applied: Applied, at_checkpoint: list[Applied], strategy: str, servers: int, faults: str, later: str, part: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    for number in range(part + 2, EFFECTS, 7):
        plan = faults.format(n=number)
        there_and_back(applied, at_checkpoint, strategy, servers, plan, later, tmp_path / str(number))


def test_a_run_is_kept_while_a_worker_has_no_batch(
    applied: Applied, at_checkpoint: list[Applied], tmp_path: Path
) -> None:
    """Workers 1 and 2 are through while the first one has most of its batches left; each checkpoint takes it a step."""
    slow = Cluster(compute=Seconds(0.01), slowdowns={0: 10.0})
    run("asynchronous", cluster=slow, checkpoint=tmp_path, every="20ms")
    resting = [then for then in at_checkpoint if sum(map(len, then["server 0"])) in range(2 * STEPS, 3 * STEPS)]
    assert len(resting) >= 2
    go_back(applied, at_checkpoint[-1])
    rest = run("asynchronous", resume=tmp_path)
    assert rest.samples == 3 * STEPS * 8
    check(applied, 1)


def test_a_run_that_loses_a_server_starts_again_from_a_checkpoint(
    applied: Applied, at_checkpoint: list[Applied], tmp_path: Path
) -> None:
    result = run("bsp", "leave worker 1@12ms; kill server 0@34ms", checkpoint=tmp_path, every="9ms")
    assert isinstance(result.membership, list)
    assert [event.event for event in result.membership] == ["leave", "restart"]
    assert result.samples == 3 * STEPS * 8 and len(at_checkpoint) > 1


def test_whoever_had_joined_is_there_when_the_run_starts_again(
    applied: Applied, at_checkpoint: list[Applied], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = list[str](), Computing._begin

    def noting(self: Any, thread: Any, effect: Any) -> None:
        begun.append(thread.actor.name)
        begin(self, thread, effect)

    monkeypatch.setattr(Computing, "_begin", noting)
    result = run("bsp", "join worker 2@12ms; kill server 0@34ms", checkpoint=tmp_path, every="9ms")
    assert isinstance(result.membership, list) and result.failures == []
    assert [event.event for event in result.membership] == ["join", "restart"] and "worker 2" in begun[-6:]
    assert result.samples == 3 * STEPS * 8 and len(at_checkpoint) > 1


def test_a_ledger_that_is_not_kept_is_found(
    applied: Applied, at_checkpoint: list[Applied], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Ledger.__init__

    def forgetful(self: Any, limits: Any, steps: Any, size: Any, record: Any = None) -> None:
        made(self, limits, steps, size, LeaseRecord.begin(len(limits)))

    monkeypatch.setattr(Ledger, "__init__", forgetful)
    with pytest.raises((AssertionError, CoveyError)):
        there_and_back(applied, at_checkpoint, "bsp", 1, "leave worker 1@15ms", "", tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("1:3", 3, 'is of a run with a range of workers, and this one is with a fixed.*go on with workers="MIN:3"'),
        (3, "1:3", "is of a run with a fixed number of workers, and this one is with a range.*workers=3"),
        ("1:3", "1:4", "workers 3, this one has 4"),
    ],
)
def test_a_range_goes_on_as_a_range(first: int | str, second: int | str, said: str, tmp_path: Path) -> None:
    run("bsp", workers=first, checkpoint=tmp_path, every="9ms")
    with pytest.raises(CheckpointError, match=said):
        run("bsp", workers=second, resume=tmp_path)


@pytest.mark.parametrize(("strategy", "own"), [("petuum", "optimizers"), ("easgd", "models")])
def test_what_only_workers_have_is_not_kept(strategy: str, own: str, tmp_path: Path) -> None:
    said = f"workers of {strategy} have {own} of their own, .*omit checkpoint.*or use bsp, ssp, asynchronous"
    with pytest.raises(PlanError, match=said):
        covey.fit("examples/digits.py", strategy, "1:3", engine="simulated", checkpoint=tmp_path, runs=False)

"""Rules that wait for some of the workers, where workers come and go: what each server applies, and at what weights."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch

import covey
from covey.central.server.leased_shard import LeasedShard
from covey.data.leases import Lease
from covey.data.shards import Shards
from covey.model import build
from covey.synchronization import Board, GatherChoice, Quorum, Soft, WaitingGradient
from tests.central.ranged_runs import EFFECTS, HALF, STEPS, check_largest, check_once, run
from tests.worlds import mlp


class Used(NamedTuple):
    """A gradient in an update, or one that was dropped: of which batch, at which version, and its weight."""

    lease: Lease
    version: int
    weight: float


Updates = dict[str, list[tuple[list[Used], float]]]


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> Updates:
    """The gradients of each update of each server, and the scale of its rate; dropped ones weigh nothing."""
    found: Updates = defaultdict(list)
    update = LeasedShard.update

    async def noting(self: Any, choice: GatherChoice) -> None:
        weights = dict(zip(choice.used, choice.weights, strict=True))
        used = [
            Used(Lease(push.seat, push.number), push.version, weights.get(place, 0.0))
            for place, push in enumerate(self.waiting) if push.samples and place in {*choice.used, *choice.dropped}
        ]  # fmt: skip
        found[str(self.node.address)].append((used, choice.scale))
        await update(self, choice)

    monkeypatch.setattr(LeasedShard, "update", noting)
    return found


def check(updates: Updates, servers: int, strategy: str) -> None:
    """Each batch comes once to every server; where late gradients are not dropped, it is in an update there."""
    check_once({who: [one.lease for used, _ in made for one in used] for who, made in updates.items()}, servers)
    for made in updates.values():
        dropped = [one for used, _ in made for one in used if not one.weight]
        assert not dropped or strategy in ("quorum", "quorum(size=1)")


CASES = [
    ("quorum", 1, "leave worker 1#{n}"),
    ("quorum", 2, "leave worker 1#{n}; join worker 1@25ms"),
    ("quorum(late=fold)", 2, "kill worker 1#{n} for 8ms; leave worker 2@31ms"),
    ("quorum(late=fold)", 2, HALF),
    ("quorum(size=1)", 1, "leave worker 1#{n}; leave worker 2@33ms; join worker 1@30ms"),
    ("softsync", 1, "leave worker 1#{n}; leave worker 2@33ms; join worker 1@30ms"),
    ("softsync", 2, HALF),
    ("softsync(groups=2)", 2, "kill worker 1#{n} for 5ms; leave worker 1@31ms; join worker 1@40ms"),
]


@pytest.mark.parametrize(("strategy", "servers", "faults"), CASES)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 6))])
def test_at_whatever_effect_a_worker_leaves_each_batch_comes_once(
    updates: Updates, strategy: str, servers: int, faults: str, part: int
) -> None:
    for number in range(part + 1, EFFECTS, 6):
        plan = faults.format(n=number, m=number + 12)
        result = run(strategy, plan, servers=servers)
        check(updates, servers, strategy)
        assert result.samples == 3 * STEPS * 8, plan
        if servers == 1:
            check_replay(result, updates)
        updates.clear()


@pytest.mark.parametrize("strategy", ["quorum", "softsync", "softsync(groups=2)"])
@pytest.mark.parametrize("servers", [1, 2])
def test_where_nobody_goes_a_range_is_its_largest_number(strategy: str, servers: int) -> None:
    check_largest(strategy, servers)


def check_replay(result: covey.Result, updates: Updates) -> None:
    """Each update is the weighted mean of gradients at the versions at which they were taken."""
    task = mlp()
    assert isinstance(task.data, tuple)
    deal, module = Shards(len(task.data[0]), 3, 8), build.model(task, 0)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    moving, versions = torch.zeros_like(flat), [flat.clone()]
    for made, scale in updates["server 0"]:
        used = [one for one in made if one.weight]
        if not used:  # the last ones are dropped
            continue
        mean = torch.zeros_like(flat)
        for one in used:
            torch.nn.utils.vector_to_parameters(versions[one.version].clone(), module.parameters())
            picked = deal.indices(*one.lease)
            grads = torch.autograd.grad(
                task.forward(module, tuple(column[picked] for column in task.data)), list(module.parameters())
            )
            share = one.weight / sum(other.weight for other in used)
            mean += torch.cat([grad.flatten() for grad in grads]) * share
        moving = 0.9 * moving + mean
        flat -= 0.1 * scale * moving
        versions.append(flat.clone())
    names = [name for name, _ in module.named_parameters()]
    found = torch.cat([result.weights[name].flatten() for name in names])
    torch.testing.assert_close(found, flat, rtol=1e-9, atol=1e-12)


def arrivals(*ranks: int) -> list[WaitingGradient]:
    return [WaitingGradient(rank, 0, 8) for rank in ranks]


def test_a_quorum_needs_no_more_than_are_there() -> None:
    rule, board = Quorum(3), Board({0: 1, 1: 1})
    assert rule.choose(arrivals(0), board) is None
    assert rule.choose(arrivals(0, 1), board) is not None


@pytest.mark.parametrize(("groups", "present", "needed"), [(1, 4, 4), (1, 3, 3), (2, 4, 2), (2, 3, 1), (4, 2, 1)])
def test_groups_of_softsync_follow_the_workers_that_are_there(groups: int, present: int, needed: int) -> None:
    """Zhang et al. 2016: an update for every floor(workers / groups) gradients."""
    rule, board = Soft(4 // groups, divisions=groups).among(present), Board(dict.fromkeys(range(present), 1))
    assert rule.choose(arrivals(*range(needed)), board) is not None
    assert needed == 1 or rule.choose(arrivals(*range(needed - 1)), board) is None


def test_a_batch_that_two_workers_did_is_applied_once(updates: Updates, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second server has had it of the one that left; planted: the rule would weigh it by its samples."""

    def counts() -> set[int]:
        found = set()
        for number in range(1, EFFECTS, 6):
            run("softsync", HALF.format(n=number, m=number + 12).replace("server 1", "server 0"), servers=2)
            found |= {sum(done.pop(who)) for who in list(done)}
        return found

    applied = LeasedShard.forget
    done: dict[str, list[int]] = defaultdict(list)

    def noting(self: Any, choice: GatherChoice) -> None:
        done[str(self.node.address)].append(len(choice.used))
        applied(self, choice)

    monkeypatch.setattr(LeasedShard, "forget", noting)
    assert counts() == {3 * STEPS}
    monkeypatch.setattr(Soft, "weighs_samples", True)
    assert counts() > {3 * STEPS}

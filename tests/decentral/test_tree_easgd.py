"""What tells TreeEASGD apart: a model pulls only who gets it, so that nothing is conserved."""

from __future__ import annotations

import pytest
import torch

import covey
from covey import catalog
from covey.decentral.elastic.tree_easgd import NeighbourPull, places
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from tests.worlds import INSTANT, quadratic, run, slowed, spread, worker


def test_only_the_receiver_is_pulled() -> None:
    """One message up, before the root's second step: w0 moves by a (w1 - w0), w1 stays; EASGD keeps the sum."""
    starts: list[torch.Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.extend(replica.flat.parts[0].clone() for replica in replicas.values())

    world = run(quadratic(lr=0.0), "tree_easgd(up=1, down=9, pull=0.3)", 2, steps=1, cluster=INSTANT, before=before)
    assert torch.equal(world.flat(worker(1)), starts[1])
    assert torch.allclose(world.flat(worker(0)), starts[0] + 0.3 * (starts[1] - starts[0]), atol=1e-12)
    assert torch.equal(world.scored["w"], world.flat(worker(0))), "the root is scored"


def test_without_a_learning_rate_all_come_together() -> None:
    world = run(quadratic(lr=0.0), "tree_easgd(fanout=2, up=1, down=1)", 7, steps=200, before=spread())
    for rank in range(1, 7):
        assert torch.allclose(world.flat(worker(rank)), world.flat(worker(0)), atol=1e-3)


def test_the_tree() -> None:
    tree = places(7, fanout=2, up=10, down=100, slower=3.0)
    assert [place.parent for place in tree] == [None, 0, 0, 1, 1, 2, 2]
    assert [place.children for place in tree[:3]] == [(1, 2), (3, 4), (5, 6)]
    assert [(place.up, place.down) for place in tree[1:4:2]] == [(30, 100), (10, 33)]
    assert tree[0].down == 300, "nearer to the root it is slower"


def test_messages_go_along_the_tree_at_their_periods() -> None:
    log = run(quadratic(), "tree_easgd(fanout=2, up=3, down=5)", 5, steps=15).log
    links = [(sent.sender.rank, sent.to.rank) for sent in log.kinds(NeighbourPull)]
    assert {link: links.count(link) for link in links} == {
        **dict.fromkeys([(1, 0), (2, 0), (3, 1), (4, 1)], 5), **dict.fromkeys([(0, 1), (0, 2), (1, 3), (1, 4)], 3)
    }  # fmt: skip


def test_nobody_waits_for_anybody_before_the_end() -> None:
    world = run(quadratic(), "tree_easgd(up=1, down=1)", 3, steps=8, cluster=slowed(INSTANT, w1=10))
    ends = {rank: max(end for _, end, who in world.log.computes if who.rank == rank) for rank in range(3)}
    assert (ends[0], ends[2]) == (pytest.approx(0.08), pytest.approx(0.08))


def test_at_the_target_a_slow_worker_need_not_catch_up() -> None:
    """It ends after the step that it is in, and not at the step of the foremost."""
    cluster = slowed(INSTANT, w1=50)
    result = covey.fit(
        "examples/digits.py", "tree_easgd", 2, engine="simulated", cluster=cluster, until="accuracy>=0.5", scores=4
    )  # fmt: skip
    assert result.reached is not None
    slow_step = 50 * 0.01
    assert result.seconds <= result.reached.seconds + 2 * slow_step


def test_the_pull_follows_from_the_fanout() -> None:
    assert catalog.resolve("tree_easgd(fanout=2)", 4).text == "tree_easgd(fanout=2, up=10, down=100, pull=0.3)"


@pytest.mark.parametrize("settings", ["pull=0", "pull=1.5", "fanout=0", "up=0", "slower=0.5"])
def test_what_cannot_work_is_refused(settings: str) -> None:
    with pytest.raises(PlanError):
        catalog.resolve(f"tree_easgd({settings})", 4)

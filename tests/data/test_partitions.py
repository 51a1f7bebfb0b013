"""Rows that stay where they are, of which workers may have different numbers."""

from __future__ import annotations

import pytest

from covey.data.partitions import Partitions, RowInfo
from covey.engines.virtual import VirtualEngine
from covey.model import build
from covey.model.scored import ScoredModel
from covey.observe.referee import Referee
from covey.run.options import options
from covey.run.request import request
from tests.worlds import CLUSTER, quadratic


@pytest.mark.parametrize("spec", ["allreduce", "poseidon", "bytescheduler(exchange=allreduce)", "firecaffe", "bsp"])
def test_the_last_updates_of_the_longest_share_are_in_the_model(spec: str) -> None:
    """12 rows and 2, all of them 0, by twos: six updates, each of which leaves nine tenths."""
    rows = RowInfo((12, 2), (((5,), "float64"),))
    asked = request(quadratic(batch_size=2), spec, 2, options({"engine": "simulated", "epochs": 1}), rows)
    replicas = {
        role.address: build.replica(asked.task, role.address, role.trains, asked.deal, asked.budget, role.part)
        for role in asked.plan.roles
    }
    outcome = VirtualEngine(asked.plan, replicas, CLUSTER, [], Referee(asked.deal.samples)).run()
    score = ScoredModel(build.model(asked.task, 0), None)
    score.assemble(outcome.snapshots)
    assert score.state()["w"].tolist() == pytest.approx([0.9**6] * 5)


def test_every_worker_and_every_epoch_has_an_order_of_its_own() -> None:
    deal = Partitions.of((40, 40, 40), 8, seed=3)
    orders = {(rank, epoch): tuple(deal.shard(epoch, rank).tolist()) for rank in range(3) for epoch in range(2)}
    assert all(sorted(order) == list(range(40)) for order in orders.values()), "all of its rows, once"
    assert len(set(orders.values())) == 6
    assert Partitions.of((40, 40, 40), 8, seed=4).shard(0, 0).tolist() != deal.shard(0, 0).tolist()


def test_no_worker_ends_after_worker_0() -> None:
    """It leads, and where all models are the same it is the one that is scored."""
    with pytest.raises(AssertionError, match="worker 0 ends last"):
        Partitions.of((2, 12), 2, seed=0)

"""Sums that are charged by a formula take as long as their messages would."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import covey
from covey.exchange.collectives.sums import ring
from covey.message import Address
from covey.model.replica import Replica
from covey.observe.result import Result
from covey.program import Node
from covey.simulate import Cluster, Link, Seconds, parse_rate
from covey.vector import Vector
from tests.engines.stage import Log, run

UNEQUAL = Cluster(
    compute=Seconds(0.005), jitter=0.3, slowdowns={1: 3.0},
    links={
        "worker 0": Link(bandwidth=parse_rate("10mbit"), latency=Seconds(0.005)),
        "worker 3": Link(bandwidth=parse_rate("25gbit")),
    },
)  # fmt: skip
WORLDS = {
    "even": Cluster(), "unequal": UNEQUAL, "fair": replace(UNEQUAL, sharing="fair"),
    "headers": Cluster(link=Link(bandwidth=parse_rate("10mbit"), headers=0.05)),
}  # fmt: skip


def timed(spec: str, workers: int, world: Cluster) -> Result:
    return covey.fit(
        "examples/digits.py", spec, workers, engine="simulated", timing_only=True, steps=3, cluster=world
    )  # fmt: skip


def test_what_is_only_timed_has_no_loss() -> None:
    found = timed("bsp", 2, Cluster())
    assert found.history and all(row["loss"] is None for row in found.history) and "loss" not in repr(found)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("workers", [2, 5, 16])
def test_a_ring_by_its_formula(workers: int, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = WORLDS[world] if workers > 3 else replace(WORLDS[world], links={})
    said = timed("allreduce", workers, cluster)
    monkeypatch.setattr("covey.run.simulated.LARGE", 2)
    charged = timed("allreduce", workers, cluster)
    assert charged.seconds == pytest.approx(said.seconds, rel=0.01)
    assert charged.traffic.bytes == said.traffic.bytes
    assert charged.traffic.messages < said.traffic.messages or workers == 2, "the messages were sent after all"


def test_rings_of_one_size_do_not_mix() -> None:
    """Two pairs sum at the same time, neither of them in step; then the pairs are others."""

    def ends(formulas_from: int | None) -> list[tuple[float, str]]:
        log = Log()

        async def sums(node: Node, replica: Replica) -> None:
            await node.sleep(0.001 * node.rank)
            for one, other in ((node.rank // 2 * 2, node.rank // 2 * 2 + 1), (node.rank % 2, node.rank % 2 + 2)):
                group = (Address("worker", one), Address("worker", other))
                await node.sum(Vector([torch.ones(1000)]), group, ring)
                await log.at(node, str(node.address))

        run(*[sums] * 4, formulas_from=formulas_from)
        return sorted(log)

    by_formula, by_messages = ends(2), ends(None)
    assert [who for _, who in by_formula] == [who for _, who in by_messages]
    assert [at for at, _ in by_formula] == pytest.approx([at for at, _ in by_messages], rel=0.01)


def test_the_largest_ring_whose_messages_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    said = timed("local_sgd(period=3)", 64, UNEQUAL)
    monkeypatch.setattr("covey.run.simulated.LARGE", 64)
    assert timed("local_sgd(period=3)", 64, UNEQUAL).seconds == pytest.approx(said.seconds, rel=0.01)


def test_other_patterns_and_real_numbers_are_never_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.run.simulated.LARGE", 2)
    spec, same = "local_sgd(period=1, pattern=star)", {"engine": "simulated", "steps": 1}
    assert timed(spec, 4, Cluster()).traffic.messages == 3 * 6
    trained = covey.fit("examples/digits.py", "allreduce", 4, **same)
    assert trained.traffic.messages == 2 * 3 * 4


def test_a_thousand_workers_on_less_data_than_they_are() -> None:
    result = timed("allreduce", 2000, Cluster(compute=Seconds(0.02)))
    assert result.samples == 3 * 2000 * 32
    assert result.notes["rings by formula"] == 3


def test_a_rate_of_links_is_kept_to_by_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.run.simulated.LARGE", 2)
    same = {"engine": "simulated", "timing_only": True, "steps": 3}
    free, held = (covey.fit("examples/digits.py", "allreduce", 4, **same, link_rate=rate) for rate in (None, "1mbit"))
    assert held.traffic.messages == 3 * 2 * 3 * 4 > free.traffic.messages
    assert held.seconds > 5 * free.seconds

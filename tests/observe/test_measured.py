"""What covey measures of a run beside its metrics: consensus, the staleness of each worker, what links carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey.message import Address
from covey.model.scored import ScoredModel, Snapshot
from covey.observe.facts import NOW
from covey.observe.journal import JournalScore, read_now
from covey.observe.records import RunRecordFolder
from covey.observe.tally import GradientAge, Tally, Teller, mean_ages
from covey.vector import Vector

DIGITS = "examples/digits.py"


def measured(strategy: str, tmp_path: Path, **more: object) -> list[dict[str, float]]:
    result = covey.fit(DIGITS, strategy, 4, engine="simulated", epochs=2, scores=2, runs=tmp_path / strategy, **more)  # type: ignore[arg-type]
    assert result.record and all(not name.startswith("covey:") for row in result.history for name in row)
    return [event.measured for event in RunRecordFolder(result.record).events if isinstance(event, JournalScore)]


def test_replicas_that_drift_apart_have_a_distance_and_equal_ones_none(tmp_path: Path) -> None:
    assert measured("bsp", tmp_path) == [{}] * 5, "only the server has the model"
    apart = [score["consensus"] for score in measured("local_sgd(period=7)", tmp_path)]
    assert apart[0] == 0 and max(apart) > 0.001, "they begin alike, and differ between two averages"
    gossip = [score["consensus"] for score in measured("dpsgd", tmp_path)]
    alone = [score["consensus"] for score in measured("local_sgd(period=1000)", tmp_path)]
    assert 0 < gossip[-2] < alone[-2], "neighbours that mix stay nearer than workers that do not"


def test_the_distance_is_the_root_of_the_mean_square() -> None:
    model = ScoredModel(nn.Linear(4, 1, bias=False), lambda module: {"accuracy": 1.0})
    parts = [_whole(model, value) for value in (1.0, 3.0)]
    assert model.score(parts) == {"accuracy": 1.0, "covey:consensus": pytest.approx(2.0)}  # root of 4 x (1 + 1) / 2
    assert model.score(parts[:1]) == {"accuracy": 1.0}


def _whole(model: ScoredModel, value: float) -> Snapshot:
    params = model.flat.params.map(lambda part: torch.full_like(part, value))
    piece = tuple((0, part.numel()) for part in params.parts)
    return Snapshot(piece, params, Vector(()), 1.0)


def test_staleness_belongs_to_the_worker_whose_gradient_it_is() -> None:
    teller, server, workers = Teller(), Address("server", 0), [Address("worker", rank) for rank in range(2)]
    for rank, age in [(0, 0), (1, 4), (1, 2)]:
        teller.noted(0.0, server, "staleness", GradientAge(age, workers[rank]))
    teller.noted(0.0, workers[0], "staleness", 3)
    assert mean_ages(teller.tallies.values()) == {"worker 0": 1.5, "worker 1": 3.0}
    assert teller.of(server).staleness == {0: 1, 4: 1, 2: 1}
    one = Tally(who=server)
    one.merge(teller.of(server))
    one.merge(teller.of(server))
    assert mean_ages([one]) == {"worker 0": 0.0, "worker 1": 3.0} and one.aged == {"worker 0": 2, "worker 1": 4}


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_slow_worker_is_stale_and_links_carry_what_the_result_says(tmp_path: Path, engine: str) -> None:
    result = covey.fit(DIGITS, "asynchronous", 2, engine=engine, epochs=2, runs=tmp_path)
    assert result.record
    now = read_now(result.record)
    assert now and now.phase == "ended" and set(now.roles) == {"worker 0", "worker 1", "server 0"}
    flat = {f"{sender}->{to}": size for sender, peers in now.links.items() for to, size in peers.items()}
    assert flat == result.traffic.by_link
    ages = [now.roles[f"worker {rank}"].staleness for rank in range(2)]
    assert all(age is not None and age >= 0 for age in ages) and now.roles["server 0"].staleness is None
    assert result.staleness.mean is not None
    assert min(ages) <= result.staleness.mean <= max(ages)  # type: ignore[type-var]


def test_in_virtual_time_the_slow_worker_is_the_stale_one(tmp_path: Path) -> None:
    cluster = covey.simulate.Cluster(compute=0.01, slowdowns={1: 5.0})
    result = covey.fit(DIGITS, "asynchronous", 3, engine="simulated", epochs=2, cluster=cluster, runs=tmp_path)
    assert result.record
    now = json.loads((result.record / NOW).read_text())["roles"]
    assert now["worker 1"]["staleness"] > 1.5 * max(now[f"worker {rank}"]["staleness"] for rank in (0, 2))

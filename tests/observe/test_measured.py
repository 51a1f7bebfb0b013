"""What covey measures of a run beside its metrics: consensus, the staleness of each worker, what links carry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import covey
from covey.exchange.gradient_noise import measure_noise
from covey.message import Address
from covey.model.scored import ScoredModel, Snapshot
from covey.observe.facts import NOW
from covey.observe.journal import JournalMoment, JournalScore, read_now
from covey.observe.records import RunRecordFolder
from covey.observe.tally import GradientAge, Tally, Teller, mean_ages, read_measured
from covey.task import load_task
from covey.vector import Vector

DIGITS = "examples/digits.py"


def measured(strategy: str, tmp_path: Path, **more: object) -> list[dict[str, float]]:
    result = covey.fit(DIGITS, strategy, 4, engine="simulated", epochs=2, scores=2, runs=tmp_path / strategy, **more)  # type: ignore[arg-type]
    assert result.record and all(not name.startswith("covey:") for row in result.history for name in row)
    return [event.measured for event in RunRecordFolder(result.record).events if isinstance(event, JournalScore)]


def test_replicas_that_drift_apart_have_a_distance_and_equal_ones_none(tmp_path: Path) -> None:
    assert all("consensus" not in score for score in measured("bsp", tmp_path)), "only the server has the model"
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


def test_a_mean_is_of_what_was_measured_since_the_score_before() -> None:
    teller, workers = Teller(), [Address("worker", rank) for rank in range(2)]
    for values, mean in (([0.5, 1.5], 1.0), ([4.0, 8.0], 6.0), ([], None), ([2.0, 3.0], 2.5)):
        for who, value in zip(workers, values, strict=False):
            teller.measured(who, "compression", value)
        found = read_measured(teller.tallies.values())
        assert found == ({} if mean is None else {"covey:compression": mean})


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


def test_a_coarser_codec_loses_more_and_plain_vectors_nothing(tmp_path: Path) -> None:
    def error(codec: str) -> float:
        found = measured(f"asynchronous + {codec}", tmp_path)
        return next(score["compression"] for score in found if "compression" in score)

    fine, coarse = error("topk(density=0.5)"), error("topk(density=0.01)")
    assert 0 < fine < coarse <= 1
    assert all("compression" not in score for score in measured("asynchronous", tmp_path))


def test_measuring_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def history() -> object:
        found = covey.fit(DIGITS, "bsp + qsgd", 2, engine="simulated", epochs=1, runs=False)
        return found.history[1:], found.seconds, found.notes  # the first line has no loss yet

    once = history()
    monkeypatch.setattr("covey.exchange.compression_error.SAMPLED", 2)
    monkeypatch.setattr("covey.exchange.gradient_noise.SAMPLED", 2)
    assert history() == once


def test_the_noise_scale_is_that_of_gradients_whose_noise_is_known() -> None:
    told: dict[str, list[float]] = {}
    node = SimpleNamespace(host=SimpleNamespace(measure=lambda kind, value: told.setdefault(kind, []).append(value)))
    chance = torch.Generator().manual_seed(1)
    for _ in range(300):  # a gradient of norm 2, and noise of variance 3 in each of 50 numbers of a sample's gradient
        true = torch.zeros(50)
        true[0] = 2.0
        grads = [Vector([true + torch.randn(50, generator=chance) * (3 / 8) ** 0.5]) for _ in range(4)]
        measure_noise(node, grads, [8] * 4)  # type: ignore[arg-type]
    tally = Tally(who=Address("server", 0))
    for kind, values in told.items():
        tally.sums[kind], tally.counts[kind] = sum(values), len(values)
    assert read_measured([tally]) == {"covey:noise": pytest.approx(50 * 3 / 4, rel=0.1)}
    assert read_measured([tally]) == {}, "what was read counts no more"
    measure_noise(node, grads[:1], [8])  # type: ignore[arg-type]
    assert len(told["squared gradient"]) == 300, "one gradient says nothing of its noise"


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_runs_have_a_noise_scale(tmp_path: Path, engine: str) -> None:
    result = covey.fit(DIGITS, "bsp", 4, engine=engine, epochs=3, runs=tmp_path)
    assert result.record
    events = RunRecordFolder(result.record).events
    assert any(event.measured.get("noise", 0) > 0 for event in events if isinstance(event, JournalScore))


def test_workers_without_servers_find_the_same_noise_scale(tmp_path: Path) -> None:
    """Each knows its own gradient and the mean of all; with plain SGD a model's change is its gradient."""
    task = replace(load_task(DIGITS), optimizer=lambda params: torch.optim.SGD(params, lr=0.05))

    def noise(strategy: str) -> list[float]:
        found = covey.fit(task, strategy, 4, engine="simulated", epochs=3, runs=tmp_path / strategy.partition("(")[0])
        assert found.record
        events = RunRecordFolder(found.record).events
        scores = [event.measured for event in events if isinstance(event, JournalScore)]
        return [score["noise"] for score in scores if "noise" in score]

    wanted = noise("bsp")
    assert len(wanted) == 2 and min(wanted) > 0, "of steps 1 and 21"
    for strategy in ("allreduce", "allreduce(bucket=4KB)", "local_sgd(period=1)"):
        assert noise(strategy) == pytest.approx(wanted, rel=1e-3), strategy
    (later,) = noise("local_sgd(period=4)")
    assert wanted[0] / 3 < later < 3 * wanted[0], "about the same over four steps"


def test_momentum_hides_the_noise_of_a_models_change(tmp_path: Path) -> None:
    assert all("noise" not in score for score in measured("local_sgd(period=1)", tmp_path))


def test_runs_that_are_only_timed_have_nothing_to_measure(tmp_path: Path) -> None:
    result = covey.fit(DIGITS, "bsp + int8", 2, engine="simulated", steps=30, timing_only=True, runs=tmp_path)
    assert result.updates == 30 and result.record
    moments = [event for event in RunRecordFolder(result.record).events if isinstance(event, JournalMoment)]
    assert [moment.phase for moment in moments] == ["training", "ended"], "they are shown while they go, too"

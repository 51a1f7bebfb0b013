"""Cut models on real processes: what they learn, how they go on, also with another cut, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory
from covey.errors import CheckpointError, PeerLost
from tests.real.harness import Room, Watch, differing, fit, interrupt, trained
from tests.real.test_continue import Killer, check

DEEP = (
    "nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 12), nn.Tanh(), "
    "nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)).double()"
)
STRATEGIES = ("bsp", "ssp(bound=2)", "asynchronous", "allreduce", "local_sgd(period=3)", "easgd(period=2)")
QUICK = [("asynchronous", "1f1b"), ("allreduce", "pipedream")]


def deep(room: Room, **given: Any) -> str:
    return room.task(**{
        "model": DEEP, "dtype": "torch.float64", "samples": 64, "batch_size": 8, "before_step": "time.sleep(0.002)",
        "options": "evaluate=score", **given,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "timetable"),
    [
        pytest.param(strategy, timetable, marks=() if (strategy, timetable) in QUICK else pytest.mark.full)
        for strategy in STRATEGIES
        for timetable in ("gpipe", "1f1b", "pipedream")
    ],
)
def test_stages_times_replicas(room: Room, strategy: str, timetable: str) -> None:
    mesh = f"mesh(replica=2, stage=2, timetable={timetable}, cut=4)"
    result = fit(deep(room), f"{strategy} with {mesh}", 4, epochs=2)
    assert result.samples == 2 * 64 and result.stopped == "budget"
    assert result.taxonomy["parallelism"] == "model + data"
    assert result.history[-1]["samples"] == 2 * 64


def test_real_and_virtual_learn_the_same(room: Room) -> None:
    mesh = "allreduce with mesh(stage=2, timetable=1f1b, cut=4, load=50:50)"
    real = fit(deep(room), mesh, 2, epochs=3)
    assert not differing(real.weights, fit(deep(room), mesh, 2, epochs=3, engine="simulated").weights)


@pytest.mark.parametrize("victims", [("worker 1", "worker 2"), pytest.param(("worker 0",) * 5, marks=pytest.mark.full)])
def test_a_lost_worker_is_restarted_with_its_part_of_another_replica(room: Room, victims: tuple[str, ...]) -> None:
    killer, mesh = Killer(room, *victims), "allreduce with mesh(replica=2, stage=2, cut=4)"
    result = fit(deep(room), mesh, 4, epochs=4 * len(victims), on_failure="continue", watcher=killer)
    check(result, killer, list(victims))
    assert not differing(result.weights, fit(deep(room), mesh, 4, epochs=4 * len(victims)).weights)


@pytest.mark.parametrize("timetable", ["gpipe", "pipedream", pytest.param("2bw", marks=pytest.mark.full)])
def test_an_interrupted_pipeline_goes_on_to_the_very_same_weights(room: Room, timetable: str) -> None:
    """Also with batches in flight: they set out again, with the weights that they had."""
    kept, mesh = room.path / "kept", f"bsp with mesh(stage=3, timetable={timetable}, cut=3:5)"
    whole = fit(deep(room), mesh, 3, epochs=6, engine="simulated")
    watch = Watch(trained(100), interrupt)
    broken = fit(deep(room), mesh, 3, epochs=6, checkpoint=kept, every="1h", watcher=watch)
    assert broken.stopped == "interrupted"
    resumed = fit(deep(room), mesh, 3, epochs=6, resume=kept)
    assert not differing(whole.weights, resumed.weights)
    assert (resumed.samples, resumed.updates) == (whole.samples, whole.updates)


@pytest.mark.parametrize(
    ("strategy", "before", "after"),
    [
        ("bsp", "mesh(stage=2, timetable=plain, cut=4)", "mesh(stage=3, timetable=plain, cut=1:5)"),
        pytest.param("local_sgd(period=3)", "mesh(replica=2, stage=2, timetable=plain)", "", marks=pytest.mark.full),
        pytest.param("bsp", "", "mesh(stage=2, timetable=plain)", marks=pytest.mark.full),
    ],
)
def test_a_checkpoint_of_one_cut_goes_on_with_another(room: Room, strategy: str, before: str, after: str) -> None:
    replicas = 2 if "replica=2" in before else 1

    def spec(mesh: str) -> tuple[str, int]:
        stages = int(mesh.partition("stage=")[2][:1] or 1)
        return (f"{strategy} with {mesh}" if mesh else strategy), replicas * stages

    kept = room.path / "kept"
    whole = fit(deep(room), *spec(before), epochs=6, engine="simulated")
    fit(deep(room), *spec(before), epochs=6, checkpoint=kept, every="1h", watcher=Watch(trained(100), interrupt))
    resumed = fit(deep(room), *spec(after), epochs=6, resume=kept)
    assert resumed.samples == whole.samples
    for name, value in whole.weights.items():  # the same batches, momentum and dropout: only computed elsewhere
        assert float((value.double() - resumed.weights[name].double()).abs().max()) < 1e-10, name


def test_a_pipeline_that_never_flushes_goes_on_with_another_cut(room: Room) -> None:
    """What was in flight sets out again, with the newest weights."""
    kept, mesh = room.path / "kept", "bsp with mesh(stage={}, timetable=pipedream, cut={})"
    watch = Watch(trained(100), interrupt)
    fit(deep(room), mesh.format(3, "3:5"), 3, epochs=6, checkpoint=kept, every="1h", watcher=watch)
    resumed = fit(deep(room), mesh.format(2, "4"), 2, epochs=6, resume=kept)
    assert resumed.samples == 6 * 64 and resumed.stopped == "budget"


def test_what_another_cut_cannot_have_is_said(room: Room) -> None:
    kept = room.path / "kept"
    watch = Watch(trained(100), interrupt)
    fit(deep(room), "bsp with mesh(stage=2, cut=4)", 2, epochs=6, checkpoint=kept, watcher=watch)
    assert CheckpointDirectory(kept).all()
    with pytest.raises(CheckpointError, match="replica x shard x expert = 1, this one has 2"):
        fit(deep(room), "bsp with mesh(replica=2, stage=2)", 4, epochs=6, resume=kept)


def test_a_lost_stage_is_named(room: Room) -> None:
    with pytest.raises(PeerLost, match="worker 1"):
        fit(
            deep(room), "allreduce with mesh(stage=2, cut=4)", 2, epochs=200,
            watcher=Watch(trained(50), lambda: room.kill("worker 1")),
        )  # fmt: skip
    assert not list(Path(room.temporary).iterdir())

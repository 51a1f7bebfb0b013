"""Varuna's morphing: when machines come and go a mesh starts again with another layout, and learns the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import covey
from covey.checkpoint import CheckpointDirectory
from covey.errors import CheckpointError, PeerLost, PlanError
from covey.observe.result import Result
from covey.parallelism.plan.fastest import fastest
from covey.parallelism.plan.profile import LayerCost, Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.terms import CutTerms
from covey.run.morphing import morphing_run as morphing
from covey.simulate import BytesPerSecond, Cluster, Link, Machine, Seconds
from tests.worlds import mlp, sgd

SLOW = Cluster(compute=Seconds(0.04), link=Link(bandwidth=BytesPerSecond(1e7), latency=Seconds(0.0)))
VARUNA = "varuna with mesh(microbatches=2)"


def deep() -> nn.Module:
    wide = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), *wide, nn.Linear(64, 3)).double()


def run(workers: int | str, tmp_path: Path, trace: str = "", strategy: str = VARUNA, **given: Any) -> Result:
    """16 samples in a step, in micro-batches of 4."""
    file = tmp_path / "trace.csv"
    file.write_text("time,worker,event,notice\n" + trace)
    task = mlp(sgd(momentum=0.9), samples=64, model=deep)
    usual = {"cluster": SLOW, "epochs": 5, "engine": "simulated", "runs": False}
    told = {"spot_trace": file} if trace else {}
    return covey.fit(task, strategy, workers, **{**usual, **told, **given})


def apart(one: Result, other: Result) -> float:
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


def layouts(result: Result) -> list[str]:
    return [event.cause.partition(" before, ")[2] for event in result.membership or [] if event.event == "restart"]


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(4, tmp_path_factory.mktemp("still"))


TRACES = {
    "with a notice": ("300ms,3,depart,200ms\n", 1),
    "without one": ("400ms,3,depart,\n", 1),
    "and back": ("300ms,3,depart,200ms\n1500ms,3,arrive,\n", 2),
    "machines that keep their numbers": ("200ms,1,depart,100ms\n1400ms,3,depart,100ms\n", 2),
    "one after the other": ("200ms,1,depart,100ms\n1400ms,2,depart,100ms\n2600ms,0,depart,100ms\n", 3),
}


@pytest.mark.parametrize("name", TRACES)
def test_the_layout_changes_and_the_batch_of_all_replicas_does_not(name: str, still: Result, tmp_path: Path) -> None:
    trace, morphs = TRACES[name]
    result = run("1:4", tmp_path, trace, checkpoint=tmp_path / "kept", every="150ms")
    found = layouts(result)
    assert len(found) == morphs and "3 stages x 1 replica from now on" in found, "and no longer 2 stages x 2 replicas"
    assert apart(result, still) < 1e-10
    assert result.samples == still.samples
    stalled = [event.stalled for event in result.membership or [] if event.event == "restart"]
    assert stalled == [morphing.STARTING] * morphs and result.seconds > sum(stalled)
    assert result.workers == 4
    assert result.goodput is not None
    assert (result.goodput.repeated > 0) == (name == "without one"), "only what was not kept is done again"


def test_a_range_whose_machines_stay_is_a_run_of_the_largest_number(still: Result, tmp_path: Path) -> None:
    result = run("2:4", tmp_path)
    assert apart(result, still) == 0 and result.seconds == still.seconds and not result.membership


def test_machines_that_are_to_spare_come_and_go_unnoticed(still: Result, tmp_path: Path) -> None:
    trace = "100ms,3,depart,50ms\n1600ms,3,arrive,\n1700ms,3,depart,\n"
    result = run("1:4", tmp_path, trace)
    assert layouts(result)[0].startswith("3 stages x 1 replica")
    assert apart(result, still) < 1e-10


def test_one_machine_takes_as_long_as_the_batch_of_all_replicas_does(tmp_path: Path) -> None:
    """All but one are lost before the first step ends: 20 steps follow, of 16 samples, of which 8 take 40 ms."""
    result = run("1:4", tmp_path, "".join(f"10ms,{rank},depart,\n" for rank in (1, 2, 3)))
    assert result.seconds == pytest.approx(0.010 + morphing.STARTING + 20 * 0.080)
    assert layouts(result) == ["1 stage x 1 replica from now on"], "two more departed while the run started again"


def test_a_run_goes_on_a_second_after_it_was_kept(tmp_path: Path) -> None:
    """Not after the notice: the step that was under way is ended before."""
    result = run("1:2", tmp_path, "263ms,1,depart,250ms\n", epochs=1)
    (ended,) = [event.seconds for event in result.membership or [] if event.event == "restart"]
    left = (result.seconds - ended - morphing.STARTING) / 0.040
    assert ended > 0.013 and left == pytest.approx(round(left), abs=1e-6), "whole steps of one machine"


def test_replicas_that_pass_over_the_data_in_unequal_numbers_of_steps_are_not_considered() -> None:
    def deals(samples: int) -> list[int]:
        run: Any = SimpleNamespace(
            microbatches=4, batch=16, asked=SimpleNamespace(deal=SimpleNamespace(samples=samples))
        )
        return [number for number in range(1, 5) if morphing.MorphingRun._deals(run, number)]

    assert deals(64) == [1, 2, 4] and deals(65) == [1], "33 and 32 samples are 5 and 4 batches of 8"


def test_too_few_machines_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match="at least 3"):
        run("3:4", tmp_path, "100ms,0,depart,\n1500ms,1,depart,\n")


def test_checkpoints_of_an_earlier_run_are_neither_used_nor_replaced(tmp_path: Path) -> None:
    run("1:4", tmp_path, checkpoint=tmp_path / "kept", every="150ms")
    with pytest.raises(CheckpointError, match="earlier run"):
        run("1:4", tmp_path, checkpoint=tmp_path / "kept", every="150ms", epochs=6)


def test_a_slow_machine_stays_slow_in_each_layout_that_uses_it_and_only_there(tmp_path: Path) -> None:
    slow = replace(SLOW, slowdowns={3: 4.0}, links={"worker 3": SLOW.link})
    begin = "100ms,{},depart,50ms\n"
    plain, without, with_it = (
        run("1:4", tmp_path, begin.format(who), cluster=cluster) for cluster, who in ((SLOW, 0), (slow, 3), (slow, 0))
    )
    assert layouts(without)[0].startswith("3 stages x 1 replica"), "workers 0 to 2"
    assert with_it.seconds - morphing.STARTING > 2 * (plain.seconds - morphing.STARTING)
    assert without.seconds - morphing.STARTING < 2 * (plain.seconds - morphing.STARTING)


@pytest.fixture
def two_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a third machine did not help: with three, one is spare."""
    monkeypatch.setattr(morphing, "fastest", lambda profile, most, *rest: fastest(profile, min(most, 2), *rest))


@pytest.mark.usefixtures("two_suffice")
def test_what_the_trace_says_of_the_time_after_the_end_does_not_happen(still: Result, tmp_path: Path) -> None:
    trace = "100ms,0,depart,50ms\n1h,3,depart,\n2h,1,depart,\n"
    result = run("3:4", tmp_path, trace)
    assert [event.event for event in result.membership or []] == ["leave", "restart"]
    assert not result.failures and apart(result, still) < 1e-10


@pytest.mark.usefixtures("two_suffice")
def test_a_spare_machine_whose_departure_leaves_too_few_ends_the_run(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(PeerLost, match="at least 3"):
        run("3:4", tmp_path, "100ms,0,depart,50ms\n1500ms,3,depart,\n", checkpoint=kept, every="50ms")
    assert CheckpointDirectory(kept).newest()[1].progress["seconds"] <= 1.5, "then, not after the last step"


def layers(weights: int, sends: int) -> Profile:
    layer = LayerCost(forward=0.01, backward=0.02, weights=weights, sends=sends, returns=sends)
    return Profile((layer,) * 4)


@pytest.mark.parametrize(
    ("weights", "sends", "memory", "wanted"),
    [
        (1 << 10, 1 << 10, 1e12, (1, 4)),  # a fast network for what is summed: replicas
        (1 << 26, 1 << 10, 1e12, (4, 1)),  # large weights: only activations travel
        (1 << 10, 1 << 10, 5 << 10, (2, 2)),  # two layers fit a machine, with their gradients
    ],
)
def test_the_fastest_layout_follows_from_weights_activations_and_memory(
    weights: int, sends: int, memory: float, wanted: tuple[int, int]
) -> None:
    terms = CutTerms(stages=None, schedule=Schedule(microbatches=1), bandwidth=1e8, memory=memory)
    found = fastest(layers(weights, sends), 4, 8, terms, (1, 2, 4))
    assert found is not None and (found.stages, found.replicas) == wanted
    assert fastest(layers(weights, sends), 4, 8, CutTerms(stages=None, memory=1.0), (1, 2, 4)) is None


def test_of_equally_fast_layouts_the_smallest_is_taken() -> None:
    free = Profile((LayerCost(forward=0.0, backward=0.0, weights=0, sends=0, returns=0),) * 4)
    found = fastest(free, 4, 8, CutTerms(stages=None, schedule=Schedule(microbatches=1), bandwidth=1e8), (1, 2, 4))
    assert found is not None and found.machines == 1


@pytest.mark.parametrize(
    ("strategy", "given", "told"),
    [
        ("ssp with mesh(stage=2)", {}, "only replicas of allreduce"),
        ("allreduce + int8 with mesh(stage=2)", {}, "only replicas of allreduce"),
        ("allreduce with mesh(stage=2, timetable=pipedream)", {}, "only plain pipelines"),
        (VARUNA, {"engine": "local", "cluster": None}, "in virtual time only"),
        (VARUNA, {"faults": "kill worker 1@5s"}, "spot_trace"),
        (VARUNA, {"cluster": replace(SLOW, kills={"worker 1": Seconds(0.3)})}, "spot_trace"),
        (VARUNA, {"cluster": replace(SLOW, machines=(Machine(cores=2),) * 4)}, "machines that roles share"),
    ],
)
def test_what_is_refused(strategy: str, given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=told):
        run("2:4", tmp_path, strategy=strategy, **given)


def test_a_batch_that_follows_the_replicas_is_found(
    still: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted mistake: each replica does what it did before."""
    monkeypatch.setattr(morphing.MorphingRun, "batch", property(lambda self: 8 if self.log.events else 16))
    result = run("1:4", tmp_path, TRACES["with a notice"][0], checkpoint=tmp_path / "kept", every="150ms")
    assert apart(result, still) > 1e-6

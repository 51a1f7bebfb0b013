"""Runs on machines that come and go by a trace, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import covey
from covey.engines.virtual.computing import Computing
from covey.errors import PeerLost, PlanError
from covey.simulate import Cluster, Seconds
from tests.worlds import mlp, sgd

STEPS = 12
WORLD = Cluster(compute=Seconds(0.01), price={0: 3.6, 1: 3.6, 2: 3.6}, spot_price={1: 0.36, 2: 0.36})


def run(tmp_path: Path, *lines: str, strategy: str = "bsp", **given: Any) -> covey.Result:
    file = tmp_path / "spot.csv"
    file.write_text("\n".join(["time,worker,event,notice", *lines]))
    usual: dict[str, Any] = {"workers": "1:3", "steps": STEPS, "cluster": WORLD}
    return covey.fit(
        mlp(sgd(momentum=0.9)), strategy, engine="simulated", runs=False, **{"spot_trace": file, **usual, **given}
    )  # fmt: skip


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who began a batch, of all runs so far."""
    found: list[str] = []
    begin = Computing._begin

    def noting(self: Any, thread: Any, effect: Any) -> None:
        found.append(thread.actor.name)
        begin(self, thread, effect)

    monkeypatch.setattr(Computing, "_begin", noting)
    return found


def events(result: covey.Result) -> list[str]:
    return [f"{event.event} {event.who}: {event.cause}" for event in result.membership or []]


@pytest.mark.parametrize("strategy", ["bsp", "ssp(bound=1)", "asynchronous", "easgd(period=1)"])
def test_every_sample_counts_once_and_notices_save_the_batch_that_was_begun(
    tmp_path: Path, strategy: str, begun: list[str]
) -> None:
    plain = covey.fit(mlp(sgd(momentum=0.9)), strategy, 3, engine="simulated", steps=STEPS, cluster=WORLD, runs=False)
    told = run(tmp_path, "45ms,1,depart,20ms", "80ms,1,arrive,", strategy=strategy)
    if strategy != "easgd(period=1)":  # whose last force is on its way when its worker goes
        assert len(begun) == 2 * 3 * STEPS, "no batch is begun in vain"
    begun.clear()
    lost = run(tmp_path, "45ms,1,depart,", "80ms,1,arrive,", "900s,2,depart,", strategy=strategy)
    assert len(begun) > 3 * STEPS
    assert told.samples == lost.samples == plain.samples and told.failures == lost.failures == []
    assert events(told) == ["leave worker 1: left after a notice", "join worker 1: joined"]
    assert events(lost) == ["leave worker 1: left", "join worker 1: joined"]
    assert told.goodput and lost.goodput and told.goodput.accepted == lost.goodput.accepted == plain.samples


def test_a_worker_that_cannot_finish_in_time_goes_at_the_end_of_its_notice(tmp_path: Path) -> None:
    result = run(tmp_path, "45ms,1,depart,5ms", cluster=Cluster(compute=Seconds(0.01), slowdowns={1: 100.0}))
    assert [event.seconds for event in result.membership or []] == [pytest.approx(0.045)]


def test_a_run_costs_what_its_machines_do_while_they_are_there(tmp_path: Path) -> None:
    result = run(tmp_path, "40ms,1,depart,", "50ms,2,arrive,")
    assert result.cost and [event.event for event in result.membership or []] == ["leave", "join"]
    present = [result.seconds, 0.04, result.seconds - 0.05]
    assert result.cost.money == pytest.approx((present[0] * 3.6 + (present[1] + present[2]) * 0.36) / 3600)
    assert result.cost.hours == pytest.approx(sum(present) / 3600)
    assert result.cost.per_million == pytest.approx(result.cost.money / result.samples * 1e6)


def test_a_machine_that_never_came_costs_nothing_and_one_with_notice_costs_until_it_departs(tmp_path: Path) -> None:
    result = run(tmp_path, "100ms,1,depart,90ms", "900s,2,arrive,")
    assert result.cost and result.seconds > 0.1
    [event] = result.membership or []
    assert event.who == "worker 1" and event.seconds < 0.05, "it goes when its batch is through"
    assert result.cost.hours == pytest.approx((result.seconds + 0.1) / 3600)
    assert result.cost.money == pytest.approx((result.seconds * 3.6 + 0.1 * 0.36) / 3600)


def test_whoever_is_to_join_after_the_end_costs_nothing() -> None:
    given: dict[str, Any] = {"engine": "simulated", "steps": STEPS, "cluster": WORLD, "runs": False}
    result = covey.fit(mlp(sgd(momentum=0.9)), "bsp", "1:3", faults="join worker 2@900s", **given)
    assert result.cost and result.cost.hours == pytest.approx(2 * result.seconds / 3600)


@pytest.mark.parametrize("kept", ["checkpoint", "resume"])
def test_a_trace_is_refused_where_a_run_may_go_on_from_a_checkpoint(tmp_path: Path, kept: str) -> None:
    with pytest.raises(PlanError, match="a worker in every seat.*omit it, or omit checkpoint=… and resume=…"):
        run(tmp_path, "40ms,1,depart,", **{kept: tmp_path / "kept"})


def test_without_a_trace_machines_have_their_usual_price() -> None:
    result = covey.fit(mlp(sgd(momentum=0.9)), "bsp", 3, engine="simulated", steps=STEPS, cluster=WORLD, runs=False)
    assert result.cost and result.cost.money == pytest.approx(3 * result.seconds * 3.6 / 3600)


def test_a_run_that_the_trace_leaves_too_few_for_is_not_advised_what_a_trace_refuses(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match="asks for at least 2: use a smaller MIN") as lost:
        run(tmp_path, "40ms,1,depart,", "50ms,2,depart,", workers="2:3")
    assert "checkpoint" not in str(lost.value)
    leaves = "leave worker 1@40ms; leave worker 2@50ms"
    with pytest.raises(PeerLost, match="starts again by itself"):
        run(tmp_path, workers="2:3", spot_trace=None, faults=leaves)


def test_where_workers_cannot_come_and_go_a_trace_is_refused(tmp_path: Path) -> None:
    for line in ("40ms,1,depart,", "40ms,1,depart,10ms"):
        with pytest.raises(PlanError, match="the number of workers of this run is fixed"):
            run(tmp_path, line, workers=3)
    with pytest.raises(PlanError, match=r"spot_trace=…: the run would begin with 1 workers, and at least 2"):
        run(tmp_path, "40ms,1,arrive,", "50ms,2,arrive,", workers="2:3")
    with pytest.raises(PlanError, match="no such role"):
        run(tmp_path, "40ms,7,depart,")

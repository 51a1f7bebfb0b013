"""Workers that come and go on real processes: `--workers MIN:MAX`."""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.checkpoint.record import read_record
from covey.errors import PeerLost
from covey.observe.progress import Progress
from covey.run.changed_plan import samples_of
from tests.real.harness import Room, fit

AT_STEP = "time.sleep(0.005)"
SIGNALS = {"join": signal.SIGUSR1, "interrupt": signal.SIGINT}  # to the launcher


class Guide:
    """Has workers leave and join, each time after the run has come so many samples further and has said so."""

    def __init__(self, room: Room, *orders: str, every: int = 60) -> None:
        self.room, self.orders, self.every = room, list(orders), every
        self.next, self.said, self.lines = every, list[str](), 0

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, now: Progress) -> None:
        if self.orders and now.phase == "training" and now.samples >= self.next and len(self.said) >= self.lines:
            order = self.orders.pop(0)
            if order in SIGNALS:
                os.kill(os.getpid(), SIGNALS[order])
            else:
                kind, _, who = order.partition(" ")
                self.room.kill(who, signal.SIGTERM if kind == "leave" else signal.SIGKILL)
            self.next, self.lines = now.samples + self.every, len(self.said) + 1


def check(result: covey.Result, guide: Guide, events: list[str], samples: int) -> None:
    assert not guide.orders and isinstance(result.membership, list)
    assert [f"{event.event} {event.who}" for event in result.membership] == events
    assert result.samples == samples and result.failures == []
    assert all(tensor.isfinite().all() for tensor in result.weights.values())


@pytest.mark.parametrize(
    ("strategy", "servers"),
    [
        ("bsp", 2), ("litz", 1), ("proteus", 1), ("asynchronous", 1), ("ssp", 2), ("petuum", 2),
        ("easgd(period=2)", None), ("allreduce", None),
        ("sliced", None), pytest.param("bigdl", None, marks=pytest.mark.full),
        ("local_sgd(period=2)", None), pytest.param("bmuf(period=3)", None, marks=pytest.mark.full),
        pytest.param("diloco(period=4)", None, marks=pytest.mark.full), ("gosgd(probability=0.5)", None),
        pytest.param("adpsgd", None, marks=pytest.mark.full), pytest.param("dpsgd", None, marks=pytest.mark.full),
        pytest.param("sgp", None, marks=pytest.mark.full), pytest.param("malt", None, marks=pytest.mark.full),
        pytest.param("quorum", 1, marks=pytest.mark.full), pytest.param("downpour(push=3)", 2, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_workers_leave_and_join_and_no_sample_is_lost(room: Room, strategy: str, servers: int | None) -> None:
    guide = Guide(room, "leave worker 1", "kill worker 0", "join")
    task = room.task(before_step=AT_STEP)
    result = fit(task, strategy, "1:3", servers=servers, steps=60, watcher=guide)
    plain = fit(task, strategy, 3, servers=servers, steps=60)
    check(result, guide, ["leave worker 1", "rebirth worker 0", "join worker 1"], plain.samples)
    workers = [event.workers for event in result.membership]  # type: ignore[union-attr]
    assert workers == [2, 2, 3]
    assert "worker 1 was told to leave; 2 workers go on" in guide.said
    assert "worker 0 died (killed by signal 9); 1 worker goes on until it is back" in guide.said
    assert "worker 1 joined; now 3 workers" in guide.said
    if strategy == "litz":
        assert all(torch.equal(plain.weights[name], result.weights[name]) for name in plain.weights)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_one_that_is_killed_comes_back_and_training_has_not_stood_still(room: Room, strategy: str) -> None:
    guide = Guide(room, "kill worker 1")
    result = fit(room.task(before_step="time.sleep(0.02)"), strategy, "1:2", steps=300, watcher=guide)
    check(result, guide, ["rebirth worker 1"], 2 * 300 * 4)
    (event,) = result.membership  # type: ignore[misc]
    assert event.stalled == 0.0 and event.workers == 2
    assert any(re.fullmatch(r"worker 1 is back after .* s; now 2 workers", line) for line in guide.said)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_a_range_without_changes_is_its_largest_number(room: Room, strategy: str) -> None:
    task = room.task()
    ranged, fixed = fit(task, strategy, "1:2", steps=30), fit(task, strategy, 2, steps=30)
    assert ranged.samples == fixed.samples
    assert all(torch.equal(ranged.weights[name], fixed.weights[name]) for name in fixed.weights)


def test_the_first_worker_leaves_an_allreduce_and_the_others_models_are_scored(room: Room) -> None:
    guide = Guide(room, "leave worker 0", "leave worker 2", "join")
    result = fit(room.task(before_step=AT_STEP), "allreduce", "1:3", steps=60, watcher=guide, scores=4)
    check(result, guide, ["leave worker 0", "leave worker 2", "join worker 0"], result.samples)
    assert all(math.isfinite(row.loss) for row in result.history)


@pytest.mark.parametrize(
    "strategy", ["allreduce", pytest.param("bmuf(period=3)", marks=pytest.mark.full),
                 pytest.param("diloco(period=4)", marks=pytest.mark.full)],
)  # fmt: skip
def test_after_the_first_worker_has_left_for_good_the_model_of_the_others_is_shown(room: Room, strategy: str) -> None:
    shown, guide = room.path / "shown", Guide(room, "leave worker 0")
    looking = f"open({str(shown)!r}, 'a').write(f'{{model.weight.norm().item()}}\\n')"
    task = room.task(before_step=AT_STEP, before_score=looking, options="evaluate=score")
    result = fit(task, strategy, "1:2", steps=60, watcher=guide, scores=6)
    check(result, guide, ["leave worker 0"], result.samples)
    norms = shown.read_text().split()
    changed = len(set(norms)) > 2 * len(norms) / 3  # two scores may be of one step
    assert len(norms) >= 6 and changed, "the model goes on to change"
    assert result.weights["weight"].norm().item() == float(norms[-1])


def test_the_last_worker_that_may_not_leave_ends_the_run(room: Room) -> None:
    with pytest.raises(PeerLost, match="worker 1 was told to leave: only 1 worker is left, and .* at least 2: use"):
        fit(room.task(before_step=AT_STEP), "bsp", "2:2", steps=900, watcher=Guide(room, "leave worker 1"))


def test_a_plan_has_workers_leave_and_join(room: Room) -> None:
    given: dict[str, Any] = {"faults": "leave worker 1@0.2s; join worker 1@0.6s"}
    result = fit(room.task(before_step="time.sleep(0.02)"), "bsp", "1:2", steps=120, **given)
    assert isinstance(result.membership, list)
    assert [event.event for event in result.membership] == ["leave", "join"] and result.failures == []


def test_machines_come_and_go_by_a_trace(room: Room, tmp_path: Path) -> None:
    trace = tmp_path / "spot.csv"
    trace.write_text("time,worker,event,notice\n0.3s,2,depart,\n0.9s,2,arrive,\n60.1s,1,depart,60s\n61s,1,arrive,\n")
    task = room.task(before_step="time.sleep(0.02)")
    result = fit(task, "bsp", "1:3", steps=100, spot_trace=trace)
    assert isinstance(result.membership, list) and result.failures == [] and result.seconds < 60
    # worker 1 goes when its batch is through, not at the end of its notice
    events = [f"{event.event} {event.who}" for event in result.membership]
    assert sorted(events) == ["join worker 2", "leave worker 1", "leave worker 2"]
    assert result.goodput and result.goodput.accepted == fit(task, "bsp", 3, steps=100).samples


def test_a_server_on_a_machine_that_is_given_notice_is_handed_over(room: Room, tmp_path: Path) -> None:
    trace = tmp_path / "spot.csv"
    trace.write_text("time,worker,event,notice\n60.3s,1,depart,60s\n")
    task = room.task(before_step="time.sleep(0.01)")
    result = fit(task, "proteus(backup=1000)", "1:4", steps=60, spot_trace=trace)
    assert [f"{event.event} {event.who}" for event in result.membership or []] == ["leave worker 1"]
    assert result.seconds < 60 and result.failures == [], "it goes when its partitions are elsewhere"
    assert result.goodput and result.goodput.repeated == 0, "and all that was done counts"
    assert result.samples == fit(task, "bsp", 4, steps=60).samples


def test_a_run_finds_out_itself_how_many_workers_are_worth_it(room: Room, tmp_path: Path) -> None:
    """All batches take turns at one lock, so a second worker adds nothing."""
    take = f"file = open({str(tmp_path / 'lock')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    task = room.task(before_step=f"import fcntl; {take}; time.sleep(0.01); file.close()")
    result = fit(task, "asynchronous", "auto:3", steps=150)
    assert result.membership and result.failures == []
    assert [event.event for event in result.membership][:2] == ["leave", "leave"]
    assert result.goodput and result.goodput.accepted == result.samples


def test_a_range_is_kept_while_a_seat_is_empty_and_goes_on_with_what_is_left(room: Room) -> None:
    kept, task = room.path / "kept", room.task(before_step=AT_STEP)
    guide = Guide(room, "leave worker 1")
    fit(task, "bsp", "1:3", steps=60, watcher=guide, checkpoint=kept, every="50ms")
    lines = [number for number, line in enumerate(guide.said) if line.startswith("wrote checkpoint")]
    left = next(number for number, line in enumerate(guide.said) if "was told to leave" in line)
    assert lines and lines[-1] > left, "kept with an empty seat"
    rest = fit(task, "bsp", "1:3", steps=90, resume=kept)
    plain = fit(task, "bsp", 3, steps=90)
    assert rest.samples == plain.samples and rest.failures == []


def test_a_kept_range_without_changes_resumes_with_the_same_bits(room: Room) -> None:
    kept, task = room.path / "kept", room.task(before_step=AT_STEP)
    fit(task, "bsp", "1:2", steps=40, checkpoint=kept, every="50ms")
    rest, plain = fit(task, "bsp", "1:2", steps=60, resume=kept), fit(task, "bsp", 2, steps=60)
    assert rest.samples == plain.samples
    assert all(torch.equal(rest.weights[name], plain.weights[name]) for name in plain.weights)


@pytest.mark.parametrize(
    ("strategy", "workers", "orders"),
    [
        ("bsp", "1:2", ["kill worker 1"]), ("asynchronous", "1:3", ["leave worker 1", "join"]),
        ("ssp", 2, ["kill worker 1"]),
        pytest.param("allreduce", 2, ["kill worker 0"], marks=pytest.mark.full),
        pytest.param("gosgd", 3, ["kill worker 0"], marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_an_interrupted_run_is_kept_and_ends_though_a_worker_was_replaced(
    room: Room, strategy: str, workers: Any, orders: list[str]
) -> None:
    kept, task, guide = room.path / "kept", room.task(before_step=AT_STEP), Guide(room, *orders, "interrupt")
    given: dict[str, Any] = {"checkpoint": kept, "every": "1h", "on_failure": "continue"}
    result = fit(task, strategy, workers, steps=100_000, watcher=guide, **given)
    assert result.stopped == "interrupted" and not guide.orders
    assert (kept / "latest").exists() and all(tensor.isfinite().all() for tensor in result.weights.values())


def test_a_resumed_range_that_is_interrupted_trains_no_further_than_it_is_kept(room: Room) -> None:
    kept, task = room.path / "kept", room.task(before_step=AT_STEP)
    given: dict[str, Any] = {"checkpoint": kept, "every": "1h"}
    fit(task, "asynchronous", "1:2", steps=100_000, watcher=Guide(room, "interrupt"), **given)
    later = Guide(room, "interrupt", every=300)
    again = fit(task, "asynchronous", "1:2", steps=100_000, watcher=later, resume=kept, **given)
    record = read_record(kept / (kept / "latest").read_text())
    assert again.stopped == "interrupted" and again.samples == samples_of(record)


def test_an_interrupted_run_is_kept_while_a_worker_has_no_batch(room: Room) -> None:
    """One worker is much slower, so that the other one is through and waits when the run is interrupted."""
    slowly = "MINE or MINE.append(first('slow')); time.sleep(0.1 if MINE[0] else 0.001)"
    kept, task = room.path / "kept", room.task(before_step=slowly, more="MINE = []")
    given: dict[str, Any] = {"checkpoint": kept, "every": "1h", "watcher": Guide(room, "interrupt", every=180)}
    result = fit(task, "asynchronous", "1:2", steps=40, **given)
    assert result.stopped == "interrupted" and result.samples < 2 * 40 * 4
    assert fit(task, "asynchronous", "1:2", steps=40, resume=kept).samples == 2 * 40 * 4

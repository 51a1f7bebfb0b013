"""Checkpoints of a run whose lost workers are restarted: each resumes to the same end (virtual time)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import covey
from covey.checkpoint import directory
from covey.engines.mailbox import Mailbox
from covey.engines.pace import Pace
from covey.engines.process.role.saving import state_of
from covey.engines.remembered import Remembered
from covey.engines.virtual.keeping import RunKeeper
from covey.errors import CheckpointError, PeerLost
from covey.membership import MEMBERSHIP, Incarnation
from covey.model import build
from covey.run.options import options
from covey.run.request import request
from covey.simulate import Cluster
from covey.simulate.faults import parse_faults
from tests.engines.test_continue import FAMILIES
from tests.worlds import CLUSTER, INSTANT, mlp, sgd, worker

STEPS = 6
DOWNPOUR = ("downpour(push=2, fetch=2)", 1)


@pytest.fixture(autouse=True)
def all_checkpoints_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "KEEP", 99)


def fit(strategy: str, faults: str = "", cluster: Cluster = CLUSTER, **given: Any) -> covey.Result:
    given = {"on_failure": "continue", "steps": STEPS, "max_failures": 9, **given}
    if faults:
        given["faults"] = parse_faults(faults)
    return covey.fit(mlp(sgd(momentum=0.9)), strategy, 3, engine="simulated", cluster=cluster, runs=False, **given)


def equal(result: covey.Result, other: covey.Result) -> bool:
    same = all(torch.equal(result.weights[name], other.weights[name]) for name in other.weights)
    return same and result.samples == other.samples


def moment(place: Path) -> float:
    return float(json.loads((place / "run.json").read_text())["progress"]["seconds"])


def first_after(folder: Path, seconds: float) -> Path | None:
    """The first checkpoint that was taken after this moment, alone in a folder of its own."""
    found = [place for place in sorted(folder.glob("checkpoint-*")) if moment(place) >= seconds]
    if not found:
        return None
    alone = folder / "alone"
    alone.mkdir()
    found[0].rename(alone / "checkpoint-000001")
    (alone / "latest").write_text("checkpoint-000001")
    return alone


def killed(tmp_path: Path, strategy: str, plain: covey.Result, every: int, **given: Any) -> Iterator[Any]:
    """Runs that are kept about once a step, whose worker 1 is killed at every so many of its effects.

    Each with the first checkpoint after the kill.
    """
    for at in range(1 + every // 2, 500, every):
        folder = tmp_path / str(at)
        kept = {"checkpoint": folder, "every": f"{plain.seconds / STEPS / 1.3:.9f}s", **given}
        run = fit(strategy, f"kill worker 1#{at}", **kept)
        if not isinstance(run.membership, list):
            return
        assert [event.event for event in run.membership] == ["rebirth"]
        yield at, run, first_after(folder, run.membership[0].seconds)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("bsp", {"servers": 2, "cluster": INSTANT}), ("allreduce", {}),
        pytest.param("bsp", {"servers": 1}, marks=pytest.mark.full),
        pytest.param("local_sgd(period=3, momentum=average)", {}, marks=pytest.mark.full),
        pytest.param("bmuf(period=3)", {}, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_wherever_a_worker_is_killed_the_next_checkpoint_resumes_to_the_same_bits(
    tmp_path: Path, strategy: str, given: dict[str, Any], every: int
) -> None:
    """And so it does if another worker is killed as soon as the resumed run has begun."""
    plain, resumed = fit(strategy, on_failure="stop", max_failures=None, **given), 0
    for at, run, kept in killed(tmp_path, strategy, plain, every, **given):
        assert equal(run, plain), f"killed at effect {at}"
        if kept is not None:
            resumed += 1
            again = fit(strategy, f"kill worker 2#{1 + at % 9}", resume=kept, **given)
            assert equal(again, plain), f"killed at effect {at}, resumed, and killed at {1 + at % 9}"
    assert resumed > 40 / every


@pytest.mark.parametrize("every", [31, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize(("strategy", "servers"), [*FAMILIES, DOWNPOUR, ("malt(barrier=true)", None)])
def test_every_strategy_that_goes_on_can_be_resumed_and_goes_on_again(
    tmp_path: Path, strategy: str, servers: int | None, every: int
) -> None:
    given = {"servers": servers} if servers else {}
    plain = fit(strategy, **given)
    for at, run, kept in killed(tmp_path, strategy, plain, every, **given):
        if kept is not None:
            again = fit(strategy, f"kill worker 1#{at % 7 + 1}", resume=kept, **given)
            assert all(tensor.isfinite().all() for tensor in again.weights.values())
            if "epoch" not in strategy:  # which samples of an epoch are skipped is up to the order of events
                assert again.samples == run.samples == plain.samples, f"killed at effect {at}"


@pytest.mark.parametrize(("strategy", "faults"), [
    ("bsp", "kill server 0@28ms"),
    ("allreduce", "kill worker 0@28ms; kill worker 1@28ms; kill worker 2@28ms"),
    ("allreduce", "kill worker 1@12ms; drop worker 0 -> worker 1@20ms; kill worker 2@30ms"),
])  # fmt: skip
def test_what_cannot_go_on_starts_again_from_the_newest_checkpoint(
    tmp_path: Path, strategy: str, faults: str
) -> None:
    plain = fit(strategy)
    result = fit(strategy, faults, checkpoint=tmp_path, every="10ms")
    assert equal(result, plain)
    events = result.membership
    assert isinstance(events, list) and "restart" in {event.event for event in events}
    assert [event.view for event in events] == list(range(1, len(events) + 1))
    again = [event for event in events if event.event == "restart"]
    assert all(event.stalled >= 1 for event in again) and result.goodput.accepted == plain.samples  # type: ignore[union-attr]
    with pytest.raises(PeerLost, match=r"with checkpoint=\"DIR\" such a run starts again by itself"):
        fit(strategy, faults)


def test_a_loss_while_all_are_held_for_a_checkpoint_drops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the lost one, or that of a new one that has no model yet, is never kept."""
    plain, looked, broken = fit("allreduce"), RunKeeper._broken_off, list[bool]()

    def look(self: RunKeeper) -> bool:
        broken.append(looked(self))
        return broken[-1]

    monkeypatch.setattr(RunKeeper, "_broken_off", look)
    for _ in killed(tmp_path, "allreduce", plain, 9):
        pass
    assert any(broken)


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd(period=4)", "dpsgd", "malt(bound=1)", DOWNPOUR[0]])
def test_a_checkpoint_of_a_run_that_could_not_go_on_resumes_to_one_that_can_and_back(
    tmp_path: Path, strategy: str
) -> None:
    """What is remembered of members is no part of a rigid run, whose checkpoints stay as they were."""
    rigid, elastic, back = tmp_path / "rigid", tmp_path / "elastic", tmp_path / "back"
    stops: dict[str, Any] = {"on_failure": "stop", "max_failures": None}
    plain = fit(strategy, **stops)
    often = f"{plain.seconds / 3:.9f}s"
    fit(strategy, checkpoint=rigid, every=often, **stops)
    fit(strategy, checkpoint=elastic, every=often)
    found = [
        fit(strategy, resume=rigid), fit(strategy, "kill worker 1#2", resume=rigid),
        fit(strategy, resume=first_after(elastic, 0.0), checkpoint=back, every=f"{plain.seconds / 12:.9f}s", **stops),
    ]  # fmt: skip
    assert [result.samples for result in found] == 3 * [plain.samples]
    if strategy in ("allreduce", "local_sgd(period=4)", "dpsgd"):  # others take what has come by then
        assert equal(found[0], plain) and equal(found[2], plain)
    for folder, remembered in ((rigid, False), (elastic / "alone", True), (back, False)):
        text = "".join(file.read_text() for file in folder.glob("checkpoint-*/*.json"))
        assert (MEMBERSHIP in text) == remembered and text


def test_other_workers_or_strategies_are_refused(tmp_path: Path) -> None:
    fit("bsp", checkpoint=tmp_path, every="10ms")
    with pytest.raises(CheckpointError, match="is of a run with strategy 'bsp', this one has 'allreduce'"):
        fit("allreduce", resume=tmp_path)


@pytest.mark.parametrize(("incarnation", "ended", "done"), [(1, True, STEPS), (1, False, 0), (0, True, 0)])
def test_a_worker_that_was_restarted_with_nothing_left_to_do_has_done_all_its_steps(
    incarnation: int, ended: bool, done: int
) -> None:
    """Else a resumed run would do them once more. One whose own loop ended early keeps its number of steps."""
    task = mlp(sgd())
    asked = request(task, "bsp", 2, options({"engine": "simulated", "steps": STEPS}))
    replica = build.replica(task, worker(1), True, asked.deal, asked.budget, None)
    memories, mailbox = Remembered(worker(1)), Mailbox(lambda message: None)
    begun = Incarnation(incarnation)
    host = SimpleNamespace(pace=Pace(STEPS), mailbox=mailbox, memories=memories, rng=Random(1), incarnation=begun)
    assert state_of(host, replica, held=False, ended=ended, seconds=1.0).done == done


UNEVEN = Cluster(slowdowns={0: 4.0})


@pytest.mark.parametrize(
    ("strategy", "given"),
    [("asynchronous", {"servers": 1}), ("petuum(bound=9)", {"servers": 1}), ("malt(bound=2)", {}), (DOWNPOUR[0], {})],
)
def test_every_checkpoint_of_workers_of_different_speeds_resumes(
    tmp_path: Path, strategy: str, given: dict[str, Any]
) -> None:
    """Some have left, or have shares of steps that others have not begun; then one is lost, and repeats little."""
    plain = fit(strategy, cluster=UNEVEN, **given)
    fit(strategy, cluster=UNEVEN, checkpoint=tmp_path / "kept", every=f"{plain.seconds / 7:.9f}s", **given)
    places = sorted((tmp_path / "kept").glob("checkpoint-*"))
    for number, place in enumerate(places):
        alone = tmp_path / str(number)
        alone.mkdir()
        place.rename(alone / "checkpoint-000001")
        (alone / "latest").write_text("checkpoint-000001")
        assert fit(strategy, cluster=UNEVEN, resume=alone, **given).samples == plain.samples, f"checkpoint {number}"
        lost = fit(strategy, "kill worker 0#4", UNEVEN, resume=alone, **given)
        assert lost.samples == plain.samples, f"checkpoint {number}"
        repeated = lost.goodput.repeated if isinstance(lost.membership, list) else 0  # type: ignore[union-attr]
        assert repeated <= 3 * 8, f"checkpoint {number}: more than the steps since its last push"
    assert places


def test_nothing_is_kept_while_a_seat_is_empty(tmp_path: Path) -> None:
    """Its second death in a row costs a worker a second; the others train on, and end."""
    run = fit("asynchronous", "kill worker 1@15ms; kill worker 1@15.1ms", INSTANT, checkpoint=tmp_path, every="4ms")
    assert isinstance(run.membership, list) and run.seconds > 1
    moments = [moment(place) for place in sorted(tmp_path.glob("checkpoint-*"))]
    assert any(when < 0.015 for when in moments) and any(when > 1.015 for when in moments)
    assert not any(0.0152 < when < 1.015 for when in moments)

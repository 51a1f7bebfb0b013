"""Owners of slices that come and go: what a lost one held is with another, and goes on from there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.central.sliced.leased_slices import SliceRounds, _gifts
from covey.central.sliced.slice_messages import FreshSlice, SliceCopies
from covey.central.sliced.slice_states import SliceStates, owner_and_keeper
from covey.errors import CoveyError, PlanError
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.simulate import Cluster, Seconds
from tests.worlds import adam, mlp, sgd

UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
STEPS, EFFECTS = 4, 66


def run(strategy: str, faults: str = "", workers: int | str = 3, **given: Any) -> covey.Result:
    return covey.fit(
        strategy=strategy, workers=workers, engine="simulated", cluster=UNEVEN, faults=faults or None, runs=False,
        **{"task": mlp(adam()), "steps": STEPS, "on_failure": "continue", **given},
    )  # fmt: skip


def same(one: covey.Result, other: covey.Result) -> bool:
    """Whether the parameters are; a worker's own running means are lost with it."""
    names = [name for name in other.weights if "running" not in name and "num_batches" not in name]
    return all(torch.equal(one.weights[name], other.weights[name]) for name in names)


class Normalized(nn.Sequential):
    """With float buffers, of which the first owner has the mean."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


class Norm(torch.optim.SGD):
    """Stands for optimizers that look at whole parameters."""

    elementwise = False


TASKS = {
    "adam": mlp(adam()),
    "clipped": mlp(adam(), clip_norm=0.1),
    "averaged": mlp(sgd(momentum=0.9), ema=0.5),
    "buffers": mlp(adam(), model=lambda: Normalized().double()),
    "whole": mlp(lambda pairs: Norm(pairs, lr=0.1, momentum=0.9)),
    "scheduled": mlp(adam(), rate=lambda progress: 1.0 - 0.9 * progress),
    "uneven": mlp(adam(), samples=97),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("strategy", ["sliced", "bigdl"])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 11))])
def test_at_whatever_effect_an_owner_is_lost_the_weights_are_those_of_an_undisturbed_run(
    strategy: str, task: str, part: int
) -> None:
    if (strategy, task) == ("bigdl", "whole"):
        pytest.skip("refused")
    given: dict[str, Any] = {"task": TASKS[task]}
    given |= {"steps": None, "epochs": 1} if task == "uneven" else {}
    whole = run(strategy, **given)
    for effect in range(part + 1, EFFECTS, 11):
        lost = run(strategy, f"kill worker {effect % 3}#{effect}", **given)
        assert same(lost, whole) and lost.samples == whole.samples, effect
        assert not lost.notes.get("lost optimizer states")
        if task == "averaged":
            for name, there in whole.ema.items():  # the average of a lost owner of exact numbers is another one's
                gap = 0 if strategy == "sliced" else 2**-6
                torch.testing.assert_close(lost.ema[name], there, rtol=gap, atol=gap)


@pytest.mark.parametrize("strategy", ["sliced", "caffeonspark"])
def test_a_run_that_goes_on_computes_what_one_that_stops_does(strategy: str) -> None:
    for task in ("adam", "clipped", "buffers"):
        assert same(run(strategy, task=TASKS[task]), run(strategy, task=TASKS[task], on_failure="stop"))
    near = run("bigdl"), run("bigdl", on_failure="stop")  # each worker shows the slices of others as they travel
    for name, there in near[1].weights.items():
        torch.testing.assert_close(near[0].weights[name], there, rtol=2**-6, atol=1e-3)


class Copies(Instrument):
    """Who was sent copies of whose slices, in order, and whether fresh slices were given out before."""

    def __init__(self) -> None:
        self.sent_to: list[tuple[Address, Address]] = []
        self.early: list[tuple[Address, int]] = []
        self.came: set[tuple[Address, int]] = set()

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, SliceCopies):
            self.sent_to.append((sender, to))
        elif isinstance(message, FreshSlice) and (sender, message.step) not in self.came:
            self.early.append((sender, message.step))

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, SliceCopies):
            self.came.add((to, message.step))


def test_an_owner_gives_out_its_slice_only_when_it_has_the_copy_that_it_keeps() -> None:
    seen = Copies()
    run("sliced", instruments=[seen])
    ring = {(Address("worker", rank), Address("worker", (rank + 1) % 3)) for rank in range(3)}
    assert set(seen.sent_to) == ring and not seen.early and len(seen.sent_to) == 3 * STEPS


def test_a_fixed_number_that_stops_sends_no_copies() -> None:
    seen = Copies()
    run("sliced", on_failure="stop", instruments=[seen])
    assert not seen.sent_to


@pytest.mark.parametrize("strategy", ["sliced", "bigdl"])
def test_where_an_owner_and_its_keeper_are_lost_at_once_the_run_goes_on_and_says_what_it_lacks(strategy: str) -> None:
    for at in (22, 25, 28):
        result = run(strategy, f"kill worker 0@{at}ms; kill worker 1@{at}ms", workers="1:3")
        assert result.samples == 3 * STEPS * 8 and all(one.isfinite().all() for one in result.weights.values())
        assert result.notes["lost optimizer states"] == 1, "that of worker 0's slice, of which worker 1 had the copy"


def test_a_run_whose_last_owner_is_lost_ends_by_name() -> None:
    with pytest.raises(CoveyError, match="worker 0 was lost, and no other worker had the model"):
        run("sliced", "leave worker 1@11ms; leave worker 2@12ms; kill worker 0@20ms", workers="1:3")


def test_who_owns_and_who_keeps() -> None:
    assert [owner_and_keeper(number, [0, 1, 2], 3) for number in range(3)] == [[0, 1], [1, 2], [2, 0]]
    assert [owner_and_keeper(number, [0, 3], 4) for number in range(4)] == [[0, 3], [3, 0], [3, 0], [3, 0]]
    assert [owner_and_keeper(number, [2], 3) for number in range(3)] == [[2], [2], [2]]


def test_states_go_to_who_owns_and_who_keeps_from_the_first_that_has_them() -> None:
    had = {0: (0, 2), 1: (1, 0)}  # worker 2 is gone, whose slice worker 0 has kept
    assert _gifts(had, [0, 1], 3) == ({(1, 0): [1], (0, 1): [2]}, [])
    assert _gifts({0: (0,), 1: ()}, [0, 1], 3) == ({(0, 1): [0]}, [1, 2]), "nobody has these two"
    assert _gifts({0: (), 1: (0, 1)}, [0, 1], 2) == ({(1, 0): [0, 1]}, []), "to one that has come"


# -- planted mistakes --------------------------------------------------------------------------------------------------


def plant_no_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer keeps what a broken round has made of it."""
    seat = SliceStates.seat

    def kept(self: Any, members: Any) -> None:
        if not hasattr(self, "members") or list(members) != self.members or self.node.incarnation.number:
            seat(self, members)

    monkeypatch.setattr(SliceStates, "seat", kept)


def plant_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes over a finished round keeps its slices as they were before it."""
    finish = SliceStates.finish

    def behind(self: Any) -> None:
        import sys

        if sys._getframe(1).f_code.co_name == "take":
            self.fresh = {}
        finish(self)

    monkeypatch.setattr(SliceStates, "finish", behind)


def plant_fresh_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets a slice begins its optimizer anew."""
    monkeypatch.setattr(SliceStates, "_load", lambda self: None)


def plant_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a broken round count twice for the learning rate."""
    seat = SliceStates.seat

    def counted(self: Any, members: Any) -> None:
        self.seen = self.replica.progress.seen
        seat(self, members)

    monkeypatch.setattr(SliceStates, "seat", counted)


def plant_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """The average of a broken round's model stays due."""
    monkeypatch.delattr(SliceRounds, "_forget")


@pytest.mark.parametrize(
    ("plant", "task"),
    [
        (plant_no_rollback, "adam"), (plant_early, "adam"), (plant_fresh_optimizer, "adam"),
        (plant_progress, "scheduled"), (plant_average, "averaged"),
    ],
)  # fmt: skip
def test_planted_mistakes_are_found(monkeypatch: pytest.MonkeyPatch, plant: Any, task: str) -> None:
    whole = run("sliced", task=TASKS[task])
    plant(monkeypatch)
    assert any(differs(whole, task, rank, effect) for effect in range(14, 36) for rank in range(3))


def differs(whole: covey.Result, task: str, rank: int, effect: int) -> bool:
    """Whether a run with this loss ends in another way than that without."""
    try:
        lost = run("sliced", f"kill worker {rank}#{effect}", task=TASKS[task])
    except (AssertionError, CoveyError, KeyError):
        return True
    averages = task == "averaged" and any(not torch.equal(lost.ema[name], there) for name, there in whole.ema.items())
    return averages or not same(lost, whole)


@pytest.mark.full
@pytest.mark.parametrize("task", ["adam", "averaged", "scheduled"])
def test_without_these_mistakes_nothing_is_found(task: str) -> None:
    whole = run("sliced", task=TASKS[task])
    assert not any(differs(whole, task, rank, effect) for effect in range(14, 36) for rank in range(3))


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "given", "said"),
    [
        ("bigdl(drop=0.1)", {}, "were ready in time: omit drop; or use on_failure="),
        ("bigdl(drop=0.1)", {"workers": "2:3"}, "were ready in time: omit drop; or use a number"),
        ("sliced + topk(density=0.5)", {}, "omit the codec; or use"),
        ("sliced", {"checkpoint": "kept"}, "which a checkpoint of a range does not keep: omit checkpoint"),
        ("sliced", {"workers": 1}, "has nobody to take the model from: use 2 or more"),
    ],
)
def test_what_cannot_go_on_is_refused(strategy: str, given: dict[str, Any], said: str, tmp_path: Any) -> None:
    if "checkpoint" in given:
        given = {"checkpoint": tmp_path / "kept"}
    with pytest.raises(PlanError) as refused:
        run(strategy, **given)
    assert said in str(refused.value), str(refused.value)

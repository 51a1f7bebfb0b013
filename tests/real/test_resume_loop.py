"""A script's own loop that was kept goes on where it was: to the weights of the loop that nobody interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from covey.errors import CheckpointError, PeerLost, PlanError
from covey.observe.result import Result
from covey.run import launch
from covey.store.model_store import ModelStore
from tests.real.harness import Room, Watch, differing, fit, interrupt, trained

SCRIPT = """
import random, sys, time
from pathlib import Path
import torch
from torch import nn
import covey

HERE = Path(__file__).parent
torch.set_default_dtype(torch.float64)
random.seed(3)
chance = torch.Generator().manual_seed(7)
x, y = torch.randn(64, 6, generator=chance), torch.randint(0, 3, (64,), generator=chance)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.{scheduler}
with covey.join(model, optimizer, keep=[{keep}]) as member:
    {before}
    for epoch in {epochs}:
        for x_, y_ in {data}:
            time.sleep(0.01)
            loss = nn.functional.cross_entropy(model(x_), y_) * (1 + random.random())
            loss.backward()
            member.step(loss)
            scheduler.step()
        with (HERE / "epochs").open("a") as file:
            file.write(f"{{member.rank}} {{epoch}} {{member.resumed}} {{member.steps}} {{scheduler.last_epoch}}\\n")
"""
PLAIN = {
    "scheduler": "CosineAnnealingLR(optimizer, 48)", "keep": "scheduler", "before": "shard = member.shard((x, y), 4)",
    "epochs": "range(6)", "data": "shard",
}  # fmt: skip
INSIDE = {  # a scheduler that is made when there is a member
    "keep": "", "scheduler": "StepLR", "before":
    "shard = member.shard((x, y), 4); scheduler = scheduler(optimizer, len(shard)); member.keep(scheduler)",
}  # fmt: skip
MILESTONES = "MultiStepLR(optimizer, [5, 20, 30])"
STEPS = 6 * 8  # of each of two workers


def train(room: Room, strategy: str, parts: dict[str, str], **given: Any) -> Result:
    script = room.script(SCRIPT.format(**{**PLAIN, **parts}))
    return launch(script, [], strategy, 2, threads=1, **given)


def resumed(room: Room, strategy: str, parts: dict[str, str]) -> tuple[Result, Result]:
    """The loop without a break, and with one."""
    whole = train(room, strategy, parts)
    (room.path / "epochs").unlink()
    kept = room.path / "kept"
    first = train(room, strategy, parts, checkpoint=kept, watcher=Watch(trained(150), interrupt), command="one")
    assert first.stopped == "interrupted" and 150 <= first.samples < 384
    watch = Watch()
    second = train(
        room, strategy, parts, checkpoint=kept, resume=kept, register="loop", store=room.path / "models", command="two",
        watcher=watch,
    )  # fmt: skip
    assert second.stopped == "budget"
    said = [line for line in watch.said if "start again at 0" in line]
    assert len(said) == 1 and "use member.steps" in said[0], "a counter of the script's own would be wrong"
    return whole, second


CASES = {
    "bsp": ("bsp", {}),
    "allreduce": ("allreduce", {"scheduler": MILESTONES}),
    "epochs": ("allreduce", {"epochs": "member.epochs(6)", **INSIDE}),
    "a shard for every epoch": ("bsp", {"data": "member.shard((x, y), 4)", "epochs": "member.epochs(6)"}),
    "a shard for every epoch of a range": ("allreduce", {"data": "member.shard((x, y), 4)"}),
    "local_sgd": ("local_sgd(period=4)", {}),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == "epochs" else pytest.mark.full) for c in CASES])
def test_a_resumed_loop_ends_with_the_same_weights(room: Room, case: str) -> None:
    whole, second = resumed(room, *CASES[case])
    assert not differing(whole.weights, second.weights)
    assert second.samples == whole.samples and second.updates == whole.updates
    ends = [line.split() for line in (room.path / "epochs").read_text().splitlines()]
    last = [line for line in ends if line[1] == "5"][-2:]
    assert {tuple(line[1:]) for line in last} == {("5", "True", str(STEPS), str(STEPS))}
    version = ModelStore(room.path / "models").named("loop")
    assert [run.command for run in version.origin.runs] == ["one", "two"], "the lineage has both"
    assert second.version == version.text and version.origin.source and not version.origin.task
    begun = {int(line[1]) for line in ends if line[2] == "True"}
    assert begun == set(range(min(begun), 6)) and (min(begun) > 0) == ("epochs" in CASES[case][1])


@pytest.mark.full
def test_workers_that_had_left_their_loop_stay_away(room: Room) -> None:
    """Without a common pace one worker is through long before the other."""
    slow = {"data": "(b for b in shard if time.sleep(0.1 * member.rank) is None)"}
    kept = room.path / "kept"
    first = train(room, "asynchronous", slow, checkpoint=kept, watcher=Watch(trained(290), interrupt))
    assert first.stopped == "interrupted"
    second = train(room, "asynchronous", slow, resume=kept)
    assert second.stopped == "budget" and second.samples == 384


def test_a_scheduler_that_would_be_lost_is_refused(room: Room) -> None:
    with pytest.raises(PlanError, match=r"keep=\[scheduler\]"):
        train(room, "allreduce", {"keep": ""}, checkpoint=room.path / "kept")


@pytest.mark.full
def test_a_checkpoint_of_a_task_is_no_loops(room: Room) -> None:
    fit(room.task(), "bsp", 2, steps=40, checkpoint=room.path / "kept", every="0.01s", threads=1)
    with pytest.raises(CheckpointError, match="is of a task"):
        train(room, "bsp", {}, resume=room.path / "kept")


TWO_OPTIMIZERS = """
import os, time
import torch
from torch import nn
import covey

torch.set_default_dtype(torch.float64)
chance = torch.Generator().manual_seed(7)
x, y = torch.randn(64, 6, generator=chance), torch.randn(64, 2, generator=chance)
first, second = nn.Linear(6, 8), nn.Linear(8, 2)
model = nn.Sequential(first, nn.Tanh(), second)
rates = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (first, second)]
with covey.join(model, rates) as member:
    for epoch in member.epochs(5):
        for a, b in member.shard((x, y), 4):
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            time.sleep(0.03)  # so that the run is kept in the first of the two steps
            if {killed} and member.rank and member.steps > 30 and not member.resumed:
                os.kill(os.getpid(), 9)
            for rate in rates:
                member.step(loss, optimizer=rate)
"""


def test_a_gradient_that_waits_for_its_optimizer_is_kept(room: Room) -> None:
    kept = room.path / "kept"
    whole = launch(room.script(TWO_OPTIMIZERS.format(killed=False)), [], "allreduce", 2, threads=1)
    script = room.script(TWO_OPTIMIZERS.format(killed=True))
    with pytest.raises(PeerLost, match="SIGKILL"):
        launch(script, [], "allreduce", 2, threads=1, checkpoint=kept, every="150ms")
    second = launch(script, [], "allreduce", 2, threads=1, resume=kept)
    assert not differing(whole.weights, second.weights) and second.updates == whole.updates


def test_whoever_replaces_a_lost_worker_lacks_gradients_that_wait(room: Room) -> None:
    with pytest.raises(PlanError, match="two optimizers that step after one backward.*call backward before each"):
        launch(room.script(TWO_OPTIMIZERS.format(killed=False)), [], "allreduce", 2, threads=1, on_failure="continue")

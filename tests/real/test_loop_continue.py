"""A worker of a script's own loop is killed: its script runs up to `covey.join`, and goes on where the others are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from covey.errors import PlanError
from covey.observe.result import Result
from covey.run import launch
from tests.real.harness import Room, differing
from tests.real.test_continue import Killer, check

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import covey

HERE = Path(__file__).parent
torch.set_default_dtype(torch.float64)
chance = torch.Generator().manual_seed(7)
x, y = torch.randn({samples}, 6, generator=chance), torch.randint(0, 3, ({samples},), generator=chance)
loader = DataLoader(TensorDataset(torch.arange({samples}), x, y), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
mean = torch.optim.swa_utils.AveragedModel(model)

def first(name):
    "True for one process of the run only."
    try:
        os.close(os.open(HERE / name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

seen = open(HERE / f"seen-{{os.getpid()}}", "a")
with covey.join(model, optimizer, keep=[scheduler, mean]) as member:
    for epoch in {epochs}:
        for numbers, x_, y_ in {data}:
            time.sleep(0.01)
            {before}
            loss = nn.functional.cross_entropy(model(x_), y_)
            loss.backward()
            {inside}
            print(member.rank, epoch, member.steps, *numbers.tolist(), file=seen, flush=True)
            member.step(loss)
            mean.update_parameters(model)
        scheduler.step()
        {after}
    {last}
    (HERE / f"averaged-{{member.rank}}").write_text(str(int(mean.n_averaged)))
"""
PLAIN = {
    "samples": "64", "epochs": "range(8)", "data": "member.loader(loader)", "before": "pass", "inside": "pass",
    "after": "pass", "last": "pass",
}  # fmt: skip
VOTES = {  # between a batch and its step, and between two epochs
    "inside": "assert member.agree(member.steps * 2.0, how='mean') == member.steps * 2",
    "after": "if member.agree(epoch == 6 and member.rank == 1): break",
}


def train(room: Room, strategy: str, parts: dict[str, str], workers: int = 2, **given: Any) -> Result:
    script = room.script(SCRIPT.format(**{**PLAIN, **parts}))
    for old in room.path.glob("seen-*"):
        old.unlink()
    return launch(script, [], strategy, workers, threads=1, stall="60s", **given)


def trained(room: Room) -> Counter[tuple[int, int]]:
    """How often each sample was trained in each epoch: of what a lost process wrote, others may have done it again."""
    steps = {}
    for file in room.path.glob("seen-*"):
        for line in file.read_text().splitlines():
            rank, epoch, step, *numbers = map(int, line.split())
            steps[rank, step] = [(epoch, number) for number in numbers]
    return Counter(sample for samples in steps.values() for sample in samples)


def averaged(room: Room) -> list[int]:
    """How many steps are in the mean that each worker's loop keeps."""
    return [int(file.read_text()) for file in sorted(room.path.glob("averaged-*"))]


CASES: dict[str, tuple[str, dict[str, str]]] = {
    "a loader": ("allreduce", {}),
    "epochs of the member": ("allreduce", {"epochs": "member.epochs(8)"}),
    "votes": ("allreduce", VOTES),
    "votes in epochs of the member": ("allreduce", {**VOTES, "epochs": "member.epochs(8)"}),
    "unequal batches": ("allreduce", {"samples": "59"}),
    "a shard": ("allreduce", {"data": "member.shard((torch.arange(64), x, y), 4)"}),
    "averages": ("local_sgd(period=3, momentum=reset)", {}),
    "blocks": ("bmuf(period=3)", {}),
    "a barrier": ("malt(barrier=true)", {}),
}
USUAL = ("a loader", "votes", "averages")


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in USUAL else pytest.mark.full) for c in CASES])
def test_a_loop_that_lost_workers_ends_with_the_weights_of_one_that_lost_nobody(room: Room, case: str) -> None:
    strategy, parts = CASES[case]
    victims = ["worker 1", "worker 0", "worker 1"]
    killer = Killer(room, *victims, every=60)
    result = train(room, strategy, parts, on_failure="continue", watcher=killer)
    check(result, killer, victims)
    dealt, means = trained(room), averaged(room)
    plain = train(room, strategy, parts)
    assert not differing(result.weights, plain.weights) and result.samples == plain.samples
    assert result.failures == [] and dealt == trained(room) and set(dealt.values()) == {1}
    assert len(means) == 2 and means == averaged(room)


DIES = "if member.rank == 1 and {when} and first('died'): os.kill(os.getpid(), 9)"
MOMENTS = {
    "before its first step": {"before": DIES.format(when="member.steps == 0")},
    "while the other waits for its vote": {"inside": f"{DIES.format(when='member.steps == 20')}\n            VOTE"},
    "in its last step": {"inside": DIES.format(when="member.steps == 63")},
    "when its loop is over": {"last": DIES.format(when="True")},
    "when its loop is over, and the other's is": {"last": f"time.sleep(member.rank)\n    {DIES.format(when='True')}"},
}


USUAL_MOMENTS = ("while the other waits for its vote", "when its loop is over")


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=() if each in USUAL_MOMENTS else pytest.mark.full) for each in MOMENTS]
)
def test_a_worker_may_die_at_any_moment(room: Room, moment: str) -> None:
    vote = "assert member.agree(member.steps == 20 and not member.rank) == (member.steps == 20)"
    parts = {name: text.replace("VOTE", vote) for name, text in MOMENTS[moment].items()}
    result = train(room, "allreduce", parts, on_failure="continue")
    assert isinstance(result.membership, list) and [event.who for event in result.membership] == ["worker 1"]
    plain = train(room, "allreduce", {})
    assert not differing(result.weights, plain.weights) and result.samples == plain.samples


@pytest.mark.parametrize(
    ("strategy", "given", "why"),
    [
        ("bsp", {}, r"with allreduce, local_sgd, bmuf, diloco, malt\(barrier=true\), not with bsp; or use .*restart"),
        ("allreduce", {"engine": "mpi"}, "not for mpi"),
        ("allreduce + int8", {}, "omit the codec"),
        ("sparknet", {}, "not with sparknet"),
        ("malt", {}, "not with malt"),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_starts(
    room: Room, strategy: str, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(PlanError, match=f'on_failure="continue".*{why}'):
        train(room, strategy, {}, on_failure="continue", **given)


def test_batches_that_nobody_could_find_again_are_refused(room: Room) -> None:
    with pytest.raises(PlanError, match=r"take them from member.loader\(loader\) or member.shard"):
        train(room, "allreduce", {"data": "loader"}, on_failure="continue")

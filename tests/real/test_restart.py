"""A run that loses a process starts again from its newest checkpoint, when it is asked to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import covey
from covey.errors import PeerLost, PlanError, RoleFailed
from covey.observe.progress import Progress
from tests.real.harness import Room, fit

AT_STEP = "time.sleep(0.005)"


class Killer:
    """Kills a role once for each condition that is met, in their order."""

    def __init__(self, kill: Callable[[], None], *due: Callable[[Progress], bool]) -> None:
        self.kill, self.due, self.said = kill, list(due), list[str]()

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, now: Progress) -> None:
        if self.due and now.phase == "training" and self.due[0](now):
            self.due.pop(0)
            self.kill()


def kept(folder: Path, number: int) -> Callable[[Progress], bool]:
    """There are that many checkpoints."""
    return lambda now: (folder / f"checkpoint-{number:06d}").exists()


def weights(result: covey.Result) -> list[torch.Tensor]:
    return [result.weights[name] for name in sorted(result.weights)]


@pytest.mark.parametrize(("strategy", "victim"), [("bsp", "server 0"), ("allreduce", "worker 1"), ("bsp", "scorer 0")])
def test_it_ends_with_the_weights_of_a_run_that_lost_nobody(room: Room, strategy: str, victim: str) -> None:
    folder = room.path / "kept"
    task = room.task(before_step=AT_STEP)
    killer = Killer(lambda: room.kill(victim), kept(folder, 1), kept(folder, 2))
    result = fit(
        task, strategy, 2, steps=120, checkpoint=folder, every="0.2s", on_failure="restart", watcher=killer, save=None
    )
    assert not killer.due
    assert all(map(torch.equal, weights(result), weights(fit(task, strategy, 2, steps=120))))
    events = result.membership
    assert isinstance(events, list) and [event.view for event in events] == [1, 2]
    assert {event.who for event in events} == {victim} and all("signal 9" in event.cause for event in events)
    assert all(0 < event.stalled < 30 for event in events) and events[0].seconds < events[1].seconds < result.seconds
    goodput = result.goodput
    assert not isinstance(goodput, msgspec.UnsetType)
    assert goodput.accepted == result.samples and goodput.ratio == result.samples / (result.samples + goodput.repeated)
    assert sum("the run starts again from" in line for line in killer.said) == 2


def test_without_a_checkpoint_yet_it_begins_again(room: Room) -> None:
    killer = Killer(lambda: room.kill("worker 0"), lambda now: now.samples > 100)
    result = fit(
        room.task(before_step=AT_STEP), "local_sgd", 2, steps=60, checkpoint=room.path / "kept", on_failure="restart",
        watcher=killer,
    )  # fmt: skip
    assert not isinstance(result.goodput, msgspec.UnsetType) and result.goodput.repeated > 100
    assert any("starts again from its beginning" in line for line in killer.said)


def test_it_gives_up_after_failures_in_a_row_that_kept_nothing_new(room: Room) -> None:
    """A model that always dies at the same step: in vain again and again."""
    task = room.task(before_step="import os; (HERE / 'life').open('a').write('x'); os.kill(os.getpid(), 9)")
    with pytest.raises(PeerLost, match=r"(?s)signal 9.*failed 3 times in a row without a new checkpoint.*every="):
        fit(task, "bsp", 1, steps=9, checkpoint=room.path / "kept", on_failure="restart", max_failures=2)
    assert len((room.path / "life").read_text()) == 3
    assert not room.left()


def test_what_the_users_own_code_raises_ends_the_run(room: Room) -> None:
    task = room.task(before_step="(HERE / 'life').open('a').write('x'); 1 / 0")
    with pytest.raises(RoleFailed, match="ZeroDivisionError"):
        fit(task, "bsp", 1, steps=9, checkpoint=room.path / "kept", on_failure="restart")
    assert len((room.path / "life").read_text()) == 1


def test_by_default_the_first_loss_ends_it(room: Room) -> None:
    killer = Killer(lambda: room.kill("worker 0"), lambda now: now.samples > 100)
    with pytest.raises(PeerLost, match=r"^worker 0 exited with signal 9, SIGKILL[^\n]*$"):
        fit(room.task(before_step=AT_STEP), "bsp", 2, steps=500, checkpoint=room.path / "kept", watcher=killer)


LOOP = """
import json, sys, time
from pathlib import Path
import torch, covey
torch.manual_seed(0)
model = torch.nn.Linear(6, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(64, 6).double(), torch.randint(0, 3, (64,))
with covey.join(model, optimizer) as member:
    for epoch in member.epochs(12):
        for inputs, labels in member.shard((x, y), 4):
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            member.step()
            time.sleep(0.01)
Path(sys.argv[1], f"worker {member.rank}.json").write_text(json.dumps(model.weight.tolist()))
"""


def test_own_loops_restart_too(room: Room) -> None:
    from covey.run import launch

    folder, found = room.path / "kept", list[Any]()
    killer = Killer(lambda: room.kill("worker 1"), kept(folder, 1))
    for options in ({}, {"checkpoint": folder, "every": "0.2s", "on_failure": "restart", "watcher": killer}):
        launch(room.script(LOOP), [str(room.path)], "allreduce", 2, threads=1, **options)  # type: ignore[arg-type]
        found.append([json.loads((room.path / f"worker {rank}.json").read_text()) for rank in range(2)])
    assert found[0] == found[1] and not killer.due


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"on_failure": "restart"}, 'needs checkpoint="DIR"'),
        ({"max_failures": 3}, 'add on_failure="restart" or'),
        ({"on_failure": "again"}, "on_failure must be 'stop' or 'restart' or 'continue', not str 'again'"),
        ({"on_failure": "restart", "checkpoint": "kept", "max_failures": 0}, "max_failures=0: at least 1"),
        ({"on_failure": "restart", "checkpoint": "kept", "engine": "mpi"}, "local, ray or lab"),
        ({"on_failure": "restart", "engine": "simulated"}, 'needs checkpoint="DIR"'),
    ],
)
def test_what_cannot_restart_is_refused(room: Room, options: dict[str, Any], needed: str) -> None:
    with pytest.raises(PlanError, match=needed):
        covey.fit(room.task(), "bsp", 1, **options)

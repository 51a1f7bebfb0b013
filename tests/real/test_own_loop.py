"""What a loop of one's own can ask of its member, with two workers against one that has all the samples."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.errors import PlanError
from covey.observe.progress import Progress
from covey.run import launch
from tests.real.harness import Room

EVERYTHING = """
import json, sys
from pathlib import Path
import torch, covey
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(6, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(63, 6).double(), torch.randint(0, 3, (63,))
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
said = {}

with covey.join(model, optimizer) as member:
    both, second = member.workers == 1, member.rank == member.workers - 1

    def part(first, middle, last):
        "What this worker has of some samples: one of two parts, or both."
        return slice(first, last) if both else slice(middle, last) if second else slice(first, middle)

    def differentiate(inside, share=1.0):
        loss = F.cross_entropy(model(x[inside]), y[inside]) * share
        scaler.scale(loss).backward()
        return loss, len(x[inside])

    # unequal parts, which the loop tells
    F.cross_entropy(model(x[part(0, 7, 10)]), y[part(0, 7, 10)]).backward()
    member.step(samples=len(x[part(0, 7, 10)]))

    # several batches for one step
    for number in range(3):
        with member.accumulate(number < 2):
            inside = part(10 + 4 * number, 12 + 4 * number, 14 + 4 * number)
            (F.cross_entropy(model(x[inside]), y[inside]) / 3).backward()
            member.step(samples=len(x[inside]))

    # scaled losses: a step, one that overflows on one worker, and one more
    for number in range(3):
        loss, count = differentiate(part(22, 26, 30))
        if number == 1 and second:
            model.weight.grad[0, 0] = float("inf")
        before = model.weight.clone()
        member.step(loss, samples=count, scaler=scaler)
        scaler.update()
        said[f"moved {number}"] = not torch.equal(before, model.weight)
        said[f"scale {number}"] = scaler.get_scale()

    # a loader whose last batch is not the same for all
    loader = DataLoader(TensorDataset(x, y), 20 if both else 10, shuffle=True)
    said["batches"] = len(member.loader(loader))
    for _ in range(2):
        for inputs, labels in member.loader(loader):
            F.cross_entropy(model(inputs), labels).backward()
            member.step()

    # what all say
    said["any"] = [member.agree(member.rank == 0), member.agree(False)]
    said["all"] = [member.agree(True, how="all"), member.agree(both or member.rank == 0, how="all")]
    said["mean"] = member.agree(torch.tensor(2.0 if both else 1.0 + 2 * member.rank), how="mean")
    torch.rand(1)
    said["chance"] = torch.rand(3).tolist()

said["weights"] = [p.tolist() for p in model.parameters()]
(Path(sys.argv[1]) / f"worker {member.rank}.json").write_text(json.dumps(said))
"""


def alone(script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", [str(script), str(folder)])
    runpy.run_path(str(script), run_name="__main__")
    return read(folder, 0)


def read(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"worker {rank}.json").read_text())
    return found


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = zip(one["weights"], other["weights"], strict=True)
    return max(float((torch.tensor(a) - torch.tensor(b)).abs().max()) for a, b in pairs)


@pytest.mark.parametrize(("strategy", "servers"), [("allreduce", None), pytest.param("bsp", 2, marks=pytest.mark.full)])
def test_two_workers_do_what_one_does_with_all_the_samples(
    room: Room, strategy: str, servers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = room.script(EVERYTHING)
    expected = alone(script, room.path, monkeypatch)
    launch(script, [str(room.path)], strategy, 2, servers=servers, threads=1)
    first, second = read(room.path, 0), read(room.path, 1)
    assert far(first, second) == 0.0
    assert far(first, expected) < 1e-12
    for said in (expected, first, second):
        assert [said[f"moved {number}"] for number in range(3)] == [True, False, True], "all skip what one must skip"
        assert [said[f"scale {number}"] for number in range(3)] == [4.0, 2.0, 2.0]
        assert said["any"] == [True, False] and said["mean"] == 2.0
    assert first["all"] == second["all"] == [True, False] and expected["all"] == [True, True]
    assert expected["batches"] == first["batches"] == 4
    assert first["chance"] != second["chance"], "dropout is not the same on all workers"


ENDLESS = """
import json, os, random, sys
from pathlib import Path
import numpy, torch, covey

(Path(sys.argv[1]) / f"began {os.getpid()}").touch()
before = [random.random(), numpy.random.rand()]
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def endless(batches):
    while True:
        yield from batches

with covey.join(model, optimizer) as member:
    chance = [random.random(), numpy.random.rand()]
    for x, y in endless(member.shard((torch.randn(64, 6), torch.randint(0, 3, (64,))), 2)):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        member.step()
said = {"before": before, "chance": chance, "local": int(os.environ["LOCAL_RANK"])}
(Path(sys.argv[1]) / f"worker {member.rank}.json").write_text(json.dumps(said))
"""


def test_a_loop_that_never_ends_by_itself_ends_with_the_run_and_the_script_goes_on(room: Room) -> None:
    result = launch(room.script(ENDLESS), [str(room.path)], "allreduce", 2, threads=1, steps=3)
    assert result.updates == 3
    assert len(list(room.path.glob("began *"))) == 3, "two workers, and the process that scores, up to covey.join"
    first, second = read(room.path, 0), read(room.path, 1)
    assert first["before"] == second["before"], "what a script draws before covey.join is the same on all roles"
    assert all(one != other for one, other in zip(first["chance"], second["chance"], strict=True))
    assert [first["local"], second["local"]] == [0, 1], "torch.cuda.set_device takes another GPU on each"


IN_TURN = """
import json, sys
from pathlib import Path
import torch, covey

first, second = (torch.nn.Linear(6, 3) for _ in range(2))
its, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second))
x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
with covey.join([first, second], [its, other]) as member:
    torch.nn.functional.cross_entropy(first(x) + second(x), y).backward()
    waiting = second.weight.grad.tolist()
    member.step(samples=4, optimizer=its)
    found = None if second.weight.grad is None else second.weight.grad.tolist()
    member.step(samples=4, optimizer=other)
(Path(sys.argv[1]) / f"worker {member.rank}.json").write_text(json.dumps([waiting, found]))
"""


def test_gradients_of_what_another_optimizer_steps_wait_for_it(room: Room) -> None:
    launch(room.script(IN_TURN), [str(room.path)], "allreduce", 2, threads=1, steps=2)
    for rank in range(2):
        waiting, found = json.loads((room.path / f"worker {rank}.json").read_text())
        assert found == waiting


LEAVING = """
import sys, torch, covey
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
with covey.join(model, optimizer) as member:
    for step in range(8):
        if member.rank == 1 and step == 5:
            {leave}
        torch.nn.functional.cross_entropy(model(x), y).backward()
        member.step({samples})
"""


class Lines:
    """Reads what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, now: Progress) -> None:
        pass


def test_who_leaves_is_named_at_once_and_a_loop_that_sees_all_data_is_warned_of(room: Room) -> None:
    watcher = Lines()
    script = room.script(LEAVING.format(leave="break", samples=""))
    with pytest.raises(PlanError, match=r"worker 1 left its training loop after 5 steps.*member\.agree"):
        launch(script, [], "bsp", 2, threads=1, stall="600s", watcher=watcher)
    assert len([line for line in watcher.said if "neither from member.loader nor from member.shard" in line]) == 1


@pytest.mark.parametrize(
    ("leave", "samples", "words"),
    [
        ("member.step(samples=64)", "samples=64", "worker 1 calls member.step after 5 steps without any gradient"),
        pytest.param(
            "pass", "samples=3 if member.rank else None",
            r"worker 1 waits in member.step\(…, samples=…\).*same arguments", marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_what_one_worker_does_otherwise_is_named(room: Room, leave: str, samples: str, words: str) -> None:
    text = LEAVING.format(leave=leave, samples=samples)
    if "None" in samples:
        text = text.replace("for step in range(8):", "for step, _ in enumerate(member.shard((x, y), 2)):")
    with pytest.raises(PlanError, match=words):
        launch(room.script(text), [], "bsp", 2, threads=1, stall="600s")


@pytest.mark.full
def test_a_script_that_never_begins_its_block_is_told(room: Room) -> None:
    text = LEAVING.split("with covey", maxsplit=1)[0] + "member = covey.join(model, optimizer)\nsys.exit(0)\n"
    with pytest.raises(PlanError, match="no block began: write `with covey.join"):
        launch(room.script(text), [], "allreduce", 2, threads=1)


@pytest.mark.full
def test_and_so_is_one_whose_others_wait_in_a_sum(room: Room) -> None:
    text = LEAVING.format(leave="break", samples="")
    text = text.replace("for step in range(8):", "for step, _ in enumerate(member.shard((x, y), 2)):")
    with pytest.raises(PlanError, match=r"worker 1 left its training loop after 5 steps, and worker 0 goes on.*agree"):
        launch(room.script(text), [], "allreduce", 2, threads=1, stall="600s")


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["asynchronous", "easgd", "ssp(bound=1)"])
def test_where_nobody_is_waited_for_the_others_go_on(room: Room, strategy: str) -> None:
    script = room.script(LEAVING.format(leave="break", samples="samples=64"))
    result = launch(script, [], strategy, 2, threads=1)
    assert result.samples == (8 + 5) * 64


@pytest.mark.full
def test_an_agreement_that_one_does_not_ask_for_is_named(room: Room) -> None:
    script = room.script(LEAVING.format(leave="member.agree(True)", samples="samples=64"))
    with pytest.raises(PlanError, match=r"member\.agree.*worker|worker.*member\.agree"):
        launch(script, [], "allreduce", 2, threads=1, stall="600s")


WRITING = """
import torch, covey
from torch import nn
model, other = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
with covey.join(model, optimizer) as member:
    for inputs, labels in member.shard((x, y), 4):
        nn.functional.cross_entropy(model(inputs), labels).backward()
        {write}
        member.step()
"""


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "hogwild", "easgd(period=2)"])
def test_weights_that_only_the_run_changes_are_not_called_written(room: Room, strategy: str) -> None:
    """Nor are those that are changed back, as an average of the weights that is swapped in for validation."""
    back = "kept = [p.data.clone() for p in model.parameters()]; [p.data.zero_() for p in model.parameters()]; "
    back += "[p.data.copy_(k) for p, k in zip(model.parameters(), kept)]"
    launch(room.script(WRITING.format(write=back)), [], strategy, 2, threads=1, watcher=(watcher := Lines()))
    assert not [line for line in watcher.said if "changed weights" in line]


def test_weights_that_a_loop_writes_itself_are_warned_of_once(room: Room) -> None:
    write = "model[1].bias.data.clamp_(max=-0.5) if member.rank == 1 else None"
    launch(room.script(WRITING.format(write=write)), [], "bsp", 2, threads=1, watcher=(watcher := Lines()))
    (line,) = [line for line in watcher.said if "changed weights" in line]
    assert line.startswith("worker 1: the loop itself changed weights") and "'1.bias'" in line


@pytest.mark.full
def test_a_queue_of_samples_that_would_be_averaged_is_warned_of_once(room: Room) -> None:
    text = WRITING.replace("model, other =", "class Own(nn.Sequential):\n    pass\nmodel, other =")
    text = text.replace("nn.Sequential(nn.Linear(6, 3)", "Own(nn.Linear(6, 3)")
    text = text.replace("optimizer =", "model.register_buffer('queue', torch.zeros(8, 6))\noptimizer =")
    script = room.script(text.format(write="model.queue[:4] = inputs"))
    launch(script, [], "bsp", 2, threads=1, watcher=(watcher := Lines()))
    lines = [line for line in watcher.said if "float buffers are averaged" in line]
    assert len(lines) <= 2 and all("'queue'" in line for line in lines) and lines


@pytest.mark.full
def test_a_frozen_parameter_that_the_loop_writes_is_warned_of(room: Room) -> None:
    text = WRITING.replace("optimizer =", "model[1].bias.requires_grad_(False)\noptimizer =")
    script = room.script(text.format(write="model[1].bias.data.mul_(0.9)"))
    launch(script, [], "allreduce", 2, threads=1, watcher=(watcher := Lines()))
    lines = [line for line in watcher.said if "frozen parameter '1.bias'" in line]
    assert lines and all("saved model" in line for line in lines)


def test_a_parameter_that_becomes_another_tensor_is_refused(room: Room) -> None:
    write = "model[0].weight.data = model[0].weight.data * 0.9"
    with pytest.raises(PlanError, match=r"replaced the tensor of parameter '0\.weight' after covey\.join"):
        launch(room.script(WRITING.format(write=write)), [], "allreduce", 2, threads=1)

"""`covey run --profile FILE`: what torch did in every role, in the same seconds as what covey did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.errors import PlanError
from covey.run import fit
from tests.warm import Warm

Slice = dict[str, Any]


def inside(inner: Slice, outer: Slice) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


@pytest.fixture(scope="module")
def profile(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> list[Slice]:
    """The events of a run that is scored after 23 of 30 steps: the clock stands still then."""
    file = tmp_path_factory.mktemp("profile") / "profile.json"
    command = ["-m", "covey", "run", "examples/digits.py", "--steps", "30", "--profile", str(file)]
    done = warm.run(command, Path.cwd(), 120)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout.replace("\n", "")
    told = json.loads(file.read_text())
    assert told["displayTimeUnit"] == "ms"
    found: list[Slice] = told["traceEvents"]
    return found


def named(profile: list[Slice], kind: str) -> dict[tuple[int, int], str]:
    return {(one["pid"], one["tid"]): one["args"]["name"] for one in profile if one["name"] == kind}


def test_every_role_is_a_process_with_threads_of_covey_and_of_torch(profile: list[Slice]) -> None:
    roles = {pid: name for (pid, _), name in named(profile, "process_name").items()}
    assert sorted(roles.values()) == ["server 0", "worker 0", "worker 1"]
    threads = named(profile, "thread_name")
    for pid, role in roles.items():
        torch = {name for (of, _), name in threads.items() if of == pid} - {"covey"}
        assert "torch: exchange" in torch and ("torch: computing" in torch) == role.startswith("worker"), (role, torch)
    assert {(one["pid"], one["tid"]) for one in profile if one["ph"] in "Xsf"} <= threads.keys()


def test_what_torch_computes_lies_within_the_step_that_it_belongs_to(profile: list[Slice]) -> None:
    threads = named(profile, "thread_name")
    for pid in (1, 2):
        steps = [one for one in profile if one["pid"] == pid and one.get("cat") == "compute"]
        layers = [one for one in profile if one["pid"] == pid and one["name"] == "aten::addmm"]
        assert len(steps) == 30 and {threads[one["pid"], one["tid"]] for one in layers} == {"torch: computing"}
        for step in steps:
            assert sum(inside(layer, step) for layer in layers) == 2, "the model has two linear layers"
        assert len(layers) == 60


def test_slices_of_a_thread_lie_within_one_another_or_apart(profile: list[Slice]) -> None:
    for track in {(one["pid"], one["tid"]) for one in profile if one.get("cat") == "torch"}:
        around: list[Slice] = []
        for one in sorted(
            (one for one in profile if one["ph"] == "X" and (one["pid"], one["tid"]) == track),
            key=lambda one: (one["ts"], -one["dur"]),
        ):
            while around and one["ts"] >= around[-1]["ts"] + around[-1]["dur"]:
                around.pop()
            assert not around or one["ts"] + one["dur"] <= around[-1]["ts"] + around[-1]["dur"] + 1e-3
            around.append(one)


def test_the_clocks_of_roles_agree(profile: list[Slice]) -> None:
    """A message arrives after it was sent, by clocks that began at different moments; a score may part them."""
    steps = [one["ts"] for one in profile if one["pid"] == 1 and one.get("cat") == "compute"]
    sent = {one["id"]: one["ts"] for one in profile if one["ph"] == "s" and one["ts"] < steps[20]}
    took = [one["ts"] - sent[one["id"]] for one in profile if one["ph"] == "f" and one["id"] in sent]
    assert len(took) >= 60 and min(took) > 0, "an arrow that had to be straightened takes no time"


LOOP = """
import covey, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with covey.join(model, optimizer) as member:
    for (x,) in member.shard((torch.randn(96, 8),), batch_size=8):
        loss = model(x).square().mean()
        loss.backward()
        member.step(loss)
"""


def test_a_script_with_its_own_loop_has_a_profile_too(warm: Warm, tmp_path: Path) -> None:
    script, file = tmp_path / "loop.py", tmp_path / "profile.json"
    script.write_text(LOOP)
    done = warm.run(["-m", "covey", "launch", str(script), "--profile", str(file), "--no-record"], Path.cwd(), 120)
    assert done.returncode == 0, done.stderr
    found: list[Slice] = json.loads(file.read_text())["traceEvents"]
    roles = {pid: name for (pid, _), name in named(found, "process_name").items()}
    assert sorted(roles.values()) == ["server 0", "worker 0", "worker 1"]
    threads = named(found, "thread_name")
    for pid in (number for number, name in roles.items() if name.startswith("worker")):
        steps = [one for one in found if one["pid"] == pid and one.get("cat") == "compute"]
        layers = [one for one in found if one["pid"] == pid and one["name"] == "aten::addmm"]
        each = [sum(inside(layer, step) for layer in layers) for step in steps]
        assert each == [2] * 6 + [0], "in the last one the loop finds that it has no more batches"
        assert {threads[one["pid"], one["tid"]] for one in layers} == {"torch: computing"}


def test_virtual_time_has_no_profile() -> None:
    with pytest.raises(PlanError, match="profiled=… is for real processes, not for simulated"):
        fit("examples/digits.py", engine="simulated", profiled=True)


def test_two_answers_cannot_both_be_the_output(warm: Warm) -> None:
    done = warm.run(["-m", "covey", "run", "examples/digits.py", "--json", "-", "--profile", "-"], Path.cwd(), 60)
    assert done.returncode == 2 and "name a file for one of them" in done.stderr

"""A client that is itself a group of workers: it reports what one worker with all its samples would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covey.engines.interrupt import Interrupt
from covey.engines.service.greeting import Welcome
from covey.engines.service.guest_keys import KeyFolder, read_key
from covey.errors import PlanError
from covey.federated.local_training import LocalPlan, LocalTraining
from covey.federated.messages import Configuration
from covey.model import build
from covey.run.federated.joining import JoinedClient
from covey.run.federated.worker_group import WorkerGroup
from covey.task import Task
from covey.vector import Vector
from tests.federated.conftest import SAMPLES, regression
from tests.federated.real_run import RealRun, ended, four

__all__ = ["four"]


def given(number: int = 0, share: float = 0.5) -> Configuration:
    return Configuration(number, share, Vector([torch.tensor([0.3, -1.0, 0.2, 0.9, 0.1]).double()]), Vector(()))


def test_a_group_takes_the_steps_of_one_worker_with_all_samples(task: Task) -> None:
    """With whole batches the order of samples does not matter; a third of the rate is what the task asks for."""
    task, plan = replace(task, rate=lambda share: share / 1.5), LocalPlan(epochs=3, batch="all")
    alone = LocalTraining(task, build.model(task, 0), task.data, plan, {4: torch.arange(SAMPLES)}, 0).train(4, given())
    group = WorkerGroup(task, build.model(task, 1), plan, SAMPLES, 2, 0).train(4, given())
    assert group.samples == alone.samples == SAMPLES
    assert (group.update.parts[0] - alone.update.parts[0]).abs().max() < 1e-12 < alone.update.norm()


def client(tmp_path: Path, workers: int, task: Task) -> JoinedClient:
    KeyFolder(tmp_path / "keys").add("alice", 500, tmp_path / "alice.key")
    key = read_key(tmp_path / "alice.key")
    return JoinedClient("tcp://nowhere:1", key, task, "hash", print, Interrupt(), None, workers)


@pytest.mark.parametrize(
    ("strategy", "samples", "why"),
    [
        ("fedsgd", SAMPLES, "fedsgd: it asks for the gradient of all samples"),
        ("fedprox(mu=0.5)", SAMPLES, "mu=0.5 pulls each step back"),
        ("fedavg(update=mask)", SAMPLES, "update=mask: it restricts each step"),
        ("fedavg", 2, "2 samples, fewer than workers"),
    ],
)
def test_what_a_group_cannot_do_is_refused_by_name(tmp_path: Path, strategy: str, samples: int, why: str) -> None:
    one = client(tmp_path, 3, regression(samples))
    with pytest.raises(PlanError, match=f"workers.3 and .*{why}"):
        one._trained(Welcome("alice", strategy, 0))


def test_several_workers_make_a_group_and_one_does_not(tmp_path: Path) -> None:
    assert isinstance(client(tmp_path, 2, regression())._trained(Welcome("alice", "fedavg", 0)), WorkerGroup)
    (tmp_path / "other").mkdir()
    assert isinstance(client(tmp_path / "other", 1, regression())._trained(Welcome("a", "fedavg", 0)), LocalTraining)


@pytest.mark.full
def test_a_group_takes_part_in_real_rounds(four: RealRun) -> None:
    service = four.serve(per_round=4, rounds=2, strategy="fedavg(epochs=2)", reporting="100s")
    clients = [four.join(client, workers=2 if client == 0 else 1) for client in range(4)]
    assert ended(service, 300) == 0 and [ended(client, 300) for client in clients] == [0] * 4
    told = four.result()
    assert [one["reports"] for one in told["participation"]["rounds"]] == [4, 4] and not told["failures"]

"""A service and clients as real processes: the same run as in virtual time, with deaths of either side."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.federated.messages import COORDINATOR, CheckIn, Configuration
from covey.run import federate
from covey.store.model_store import ModelStore
from tests.federated.conftest import regression
from tests.federated.real_run import SLOW_TASK, RealRun, awaited, checkpoints, ended, four, real_run

__all__ = ["four"]


def test_real_clients_train_the_model_that_simulated_ones_do(four: RealRun) -> None:
    """The programs are the same: with equal shares and seeds only the order of additions differs."""
    service = four.serve(
        per_round=4, rounds=3, save=four.folder / "model.safetensors", strategy="fedavg(epochs=2)", register="crowd",
        store=four.folder / "models",
    )  # fmt: skip
    clients = [four.join(client) for client in range(4)]
    assert ended(service) == 0 and [ended(client) for client in clients] == [0] * 4
    simulated = federate(
        regression(), "fedavg(epochs=2)", 4, per_round=4, rounds=3, over=1.0, runs=False, speed_spread=0.0
    )
    for name, found in load_file(four.folder / "model.safetensors").items():
        assert torch.allclose(found, simulated.weights[name], rtol=0, atol=1e-12)
    version = ModelStore(four.folder / "models").named("crowd")
    assert version.tensors.keys() == simulated.weights.keys() and version.origin.data == ""
    assert [(run.engine, run.workers) for run in version.origin.runs] == [("served", 4)]
    told = four.result()
    assert [one["reports"] for one in told["participation"]["rounds"]] == [4, 4, 4]
    assert told["engine"] == "served" and told["samples"] == 3 * 2 * 60 and not told["failures"]
    said = (four.folder / "said0").read_text()
    assert "as c0" in said and "round 3: trained on 15 samples" in said and "the run is over" in said


def test_a_killed_client_drops_out_and_its_round_goes_on(four: RealRun) -> None:
    """Reporting waits a minute for those who are silent; one whose link has ended is not waited for."""
    service = four.serve(per_round=4, least=0.5, rounds=1, selection="60s", reporting="60s")
    clients = [four.join(client) for client in range(3)]
    with closing(four.dial(3)) as link:
        link.send(COORDINATOR, CheckIn())
        awaited(lambda: any(isinstance(one, Configuration) for one in link.poll(1)), 300, "the model")
    began = time.monotonic()
    assert ended(service) == 0 and time.monotonic() - began < 40
    assert [ended(client) for client in clients] == [0] * 3
    (first,) = four.result()["participation"]["rounds"]
    assert (first["reports"], first["dropped"], first["state"]) == (3, 1, "committed")
    left = [line for line in (four.folder / "served").read_text().splitlines() if " left " in line]
    assert left == ["client 3 (c3) left in round 1, before it was done"], "those who reported have not left"


@pytest.mark.full
def test_a_service_that_is_killed_goes_on_between_rounds(four: RealRun) -> None:
    """Its clients dial again by themselves; the rounds that were over stay as they were."""
    kept, rounds = four.folder / "kept", 6
    first = four.serve(per_round=4, rounds=rounds, checkpoint=kept)
    port = four.port
    clients = [four.join(client) for client in range(4)]
    awaited(lambda: (four.folder / "states").exists() and four.states()[-1][0] >= 2, 300, "two rounds")
    first.kill()
    first.join()
    before = four.states()
    again = four.serve(listen=port, per_round=4, rounds=rounds, checkpoint=kept)
    assert ended(again) == 0 and [ended(client) for client in clients] == [0] * 4
    after = four.states()[len(before) :]
    assert after[0] in before[-2:], "it goes on from the model of a round that was over"
    assert [number for number, _ in after] == list(range(after[0][0], rounds + 1))
    told = four.result()["participation"]
    assert [one["number"] for one in told["rounds"]] == list(range(rounds)) and told["committed"] == rounds
    assert len(checkpoints(kept)) == 2


@pytest.mark.full
def test_ctrl_c_ends_a_service_and_a_client_well(four: RealRun) -> None:
    service = four.serve(per_round=4, rounds=1000, save=four.folder / "model.safetensors")
    clients = [four.join(client) for client in range(4)]
    said = four.folder / "said0"
    awaited(lambda: said.exists() and "round 3" in said.read_text(), 300, "two rounds")
    for process in (clients[0], service):
        assert process.pid
        os.kill(process.pid, signal.SIGINT)
    assert ended(service) == 0 and ended(clients[0]) == 0
    told = four.result()
    assert told["stopped"] == "interrupted" and told["participation"]["committed"] >= 2
    assert (four.folder / "model.safetensors").exists()


def killed_at_random(run: RealRun, rounds: int, killed: int, seed: int) -> None:
    """Kill some of the clients, one after another; each round commits, or leaves the model as it was, to the bit."""
    chance = random.Random(seed)
    service = run.serve(
        per_round=run.clients // 2, over=1.2, least=0.8, rounds=rounds, selection="5s", reporting="5s",
        checkpoint=run.folder / "kept", strategy="fedavg(epochs=4)",
    )  # fmt: skip
    clients = [run.join(client) for client in range(run.clients)]
    awaited(lambda: (run.folder / "states").exists() and run.states()[-1][0] >= 2, 300, "two rounds")
    for victim in chance.sample(clients, killed):
        time.sleep(chance.uniform(0.0, 0.3))
        victim.kill()
    assert ended(service, 300) == 0
    told, states = run.result()["participation"], run.states()
    begun = [record for record in told["rounds"] if record["state"] != "not begun"]
    assert len(begun) == rounds and [number for number, _ in states] == list(range(rounds + 1))
    for record, (_, before), (_, after) in zip(begun, states, states[1:], strict=False):
        assert (before != after) == (record["state"] == "committed"), record
    assert told["committed"] >= rounds // 2


@pytest.mark.full
def test_rounds_commit_or_leave_the_model_when_clients_are_killed(tmp_path: Path) -> None:
    with real_run(tmp_path, 6, task=SLOW_TASK) as run:
        killed_at_random(run, rounds=8, killed=2, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_a_third_of_twenty_clients_is_killed(tmp_path: Path, seed: int) -> None:
    with real_run(tmp_path, 20, task=SLOW_TASK) as run:
        killed_at_random(run, rounds=30, killed=7, seed=seed)

"""How long do rounds take with real clients, and how long in virtual time?"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from covey.run import federate
from tests.federated.real_run import ended, real_run

pytestmark = [pytest.mark.alone, pytest.mark.full]

TASK = """
import time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from covey.task import Task

def step(model, batch):
    time.sleep(0.1)  # what a batch takes, however many clients share the cores of this machine
    return nn.functional.mse_loss(model(batch[0]), batch[1])

task = Task(
    model=lambda: nn.Linear(4, 1), data=TensorDataset(torch.randn(320, 4), torch.randn(320, 1)), step=step,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01), batch_size=8,
)
"""
DATA = """
import torch
data = torch.randn(16, 4), torch.randn(16, 1)  # of client {client} of {clients}
"""
STRATEGY, ROUNDS = "fedavg(epochs=4)", 20


def test_rounds_take_as_long_as_simulated_ones(tmp_path: Path) -> None:
    with real_run(tmp_path, 20, task=TASK, data=DATA) as run:
        service = run.serve(per_round=10, over=1.3, rounds=ROUNDS, selection="10s", strategy=STRATEGY)
        for client in range(20):
            run.join(client)
        assert ended(service, 120) == 0
        real = [one["took"] for one in run.result()["participation"]["rounds"]]
        simulated = federate(
            str(tmp_path / "task.py"), STRATEGY, 20, per_round=10, over=1.3, rounds=ROUNDS, selection="10s",
            reporting="10s", compute="100ms", speed_spread=0.0, bandwidth="10gbit", uplink="10gbit", latency="0.1ms",
            link_spread=0.0, timing_only=True, runs=False,
        )  # fmt: skip
    assert simulated.participation
    expected = mean(one.took for one in simulated.participation.rounds[8:])
    found = mean(real[8:])
    print(f"a round took {found:.3f} s, and {expected:.3f} s in virtual time")
    assert found == pytest.approx(expected, rel=0.15)

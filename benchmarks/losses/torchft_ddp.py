"""The model under torchft's DDP, as its README has it: two replica groups of one worker, each kept up by a torchrun.

The survivor goes on when the lighthouse has missed the heartbeats of the lost worker for `--patience` milliseconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import timedelta
from itertools import count
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from benchmarks.losses import noted

GROUPS = 2
LIGHTHOUSE, GROUP, HEARTBEAT = "TORCHFT_LIGHTHOUSE", "REPLICA_GROUP_ID", "TORCHFT_HEARTBEAT_MS"


def train(group: int) -> None:
    torch.set_num_threads(1)
    module = noted.model()

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"group_{group}", timeout=timedelta(seconds=30), hostname="localhost",
        heartbeat_interval=timedelta(milliseconds=int(os.environ[HEARTBEAT])),
    )  # fmt: skip
    optimizer = Optimizer(manager, noted.optimizer(module.parameters()))
    data, (x, y) = DistributedDataParallel(manager, module), noted.samples()
    for _ in count():
        optimizer.zero_grad()  # starts the quorum
        chosen = torch.arange(noted.BATCH) + (manager.current_step() * GROUPS + group) * noted.BATCH
        nn.functional.cross_entropy(data(x[chosen % len(x)]), y[chosen % len(x)]).backward()
        optimizer.step()


def keep_up(patience: int, heartbeat: int) -> None:
    """A lighthouse here, and a torchrun for each group, which starts its worker again."""
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000, heartbeat_timeout_ms=patience
    )
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts",
        "9999", "--monitor-interval", "0.1", "-m", "benchmarks.losses.torchft_ddp",
    ]  # fmt: skip
    known = {**os.environ, LIGHTHOUSE: address, HEARTBEAT: str(heartbeat)}
    groups = [subprocess.Popen(command, env={**known, GROUP: str(group)}) for group in range(GROUPS)]
    try:
        groups[0].wait()
    finally:
        for group in groups:
            group.terminate()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--patience", type=int, default=5000)
    asked.add_argument("--heartbeat", type=int, default=100)
    given = asked.parse_args()
    if group := os.environ.get(GROUP):
        train(int(group))
    else:
        keep_up(given.patience, given.heartbeat)


if __name__ == "__main__":
    main()

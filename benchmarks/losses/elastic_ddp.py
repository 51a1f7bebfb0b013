"""The model under DDP, as torchrun's manual has it: a snapshot every 20 steps, from which a restarted group goes on."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.losses import noted

EVERY = 20  # steps


def train(rank: int, size: int, snapshot: Path) -> None:
    torch.set_num_threads(1)
    module = noted.model()
    optimizer = noted.optimizer(module.parameters())
    begin = 0
    if snapshot.exists():
        state = torch.load(snapshot, weights_only=True)
        module.load_state_dict(state["model"])
        begin = state["step"]
    data, (x, y) = DistributedDataParallel(module), noted.samples()
    for step in count(begin):
        chosen = torch.arange(noted.BATCH) + (step * size + rank) * noted.BATCH
        optimizer.zero_grad()
        nn.functional.cross_entropy(data(x[chosen % len(x)]), y[chosen % len(x)]).backward()
        optimizer.step()
        if rank == 0 and step % EVERY == 0:
            torch.save({"model": module.state_dict(), "step": step + 1}, snapshot.with_suffix(".new"))
            snapshot.with_suffix(".new").replace(snapshot)


def main() -> None:
    torch.distributed.init_process_group("gloo")
    train(torch.distributed.get_rank(), torch.distributed.get_world_size(), Path(os.environ["SNAPSHOT"]))


if __name__ == "__main__":
    main()

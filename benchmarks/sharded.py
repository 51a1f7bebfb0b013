"""How long does a step of a small GPT take with its parameters divided between two processes: covey against FSDP2?

One thread each, the same model, data and optimizer (Adam), each layer of the model gathered by itself; beside them
whole models, by `sliced` and by DDP. All take turns, medians of five rounds. `python -m benchmarks.sharded [ROUNDS]`
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

import covey
from benchmarks.push_pull import free_port
from benchmarks.tensor import BATCH, MEMBERS, ROUNDS, STEPS, gpt, loss, text

OURS = {
    "covey, zero=3": "allreduce with mesh(shard=2)", "covey, zero=2": "allreduce with mesh(shard=2, zero=2)",
    "covey, zero=1": "allreduce with mesh(shard=2, zero=1)", "covey, sliced": "sliced",
}  # fmt: skip


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


task = covey.Task(
    model=gpt, data=(text[:, :-1].contiguous(), text[:, 1:].contiguous()), optimizer=adam, loss=loss, batch_size=BATCH
)


def ours(spec: str) -> float:
    """Seconds of a step."""
    return covey.fit(task, spec, MEMBERS, steps=STEPS, threads=1, runs=False).seconds / STEPS


def trained(model: nn.Module, rank: int) -> tuple[float, Tensor]:
    """The same of a plain loop, and the last loss."""
    optimizer, data = adam(model.parameters()), text.view(STEPS, BATCH, -1)
    begin, last = 0.0, torch.zeros(())
    for step in range(-2, STEPS):
        if step == 0:
            begin = time.perf_counter()
        batch = data[(step + rank) % STEPS]
        optimizer.zero_grad()
        last = loss(model(batch[:, :-1]), batch[:, 1:])
        last.backward()
        optimizer.step()
    return (time.perf_counter() - begin) / STEPS, last


def torchs(rank: int, how: str, port: int, answer: Connection) -> None:
    """A member of torch's own."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=MEMBERS)
    model = gpt()
    if how == "FSDP2":
        mesh = init_device_mesh("cpu", (MEMBERS,))
        assert isinstance(model, nn.Sequential)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    seconds, last = trained(model, rank)
    assert bool(last.isfinite())
    if rank == 0:
        answer.send(seconds)
    distributed.destroy_process_group()


def apart(how: str) -> float:
    """Seconds of a step of torch's own, in processes of their own."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    here, there = context.Pipe()
    processes = [context.Process(target=torchs, args=(rank, how, port, there)) for rank in range(MEMBERS)]
    for process in processes:
        process.start()
    found: float = here.recv()
    for process in processes:
        process.join()
    return found


def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """Medians of seconds of a step, and what covey's are of torch's: medians, least and most."""
    times: dict[str, list[float]] = {name: [] for name in ("FSDP2", "DDP", *OURS)}
    for _ in range(rounds):
        for name in ("FSDP2", "DDP"):
            times[name].append(apart(name))
        for name, spec in OURS.items():
            times[name].append(ours(spec))
    found: dict[str, Any] = {name: round(statistics.median(each), 4) for name, each in times.items()}
    against = {"covey, zero=3": "FSDP2", "covey, zero=2": "covey, sliced", "covey, zero=1": "covey, sliced"}
    for name, theirs in against.items():
        ratios = [mine / other for mine, other in zip(times[name], times[theirs], strict=True)]
        shares = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        found[f"{name} of {theirs}"] = {word: round(share, 2) for word, share in shares.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=1))

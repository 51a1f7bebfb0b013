"""How long does a step of a small GPT take with its layers divided between two processes: covey against DTensor?

One thread each, the same model, data, optimizer and plan (queries, keys, values and the first layer of a block by
columns, the others by rows); beside them the whole model on one thread. All take turns, medians of five rounds.
`python -m benchmarks.tensor`
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from benchmarks.push_pull import free_port

WIDTH, HEADS, DEPTH, WORDS, TIME, BATCH = 256, 4, 4, 256, 64, 16
STEPS, ROUNDS, MEMBERS = 10, 5, 2
SPLIT = "*.query:column *.key:column *.value:column *.out:row *.up:column *.down:row"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.each = width // HEADS

    def forward(self, x: Tensor) -> Tensor:
        y, (batch, length, _) = self.before(x), x.shape
        heads = [
            layer(y).view(batch, length, -1, self.each).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(F.gelu(self.up(self.between(x))))


def gpt(width: int = WIDTH, depth: int = DEPTH) -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, width), *(Block(width) for _ in range(depth)), nn.Linear(width, WORDS))


def loss(scores: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), following.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


chance = torch.Generator().manual_seed(0)
text = torch.randint(0, WORDS, (BATCH * STEPS, TIME + 1), generator=chance)
task = covey.Task(
    model=gpt, data=(text[:, :-1].contiguous(), text[:, 1:].contiguous()), optimizer=sgd, loss=loss, batch_size=BATCH
)


def ours(split: str) -> float:
    """Seconds of a step."""
    mesh = f'allreduce with mesh(tensor={MEMBERS}, split="{split}")'
    return covey.fit(task, mesh, MEMBERS, steps=STEPS, threads=1, runs=False).seconds / STEPS


def trained(model: nn.Module) -> float:
    """The same of a plain loop."""
    optimizer, data = sgd(model.parameters()), text.view(STEPS, BATCH, -1)
    begin = 0.0
    for step in range(-2, STEPS):
        if step == 0:
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss(model(data[step, :, :-1]), data[step, :, 1:]).backward()
        optimizer.step()
    return (time.perf_counter() - begin) / STEPS


def alone(answer: Connection) -> None:
    torch.set_num_threads(1)
    answer.send(trained(gpt()))


def dtensor(rank: int, port: int, answer: Connection) -> None:
    """A member of torch's own."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=MEMBERS)
    kinds = {"column": ColwiseParallel, "row": RowwiseParallel}
    named = [word.split(":") for n in range(DEPTH) for word in SPLIT.replace("*", str(n + 1)).split()]
    plan: Any = {name: kinds[kind]() for name, kind in named}
    model = parallelize_module(gpt(), init_device_mesh("cpu", (MEMBERS,)), plan)
    seconds = trained(model)
    if rank == 0:
        answer.send(seconds)
    distributed.destroy_process_group()


def apart(work: Any, *given: Any, members: int = 1) -> float:
    """What processes of their own find."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    ranks = [(rank,) if members > 1 else () for rank in range(members)]
    processes = [context.Process(target=work, args=(*rank, *given, there)) for rank in ranks]
    for process in processes:
        process.start()
    seconds: float = here.recv()
    for process in processes:
        process.join()
    return seconds


def measure() -> dict[str, Any]:
    """Seconds of a step, and covey's share of DTensor's: medians, least and most."""
    times: dict[str, list[float]] = {name: [] for name in ("one thread", "DTensor", "covey", "covey, best")}
    for _ in range(ROUNDS):
        times["one thread"].append(apart(alone))
        times["DTensor"].append(apart(dtensor, free_port(), members=MEMBERS))
        times["covey"].append(ours(SPLIT))
        times["covey, best"].append(ours("best"))
    found: dict[str, Any] = {name: round(statistics.median(each), 4) for name, each in times.items()}
    ratios = [mine / theirs for mine, theirs in zip(times["covey"], times["DTensor"], strict=True)]
    shares = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return {**found, "of DTensor's": {name: round(share, 2) for name, share in shares.items()}}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))

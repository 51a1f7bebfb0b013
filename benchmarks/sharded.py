"""How long does a step of a small GPT take with its parameters divided between two processes, and how much memory?

One thread each, the same model, data and optimizer (Adam), each layer of the model gathered by itself: covey against
FSDP2, and DeepSpeed where it is installed; beside them whole models, by `sliced` and by DDP. All take turns, medians of
five rounds; then the peak memory of a process with a larger GPT, above that with a tiny one. What a run found is kept
in a file, so that a benchmark that was stopped goes on. `python -m benchmarks.sharded [ROUNDS [FILE]]`
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import covey
from benchmarks.kept import Kept
from benchmarks.push_pull import free_port
from benchmarks.tensor import BATCH, DEPTH, MEMBERS, ROUNDS, STEPS, WIDTH, gpt, loss, text

OURS = {
    "covey, zero=3": "allreduce with mesh(shard=2)", "covey, zero=2": "allreduce with mesh(shard=2, zero=2)",
    "covey, zero=1": "allreduce with mesh(shard=2, zero=1)", "covey, sliced": "sliced",
}  # fmt: skip
TORCH = ("FSDP2", "DDP")
DEEPSPEED = tuple(f"DeepSpeed, zero={stage}" for stage in (1, 2, 3))
AGAINST = {
    "covey, zero=3": ("FSDP2", "DeepSpeed, zero=3"), "covey, zero=2": ("covey, sliced", "DeepSpeed, zero=2"),
    "covey, zero=1": ("covey, sliced", "DeepSpeed, zero=1"),
}  # fmt: skip
LARGE, TINY = (512, 8), (16, 8)  # width and depth of the models whose memory is compared: 25 million parameters
Found = dict[str, float]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


task = covey.Task(
    model=gpt, data=(text[:, :-1].contiguous(), text[:, 1:].contiguous()), optimizer=adam, loss=loss, batch_size=BATCH
)


def ours(spec: str, size: tuple[int, int] = (WIDTH, DEPTH), steps: int = STEPS) -> Found:
    """Seconds of a step, and bytes of the fullest worker at its fullest."""
    result = covey.fit(replace(task, model=partial(gpt, *size)), spec, MEMBERS, steps=steps, threads=1, runs=False)
    workers = [shares.memory for who, shares in result.roles.items() if who.startswith("worker")]
    return {"seconds": result.seconds / steps, "memory": max(workers)}


def trained(model: nn.Module, rank: int, steps: int, step_of: Callable[[Tensor], None]) -> float:
    """Seconds of a step of a plain loop."""
    data, begin, last = text.view(STEPS, BATCH, -1), 0.0, torch.zeros(())
    for step in range(-2, steps):
        if step == 0:
            begin = time.perf_counter()
        batch = data[(step + rank) % STEPS]
        last = loss(model(batch[:, :-1]), batch[:, 1:])
        step_of(last)
    assert bool(last.isfinite())
    return (time.perf_counter() - begin) / steps


def member(rank: int, how: str, size: tuple[int, int], steps: int, port: int, answer: Connection) -> None:
    """A process of torch's own, or of DeepSpeed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of every layer that ends with a view
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": MEMBERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in where.items()})
    from torch import distributed

    if not how.startswith("DeepSpeed"):
        distributed.init_process_group("gloo", rank=rank, world_size=MEMBERS)
    model, step_of = (_deepspeed if how.startswith("DeepSpeed") else _torch)(how, gpt(*size))
    seconds = trained(model, rank, steps, step_of)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer.send((seconds, memory))
    distributed.destroy_process_group()


def _torch(how: str, model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], None]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if how == "FSDP2":
        mesh = init_device_mesh("cpu", (MEMBERS,))
        assert isinstance(model, nn.Sequential)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = adam(model.parameters())

    def step_of(found: Tensor) -> None:
        found.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step_of


def _deepspeed(how: str, model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], None]]:
    import deepspeed

    deepspeed.init_distributed("gloo")
    settings = {
        "train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": int(how[-1])},
        "zero_allow_untested_optimizer": True, "wall_clock_breakdown": False,
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam(model.parameters()), config=settings)

    def step_of(found: Tensor) -> None:
        engine.backward(found)
        engine.step()

    return engine, step_of


def apart(how: str, size: tuple[int, int] = (WIDTH, DEPTH), steps: int = STEPS) -> Found:
    """The same of others, in processes of their own, which end with this one."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    here, there = context.Pipe()
    given = how, size, steps, port, there
    processes = [context.Process(target=member, args=(rank, *given), daemon=True) for rank in range(MEMBERS)]
    for process in processes:
        process.start()
    answers = []
    while len(answers) < MEMBERS:
        if here.poll(1.0):
            answers.append(here.recv())
        elif any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
            raise RuntimeError(f"{how}: a process ended with an error")
    for process in processes:
        process.join()
    return {"seconds": max(seconds for seconds, _ in answers), "memory": max(memory for _, memory in answers)}


def ran(name: str, **given: Any) -> Found:
    return ours(OURS[name], **given) if name in OURS else apart(name, **given)


def names() -> tuple[str, ...]:
    known = importlib.util.find_spec("deepspeed") is not None
    return (*TORCH, *(DEEPSPEED if known else ()), *OURS)


def measure(rounds: int = ROUNDS, file: str | None = None) -> dict[str, Any]:
    """Medians of seconds of a step, and what covey's are of the others': medians, least and most; and MB."""
    kept = Kept(Path(file) if file else None)

    def once(key: str, name: str, **given: Any) -> Found:
        if key not in kept.found:
            kept.keep(key, ran(name, **given))
            print(f"{key}: {kept.found[key]}", file=sys.stderr, flush=True)
        found: Found = kept.found[key]
        return found

    teams = names()
    times: dict[str, list[float]] = {name: [] for name in teams}
    for number in range(rounds):
        for name in teams:
            times[name].append(once(f"round {number}, {name}", name)["seconds"])
    found: dict[str, Any] = {name: round(statistics.median(each), 4) for name, each in times.items()}
    for name, theirs in ((name, other) for name, others in AGAINST.items() for other in others if other in times):
        ratios = [mine / other for mine, other in zip(times[name], times[theirs], strict=True)]
        shares = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        found[f"{name} of {theirs}"] = {word: round(share, 2) for word, share in shares.items()}
    memory = {}
    for name in teams:
        large, tiny = (once(f"memory, {size}, {name}", name, size=size, steps=2)["memory"] for size in (LARGE, TINY))
        memory[name] = round((large - tiny) / 1e6)
    return {**found, "MB": memory, "parameters": sum(p.numel() for p in gpt(*LARGE).parameters())}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes end, and what was found is kept
    wanted = sys.argv[1:]
    print(json.dumps(measure(*map(int, wanted[:1]), *wanted[1:]), indent=1))

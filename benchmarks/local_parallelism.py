"""The single-node study again: how much faster is an epoch with threads, processes, MPI, Spark and Ray?

Speed-ups against one process with one thread and the plain PyTorch loop, in the same run, with the same images and the
same batch of 32 for each worker. `python -m benchmarks.local_parallelism`
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CASES = ("complex_small", "simple_big")
PAPER = {  # Lerat et al., Tables 1 and 3, CPU
    "threads": {"complex_small": 4.0, "simple_big": 6.15},
    "processes": {"complex_small": 5.76, "simple_big": 15.57},
    "mpi": {"complex_small": 12.11, "simple_big": 26.62},
    "spark": {"complex_small": 1.14, "simple_big": 0.53},
}
WORKERS = 2
ENGINES = {"processes": "local", "mpi": "mpi", "spark": "spark", "ray": "ray", "torchrun": "torchrun"}


def plain(case: str, threads: int) -> tuple[float, float]:
    """Seconds of one epoch of the plain loop, in a process of its own: of training, and in all."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.local_parallelism", case, str(threads)],
        capture_output=True, text=True, check=True, cwd=HERE.parent,
    )  # fmt: skip
    return float(done.stdout.split()[-1]), time.perf_counter() - begin


def loop(case: str, threads: int) -> float:
    import torch

    from benchmarks import shapes

    torch.set_num_threads(threads)
    task = getattr(shapes, case)
    model = task.model()
    optimizer = task.optimizer(model.named_parameters())
    images, labels = task.data
    begin = time.perf_counter()
    for indices in torch.randperm(len(labels)).split(task.batch_size * WORKERS):  # the same batch of the whole run
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[indices]), labels[indices]).backward()
        optimizer.step()
    return time.perf_counter() - begin


def engine(name: str, case: str) -> tuple[float, float]:
    """The same epoch on an engine of covey's, with an all-reduce of gradients."""
    import covey

    begin = time.perf_counter()
    result = covey.fit(f"{HERE / 'shapes.py'}:{case}", "allreduce", WORKERS, epochs=1, threads=1, engine=ENGINES[name])
    return result.seconds, time.perf_counter() - begin


def measure(rounds: int = 3) -> dict[str, Any]:
    """The median of a few turns, in each of which everybody runs once."""
    rows = {"one thread": partial(plain, threads=1), "threads": partial(plain, threads=WORKERS)}
    rows |= {name: partial(lambda case, name: engine(name, case), name=name) for name in ENGINES}
    found: dict[str, Any] = {}
    for case in CASES:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name, run in rows.items():
                times[name].append(run(case=case))
        base = [statistics.median(pair[part] for pair in times["one thread"]) for part in (0, 1)]
        found[case] = {
            name: {
                "training": round(base[0] / statistics.median(pair[0] for pair in pairs), 2),
                "with starting": round(base[1] / statistics.median(pair[1] for pair in pairs), 2),
                "paper": PAPER.get(name, {}).get(case),
            }
            for name, pairs in times.items()
        }
        found[case]["seconds of one thread"] = round(base[0], 2)
    return found


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(loop(sys.argv[1], int(sys.argv[2])))
    else:
        import json

        print(json.dumps(measure(), indent=1))

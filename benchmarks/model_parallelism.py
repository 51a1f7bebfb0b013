"""Table 2 of the single-node study again: how much faster is an epoch with the model cut, and with data cut as well?

Speed-ups against one process with one thread and the plain PyTorch loop, in the same run, with the same images and the
same 64 of them for an update. The networks are those of `benchmarks.local_parallelism`, with whose numbers these
belong: the paper used GPUs here, and says nothing about its timetable. `python -m benchmarks.model_parallelism`
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from typing import Any

import covey
from benchmarks import shapes
from benchmarks.local_parallelism import CASES, WORKERS, plain

MESH = "timetable=1f1b, microbatches=8"
ROWS = {  # strategy, workers, and among how many replicas a batch is shared out
    "data": ("allreduce", 2, 2),
    "model": (f"allreduce with mesh(stage=2, {MESH})", 2, 1),
    "data and model": (f"allreduce with mesh(replica=2, stage=2, {MESH})", 4, 2),
}
PAPER = {  # Lerat et al., Tables 1 and 2, GPU
    "data": {"complex_small": 1.57, "simple_big": 1.25},
    "model": {"complex_small": 6.74, "simple_big": 8.01},
    "data and model": {"complex_small": 2.84, "simple_big": 3.85},
}


def epoch(name: str, case: str) -> float:
    """Seconds of training."""
    spec, workers, replicas = ROWS[name]
    task = getattr(shapes, case)
    given = replace(task, batch_size=task.batch_size * WORKERS // replicas)
    return covey.fit(given, spec, workers, epochs=1, threads=1).seconds


def measure(rounds: int = 3) -> dict[str, Any]:
    """The median of a few turns, in each of which everybody runs once."""
    found: dict[str, Any] = {}
    for case in CASES:
        times: dict[str, list[float]] = {name: [] for name in ("one thread", *ROWS)}
        for _ in range(rounds):
            times["one thread"].append(plain(case, threads=1)[0])
            for name in ROWS:
                times[name].append(epoch(name, case))
        base = times["one thread"]
        found[case] = {"seconds of one thread": round(statistics.median(base), 2)}
        for name in ROWS:
            ratios = [alone / mine for alone, mine in zip(base, times[name], strict=True)]
            found[case][name] = {
                "faster": round(statistics.median(ratios), 2),
                "least": round(min(ratios), 2),
                "most": round(max(ratios), 2),
                "paper": PAPER[name][case],
            }
    return found


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=1))

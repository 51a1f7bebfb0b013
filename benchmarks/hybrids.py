"""Convolutions data parallel, fully connected layers cut: one weird trick against pure data parallelism.

An AlexNet-shaped network, most of whose weights are in its fully connected layers, on hosts of a lab that are joined at
100 Mbit/s and not encrypted. Bytes are what workers sent for a step, all together. All take turns. Root:
`python -m benchmarks.hybrids [ROUNDS [WORKERS]]`
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import covey
from covey.engines.lab import iproute

TASK = f"{Path(__file__).parent / 'shapes.py'}:simple_big"
RATE, STEPS = "100mbit", 12
TEAMS = {
    "data parallel": "allreduce",
    "scheme a": "one_weird_trick(scheme=a)",
    "scheme b": "one_weird_trick(scheme=b)",
}


def step(spec: str, workers: int) -> tuple[float, float]:
    """Seconds and bytes of a step."""
    result = covey.fit(
        TASK, spec, workers, steps=STEPS, threads=1, insecure=True, engine=f"lab(hosts={workers}, rate={RATE})"
    )
    return result.seconds / STEPS, result.traffic.bytes / STEPS


def measure(rounds: int = 3, workers: int = 2) -> dict[str, Any]:
    """Medians, and how many times those of pure data parallelism are."""
    if missing := iproute.missing():
        return {"skipped": missing}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in TEAMS}
    for _ in range(rounds):
        for name, spec in TEAMS.items():
            taken[name].append(step(spec, workers))
    plain = taken["data parallel"]
    return {
        name: {
            "seconds": round(statistics.median(time for time, _ in seen), 3),
            "MB": round(statistics.median(size for _, size in seen) / 1e6, 3),
            "times faster": round(statistics.median(a[0] / b[0] for a, b in zip(plain, seen, strict=True)), 2),
            "times fewer bytes": round(plain[0][1] / seen[0][1], 2),
        }
        for name, seen in taken.items()
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=1))

"""How many workers fit into virtual time? `python -m benchmarks.many_workers`"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def gossip(workers: int) -> dict[str, Any]:
    """Take digits to 90 % (mean model) with gosgd(probability=0.1)."""
    import covey

    begin = time.perf_counter()
    result = covey.fit(
        "examples/digits.py", "gosgd(probability=0.1)", workers, engine="simulated", until="accuracy>=0.9"
    )
    return {
        "workers": workers,
        "wall_seconds": round(time.perf_counter() - begin, 1),
        "virtual_seconds": round(result.seconds, 3),
        "samples": result.samples,
        "accuracy": result.history[-1]["accuracy"],
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
    }


def measure() -> list[dict[str, Any]]:
    """Each number of workers in a process of its own, for its memory."""
    rows = []
    for workers in (64, 256, 1000):
        command = [sys.executable, "-m", "benchmarks.many_workers", str(workers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
    return rows


if __name__ == "__main__":
    print(json.dumps(gossip(int(sys.argv[1])) if len(sys.argv) > 1 else measure(), indent=1))

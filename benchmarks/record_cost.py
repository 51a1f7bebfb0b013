"""What does the record of a run cost? The Fashion-MNIST CNN with a record and what is measured for it, and without.

Runs take turns, each in a process of its own. Counted are the CPU seconds of all its processes, less those of a run of
few steps, so that importing torch does not count. `python -m benchmarks.record_cost [PAIRS]`
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
SUBREAPER = 36  # of prctl(2): orphans become children of this process, which can count them then
SHORT, LONG = 10, 210  # steps of a worker
STRATEGIES = ("bsp", "bsp + topk(density=0.01)")
UNMEASURED = """
import covey.exchange.compression_error, covey.exchange.gradient_noise
covey.exchange.compression_error.SAMPLED = covey.exchange.gradient_noise.SAMPLED = 1 << 62
"""


def run(strategy: str, steps: int, recorded: bool) -> float:
    """CPU seconds of all processes of a run."""
    with TemporaryDirectory() as folder:
        task = Path(folder) / "task.py"
        task.write_text(("" if recorded else UNMEASURED) + (ROOT / "examples/fashion.py").read_text())
        command = [
            sys.executable, "-m", "covey", "run", str(task), "--strategy", strategy, "--workers", "2", "--threads", "1",
            "--steps", str(steps), "--quiet", *(["--runs", folder] if recorded else ["--no-record"]),
        ]  # fmt: skip
        before = spent()
        subprocess.run(command, cwd=ROOT, check=True)
        while True:  # the fork servers end after the command, and are ours then
            try:
                os.wait()
            except ChildProcessError:
                return spent() - before


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pair(strategy: str, number: int) -> float:
    """What a record adds, as a share; who goes first changes from pair to pair."""
    taken: dict[bool, float] = {}
    for recorded in (False, True) if number % 2 else (True, False):
        taken[recorded] = run(strategy, LONG, recorded) - run(strategy, SHORT, recorded)
    return taken[True] / taken[False] - 1


def measure(pairs: int = 8) -> dict[str, Any]:
    """The median share with the interval that holds the true one in 95 of 100 cases (of the mean, by Student)."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    found: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for number in range(pairs):
        for strategy, shares in found.items():
            shares.append(pair(strategy, number))
            print(f"{strategy}: {shares[-1]:+.2%}", file=sys.stderr, flush=True)
    return {"steps": LONG - SHORT, **{strategy: interval(shares) for strategy, shares in found.items()}}


STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 10: 2.26, 12: 2.20, 16: 2.13, 20: 2.09}


def interval(shares: list[float]) -> dict[str, float]:
    mean = statistics.fmean(shares)
    factor = STUDENT[max(count for count in STUDENT if count <= max(2, len(shares)))]
    half = factor * statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
    return {"mean": mean, "low": mean - half, "high": mean + half, "pairs": len(shares)}


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))

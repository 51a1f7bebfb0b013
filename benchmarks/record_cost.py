"""What does the record of a run cost? The Fashion-MNIST CNN with a record and what is measured for it, and without.

Runs take turns, each in a process of its own. Counted are the CPU seconds of all its processes, less those of a run of
one step, so that importing torch does not count. `python -m benchmarks.record_cost [PAIRS [STRATEGY]]`

On a busy machine pairs differ by some percent. `python -m benchmarks.record_cost accounted` therefore adds up the CPU
seconds of the record's own code instead, in the launcher and in the server, in one run.
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
STEPS = 120  # of a worker
STRATEGIES = ("bsp", "bsp + topk(density=0.01)")
UNMEASURED = """
import covey.exchange.compression_error, covey.exchange.gradient_noise
covey.exchange.compression_error.SAMPLED = covey.exchange.gradient_noise.SAMPLED = 1 << 62
"""
# Student's t for the interval that holds the true mean in 95 of 100 cases, by the number of pairs
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 10: 2.26, 12: 2.20, 16: 2.13, 20: 2.09}


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
        _wait_for_all()
        return spent() - before


def _wait_for_all() -> None:
    """The fork servers end after the command, and are ours then."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(pairs: int = 8, *strategies: str) -> dict[str, Any]:
    """What a record adds, as a share of the CPU seconds of training; who goes first changes from pair to pair."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    found: dict[str, list[float]] = {strategy: [] for strategy in strategies or STRATEGIES}
    start = run("bsp", 1, recorded=False)
    for number in range(pairs):
        for strategy, shares in found.items():
            order = (True, False) if number % 2 else (False, True)
            taken = {recorded: run(strategy, STEPS, recorded) - start for recorded in order}
            shares.append(taken[True] / taken[False] - 1)
            print(f"{strategy}: {taken[False]:.2f} s of CPU, {shares[-1]:+.2%}", file=sys.stderr, flush=True)
    return {"steps": STEPS, **{strategy: interval(shares) for strategy, shares in found.items()}}


def interval(shares: list[float]) -> dict[str, float]:
    mean = statistics.fmean(shares)
    factor = STUDENT[max(count for count in STUDENT if count <= max(2, len(shares)))]
    half = factor * statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
    return {"mean": mean, "low": mean - half, "high": mean + half, "pairs": len(shares)}


TIMED = """
import json, os, time
from pathlib import Path

def timed(owner, name):
    call, total = getattr(owner, name), [0.0]
    def wrapper(*args, **kwargs):
        begin = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            total[0] += time.thread_time() - begin
            Path(os.environ["RECORD_COST"], f"{name}-{os.getpid()}.cpu").write_text(str(total[0]))
    setattr(owner, name, wrapper)
"""


def accounted(strategy: str = "bsp") -> dict[str, float]:
    """The share of the record's own code in the CPU seconds of a run's training."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    start = run(strategy, 1, recorded=False)
    with TemporaryDirectory() as folder:
        task, launch = Path(folder) / "task.py", Path(folder) / "launch.py"
        role = f"{TIMED}\nimport covey.central.server.shard as shard\ntimed(shard, 'measure_noise')\n"
        task.write_text(role + (ROOT / "examples/fashion.py").read_text())
        launch.write_text(
            f"{TIMED}\nimport covey, covey.run.record as record\n"
            "from covey.engines.process.launcher.supervisor import Supervisor\n"
            "timed(Supervisor, 'show'), timed(record, '_made'), timed(record.RecordFolder, 'conclude')\n"
            f"covey.fit({str(task)!r}, {strategy!r}, 2, steps={STEPS}, threads=1, runs={folder!r})\n"
        )
        before = spent()
        subprocess.run([sys.executable, launch], cwd=ROOT, check=True, env={**os.environ, "RECORD_COST": folder})
        _wait_for_all()
        parts = {file.stem.rpartition("-")[0]: float(file.read_text()) for file in Path(folder).glob("*.cpu")}
    whole = spent() - before - start
    return {"seconds of CPU": whole, **parts, "share": sum(parts.values()) / whole}


if __name__ == "__main__":
    asked = sys.argv[1:]
    found = accounted(*asked[1:]) if asked[:1] == ["accounted"] else measure(*map(int, asked[:1]), *asked[1:])
    print(json.dumps(found, indent=2))

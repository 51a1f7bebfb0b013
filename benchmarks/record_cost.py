"""What does the record of a run cost, with what is measured for it? A share of the Fashion-MNIST CNN's CPU time.

`python -m benchmarks.record_cost [RUNS [STRATEGY…]]` adds up the CPU seconds of the record's own code in every process
of a run, which other programs on the machine hardly change. They are divided by the CPU seconds of all processes of the
run, less those of a run of one step, so that importing torch does not count.

`python -m benchmarks.record_cost pairs [PAIRS [STRATEGY…]]` compares runs with and without a record, in turn. On a busy
machine pairs differ by some percent.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
SUBREAPER = 36  # of prctl(2): orphans become children of this process, which can count them then
STEPS = 120  # of a worker
STRATEGIES = ("bsp", "bsp + topk(density=0.01)", "allreduce", "local_sgd(period=8)")
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


def paired(pairs: int = 8, *strategies: str) -> dict[str, Any]:
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
import os, time
from pathlib import Path

def add(name, seconds, totals={}):
    totals[name] = totals.get(name, 0.0) + seconds
    Path(os.environ["RECORD_COST"], f"{name}-{os.getpid()}.cpu").write_text(str(totals[name]))

def timed(call, name, sign=1):
    def wrapper(*args, **kwargs):
        begin = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            add(name, sign * (time.thread_time() - begin))
    return wrapper

def time_methods(owner, *names):
    for name in names:
        setattr(owner, name, timed(getattr(owner, name), f"{owner.__name__.rpartition('.')[2]}.{name}"))
"""
ROLES = f"""{TIMED}
import covey.central.server.shard, covey.exchange.codec
from covey.exchange.gradient_noise import NoiseProbe
from covey.model.scored import ScoredModel

def measuring(encode, decode, measure, made=covey.exchange.codec.measuring):
    "All that it does, less the encoding itself."
    return timed(made(timed(encode, "compression", -1), decode, measure), "compression")

covey.exchange.codec.measuring = measuring
time_methods(covey.central.server.shard, "measure_noise")
time_methods(NoiseProbe, "__init__", "met")
time_methods(ScoredModel, "_distance")
"""
LAUNCHER = f"""{TIMED}
import covey, covey.run.record
from covey.engines.process.launcher.run_news import RunNews
from covey.run.listening import RunListeners

time_methods(covey.run.record, "_made")
time_methods(RunNews, "show")
time_methods(RunListeners, "scored", "concluded")
"""


def accounted(strategy: str, start: float) -> dict[str, Any]:
    """The share of the record's own code in the CPU seconds of a run's training."""
    with TemporaryDirectory() as folder:
        task, launch = Path(folder) / "task.py", Path(folder) / "launch.py"
        task.write_text(ROLES + (ROOT / "examples/fashion.py").read_text())
        asked = f"{str(task)!r}, {strategy!r}, 2, steps={STEPS}, threads=1, runs={folder!r}"
        launch.write_text(f"{LAUNCHER}\ncovey.fit({asked})\n")
        before = spent()
        subprocess.run([sys.executable, launch], cwd=ROOT, check=True, env={**os.environ, "RECORD_COST": folder})
        _wait_for_all()
        parts: Counter[str] = Counter()
        for file in Path(folder).glob("*.cpu"):
            parts[file.stem.rpartition("-")[0]] += float(file.read_text())
    whole = spent() - before - start
    return {"seconds of CPU": whole, **parts, "share": sum(parts.values()) / whole}


def measure(runs: int = 5, *strategies: str) -> dict[str, Any]:
    """The share in each of several runs of each strategy, and what it consists of in the last one."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    found: dict[str, Any] = {"steps": STEPS}
    for strategy in strategies or STRATEGIES:
        start = run(strategy, 1, recorded=False)
        each = [accounted(strategy, start) for _ in range(runs)]
        shares = [one["share"] for one in each]
        found[strategy] = {"median": statistics.median(shares), "low": min(shares), "high": max(shares), **each[-1]}
        print(f"{strategy}: {min(shares):.2%} to {max(shares):.2%}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    asked = sys.argv[1:]
    way, words = (paired, asked[1:]) if asked[:1] == ["pairs"] else (measure, asked)
    print(json.dumps(way(*map(int, words[:1]), *words[1:]), indent=2))

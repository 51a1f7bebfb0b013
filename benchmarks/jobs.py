"""Which policy shares a cluster best, and does a rehearsal say so?  python -m benchmarks.jobs [real]

The 200 jobs of `jobs_200.json`, whose curves are recorded runs of the examples, were written down before any policy had
been run: `covey jobs rehearse --runs DIR --count 200 --slots 16 --load 0.9 --seed 2026 --write jobs_200.json`.
With `real`, six jobs run on two slots of this machine under four policies, and in a rehearsal.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from covey.jobs.job_folder import JobFolder
from covey.jobs.job_log import known_jobs
from covey.jobs.job_sets import JobSet, SetJob, drawn, read_set, recorded_curves
from covey.jobs.rehearsal import RehearsalTimes, rehearse

WRITTEN = Path(__file__).parent / "jobs_200.json"
TASK = "examples/digits.py"
STRATEGIES = {"bsp": 1, "asynchronous": 1}
SIZES = [  # when they arrive, epochs, strategy
    (0.0, 120, "bsp"), (2.0, 30, "bsp"), (4.0, 80, "asynchronous"), (6.0, 20, "bsp"), (8.0, 50, "asynchronous"),
    (10.0, 40, "bsp"),
]  # fmt: skip
RECORDED = 20  # epochs of the runs whose curves are replayed
POLICIES = ("fifo", "fair", "optimus", "slaq")
SLICE, SLOTS = 15.0, 2


def measure() -> dict[str, Any]:
    """Mean completion under each policy over that of fair shares, for the written jobs and for other loads."""
    written = read_set(WRITTEN)
    found = {"written": written} | {
        f"load {load}, seed {seed}": drawn(written.curves, 200, written.slots, load, seed)
        for load in (0.5, 0.7, 0.9, 1.1)
        for seed in (1, 2, 3)
    }
    return {name: _ratios(jobs) for name, jobs in found.items()}


def _ratios(jobs: JobSet) -> dict[str, float]:
    times = {one.policy: one.mean_completion for one in rehearse(jobs)}
    return {policy: round(seconds / times["fair"], 3) for policy, seconds in times.items()}


def real() -> dict[str, Any]:
    """Mean completion of six real jobs under four policies, and what a rehearsal of them says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for strategy in STRATEGIES:
            for workers in (1, 2):
                words = ["--strategy", strategy, "--workers", str(workers), "--epochs", str(RECORDED)]
                _covey("run", TASK, *words, "--quiet", "--runs", str(folder / "runs"))
        curves = {curve.name.split()[-1].partition("(")[0]: curve for curve in recorded_curves(folder / "runs")}
        start = _start_seconds(folder)
        jobs = JobSet(
            slots=SLOTS, curves=list(curves.values()),
            jobs=[
                SetJob(
                    name=f"{number:04d}", arrives=at, curve=curves[strategy].name, most=2, size=epochs / RECORDED,
                    known=True,
                )
                for number, (at, epochs, strategy) in enumerate(SIZES, 1)
            ],
        )  # fmt: skip
        said = {
            one.policy: one for one in rehearse(jobs, POLICIES, RehearsalTimes(slice=SLICE, start=start, error=0.0))
        }
        print(start, {policy: one.mean_completion for policy, one in said.items()}, flush=True)
        seen = {}
        for policy in POLICIES:
            seen[policy] = _served(folder / policy, policy)
            print(policy, seen[policy], flush=True)
    return {
        "start": start, "real": seen, "rehearsed": {policy: one.mean_completion for policy, one in said.items()},
        "error": {policy: said[policy].mean_completion / seen[policy] - 1 for policy in POLICIES},
        "order": [sorted(POLICIES, key=seen.__getitem__), [one.policy for one in said.values()]],
    }  # fmt: skip


def _start_seconds(folder: Path) -> float:
    """How long a command takes beside its training."""
    began = time.monotonic()
    _covey("run", TASK, "--workers", "2", "--steps", "1", "--quiet", "--runs", str(folder / "started"))
    return time.monotonic() - began


def _served(folder: Path, policy: str) -> float:
    head = subprocess.Popen(
        [sys.executable, "-m", "covey", "jobs", "serve", "--jobs", str(folder), "--slots", str(SLOTS),
         "--policy", policy, "--slice", f"{SLICE}s"]
    )  # fmt: skip
    try:
        began, queue = time.monotonic(), JobFolder(folder)
        for at, epochs, strategy in SIZES:
            time.sleep(max(0.0, began + at - time.monotonic()))
            queue.submit(["run", TASK, "--strategy", strategy, "--workers", "1:2", "--epochs", str(epochs)])
        while not all(job.over for job in known_jobs(queue).values()):
            time.sleep(0.2)
    finally:
        head.terminate()
        head.wait()
    return fmean((job.ended or 0.0) - job.request.submitted for job in known_jobs(queue).values())


def _covey(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "covey", *words], check=True)


if __name__ == "__main__":
    print(json.dumps(real() if "real" in sys.argv[1:] else measure(), indent=1))

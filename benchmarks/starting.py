"""How long until a run trains, and what do covey's imports cost? `python -m benchmarks.starting`"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

READY = """
import time
begin = time.perf_counter()
import torch
imported = time.perf_counter() - begin
import covey
from covey.engines.process.launcher import supervisor
done = []
begin_run = supervisor.Supervisor.begin
def begin(*given):
    begin_run(*given)
    done.append(time.perf_counter())
supervisor.Supervisor.begin = begin
start = time.perf_counter()
covey.fit("examples/digits.py", "bsp", workers=4, servers=1, steps=1)
cold = done[0] - start
warm = []
for _ in range(5):
    done.clear()
    start = time.perf_counter()
    covey.fit("examples/digits.py", "bsp", workers=4, servers=1, steps=1)
    warm.append(done[0] - start)
print(imported, cold, sorted(warm)[2])
"""

RUN = """
import sys, time
from covey.cli import main
import covey.cli.run as command
train = command.train
def watched(*given):
    from covey.engines.process.launcher.supervisor import Supervisor
    begin_run = Supervisor.begin
    def begin(*given):
        begin_run(*given)
        print("begun", time.time())
    Supervisor.begin = begin
    return train(*given)
command.train = watched
main()
"""
ASKED = ["run", "examples/digits.py", "--strategy", "bsp", "--workers", "2", "--steps", "1", "--no-record", "--quiet"]

FIFTY = """
import itertools, covey
for seed, spec in itertools.product(range(10), ("allreduce", "bsp", "local_sgd", "asynchronous", "easgd")):
    covey.fit("examples/digits.py", spec, workers=2, until="accuracy>=0.95", seed=seed)
"""


def seconds(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begin


def until_begun() -> float:
    """Seconds from the start of `covey run` until its roles have begun."""
    before = time.time()
    words = [sys.executable, "-c", RUN, *ASKED]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    (at,) = (float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("begun"))
    return at - before


def measure(rounds: int = 5) -> dict[str, Any]:
    """Medians, in seconds: `ready` is from the call of `covey.fit` until 4 workers and a server have begun.

    `run` is from the start of `covey run` until 2 workers and a server have; both are beyond one `import torch`.

    `warm` is the same in a process that has run before; `fifty` is a process that trains the digits 50 times to 95 %.
    """
    names = ("import_torch", "import_covey", "import_covey_fit", "python", "help", "run", "ready", "warm", "fifty")
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        torch = seconds("-c", "import torch")
        found["import_torch"].append(torch)
        found["import_covey"].append(seconds("-c", "import torch, covey") - torch)
        found["import_covey_fit"].append(seconds("-c", "import torch, covey; covey.fit") - torch)
        found["python"].append(seconds("-c", "pass"))
        found["help"].append(seconds("-m", "covey", "--help"))
        found["run"].append(until_begun() - torch)
        done = subprocess.run([sys.executable, "-c", READY], cwd=ROOT, capture_output=True, text=True, check=True)
        imported, ready, warm = map(float, done.stdout.split())
        found["ready"].append(ready - imported)
        found["warm"].append(warm)
        found["fifty"].append(seconds("-c", FIFTY))
    return {name: round(statistics.median(times), 3) for name, times in found.items()}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))

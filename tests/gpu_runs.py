"""Runs for the checks on a GPU: several at a time, each in a process of its own, which is ended if it hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from covey.model import scored

PATIENCE, AT_ONCE = 150.0, int(os.environ.get("ON_GPU_RUNS", "4"))
Weights = dict[str, Tensor]


class Trained(NamedTuple):
    """What a run ends with, and the losses of its batches as its roles wrote them down."""

    weights: Weights
    losses: list[float]


def trained(file: str, task: str, spec: str, workers: int, steps: int, **settings: str) -> Trained:
    """Train the task of a file, with environment variables for its roles; ON_GPU_LOSSES keeps the losses."""
    with tempfile.TemporaryDirectory() as place:
        model, losses = f"{place}/model.safetensors", Path(place, "losses")
        asked = f"covey.fit({f'{file}:{task}'!r}, {spec!r}, {workers}, steps={steps}, save={model!r}, runs=False)"
        paths = os.pathsep.join(["src", ".", *sys.path])
        known = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "2", **settings}
        known |= {"ON_GPU_LOSSES": str(losses)} if "ON_GPU_LOSSES" in settings else {}
        process = subprocess.Popen(
            [sys.executable, "-c", f"import covey; {asked}"], env={**os.environ, **known},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise RuntimeError(f"did not end in {PATIENCE:.0f} s") from None
        if process.returncode:
            raise RuntimeError(" / ".join(errors.strip().splitlines()[-3:]))
        told = [float(line) for line in losses.read_text().splitlines()] if losses.exists() else []
        return Trained(dict(scored.read(Path(model))), told)


class Check(NamedTuple):
    """Runs of which a number is found that may be `most` at most."""

    title: str
    runs: list[Future[Trained]]
    difference: Callable[..., float]
    most: float


class Runs:
    """The runs of one file's tasks. Who asks for one that was asked for before shares it."""

    def __init__(self, file: str) -> None:
        self.file, self.pool = file, ThreadPoolExecutor(AT_ONCE)
        self.known: dict[tuple[object, ...], Future[Trained]] = {}

    def __call__(self, task: str, spec: str, workers: int, steps: int, **settings: str) -> Future[Trained]:
        asked = (task, spec, workers, steps, *sorted(settings.items()))
        if asked not in self.known:
            self.known[asked] = self.pool.submit(self._timed, task, spec, workers, steps, settings)
        return self.known[asked]

    def _timed(self, task: str, spec: str, workers: int, steps: int, settings: dict[str, str]) -> Trained:
        begun = time.monotonic()
        try:
            return trained(self.file, task, spec, workers, steps, **settings)
        finally:
            words = " ".join(f"{name}={value}" for name, value in settings.items())
            print(f"  {task}, {spec}, {workers}: {time.monotonic() - begun:.0f} s {words}", flush=True)


def found(checks: list[Check]) -> int:
    """Print what each check finds; how many are broken."""
    broken = 0
    for check in checks:
        try:
            number = check.difference(*(run.result() for run in check.runs))
        except Exception as error:
            broken += tell(f"{check.title}: {error}", good=False)
        else:
            broken += tell(f"{check.title}: {number:.1e} apart (at most {check.most:.0e})", number <= check.most)
    return broken


def tell(title: str, good: bool) -> int:
    print(f"{'' if good else 'BROKEN '}{title}", flush=True)
    return int(not good)

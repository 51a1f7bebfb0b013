"""Programs that lose processes: covey, torchft, torchrun and Ray Train, each in a process group of its own."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.roles import process_of

ROOT = Path(__file__).parent.parent.parent
TASK = str(ROOT / "benchmarks" / "losses" / "task.py")
GROWN = 3.0  # seconds after which a process takes part
Find = Callable[["Program"], int | None]


class Program:
    """A program in a process group of its own, whose optimizers note their steps."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder, self.steps = folder, folder / "steps"
        self.steps.mkdir()
        self.log = (folder / "log").open("w")
        known = {
            **os.environ, "STEPS": str(self.steps), "SNAPSHOT": str(folder / "snapshot.pt"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, *command], env=known, cwd=folder, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        """Tell it to end, and wait until it has, if it does."""
        for number, patience in ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0)):
            self.process.send_signal(number)
            try:
                self.process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue

    def close(self) -> None:
        self.end()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for place in self.steps.iterdir():  # torchrun's workers have sessions of their own
            with suppress(OSError):
                if str(self.steps).encode() in Path("/proc", place.name, "environ").read_bytes():
                    os.kill(int(place.name), signal.SIGKILL)
        self.log.close()

    def times(self) -> list[float]:
        """When steps were done, in all processes."""
        return sorted(step for place in self.steps.iterdir() for step in self.times_of(place.name))

    def times_of(self, process: str, last: int = 0) -> list[float]:
        """When steps were done in one process; only the `last` ones, where that is given."""
        with (self.steps / process).open("rb") as file:
            if last:
                file.seek(max(0, os.fstat(file.fileno()).st_size // 8 - last) * 8)
            data = file.read()
        return list(struct.unpack(f"{len(data) // 8}d", data[: len(data) // 8 * 8]))

    def stepping(self, seconds: float = 0.5) -> list[int]:
        """The processes that have stepped just now."""
        recent = [place for place in self.steps.iterdir() if time.time() - place.stat().st_mtime < seconds]
        return [int(place.name) for place in recent if Path("/proc", place.name).exists()]

    def after(self, when: float, count: int, victim: int) -> float | None:
        """When the `count`th step after a moment was done, by anybody but the victim."""
        names = [place.name for place in self.steps.iterdir() if place.name != str(victim)]
        later = sorted(step for name in names for step in self.times_of(name, last=200) if step > when)
        return later[count - 1] if len(later) >= count else None


@contextmanager
def running(*command: str) -> Iterator[Program]:
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), *command)
        try:
            yield program
        finally:
            program.close()


def wait_for(happened: Callable[[], Any], seconds: float, what: str, program: Program, every: float = 0.01) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := happened():
            return found
        if program.process.poll() is not None:
            break
        time.sleep(every)
    program.log.flush()
    raise RuntimeError(f"{what}: {Path(program.log.name).read_text()[-2000:]}")


def role(name: str) -> Find:
    """The process of a role of covey's that was there before it could have been killed last."""

    def find(program: Program) -> int | None:
        found = process_of(name, program.process.pid)
        return found if found and time.time() - Path(f"/proc/{found}").stat().st_ctime > GROWN else None

    return find


def member(program: Program) -> int | None:
    """A process that steps, of a program in which all that step are alike; both must be there."""
    alive = program.stepping()
    return random.choice(alive) if len(alive) == 2 else None


def run_of(strategy: str, workers: str, *more: str, task: str = TASK) -> tuple[str, ...]:
    lasting = ("--max-failures", "20") if ":" in workers or "--replicas" in more else ()
    return (
        "-m", "covey", "run", task, "--strategy", strategy, "--workers", workers, "--epochs", "100000", "--threads",
        "1", "--quiet", *lasting, *more,
    )  # fmt: skip


def torchft(heartbeat: int, patience: int) -> tuple[str, ...]:
    """Milliseconds between heartbeats, and until a worker whose heartbeats are missing is left out."""
    return ("-m", "benchmarks.losses.torchft_ddp", "--heartbeat", str(heartbeat), "--patience", str(patience))


PROGRAMS: dict[str, tuple[tuple[str, ...], Find]] = {
    "allreduce": (run_of("allreduce", "1:2"), role("worker 1")),
    "bsp": (run_of("bsp", "1:2"), role("worker 1")),
    "torchft": (torchft(heartbeat=100, patience=5000), member),  # its defaults
    "torchft_fast": (torchft(heartbeat=10, patience=100), member),
    "torchrun": (
        ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "9999", "--monitor-interval", "0.1",
         "--standalone", "-m", "benchmarks.losses.elastic_ddp"), member,
    ),
    "ray_train": (("-m", "benchmarks.losses.ray_train"), member),
}  # fmt: skip
NEEDS = {"torchft": "torchft", "torchft_fast": "torchft", "ray_train": "pandas"}
"""Modules without which a program cannot run."""

"""What do checkpoints cost, and how fast does a run start again? `python -m benchmarks.checkpoints [NAME …]`

overhead  wall time of the Fashion-MNIST CNN with `--every auto` against the same run without checkpoints, in turns
stall     how long training stands still for a checkpoint of roles with 300 MB of state each
restart   from the SIGKILL of a worker until training has begun again
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from benchmarks.roles import process_of
from covey.engines.process.launcher.keeping import CheckpointKeeper
from covey.engines.process.launcher.supervisor import Supervisor
from covey.observe.progress import Progress
from covey.task import load_task

ROOT = Path(__file__).parent.parent
WIDTH = 5000  # 25 million parameters in a matrix: with two states of Adam 300 MB


class Clock:
    """Wall time of training, and of the pauses for checkpoints: all of each pause, and the copy alone."""

    def __init__(self) -> None:
        self.begun = self.ended = 0.0
        self.begins: list[float] = []  # of every attempt
        self.pauses: list[float] = []
        self.copies: list[float] = []

    def __enter__(self) -> Clock:
        self.before = Supervisor.begin, Supervisor.finish, CheckpointKeeper.copy, CheckpointKeeper.stood_still
        begin, finish, copy, stood_still = self.before

        def timed_begin(supervisor: Supervisor, parameters: int) -> None:
            begin(supervisor, parameters)
            self.begun = time.monotonic()
            self.begins.append(self.begun)

        def timed_finish(supervisor: Supervisor) -> Any:
            if supervisor.keeper:
                supervisor.keeper.complete()
            self.ended = time.monotonic()
            return finish(supervisor)

        def timed_copy(keeper: CheckpointKeeper, record: Any) -> None:
            begun = time.monotonic()
            copy(keeper, record)
            self.copies.append(time.monotonic() - begun)

        def timed_pause(keeper: CheckpointKeeper, seconds: float) -> None:
            self.pauses.append(seconds)
            stood_still(keeper, seconds)

        Supervisor.begin, Supervisor.finish = timed_begin, timed_finish  # type: ignore[method-assign]
        CheckpointKeeper.copy, CheckpointKeeper.stood_still = timed_copy, timed_pause  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Supervisor.begin, Supervisor.finish = self.before[:2]  # type: ignore[method-assign]
        CheckpointKeeper.copy, CheckpointKeeper.stood_still = self.before[2:]  # type: ignore[method-assign]


def fashion() -> covey.Task:
    """The CNN, which is not scored: evaluation would stop the clock."""
    return replace(load_task(str(ROOT / "examples" / "fashion.py")), evaluate=None)


def overhead(pairs: int = 5, steps: int = 400, strategy: str = "allreduce") -> dict[str, Any]:
    """The ratio of wall times with and without `--every auto`, and what the pauses alone come to."""
    ratios, shares, kept, task = [], [], [], fashion()
    for _ in range(pairs):
        walls = {}
        for every in ("", "auto"):
            with tempfile.TemporaryDirectory() as folder, Clock() as clock:
                given = {"checkpoint": folder, "every": every} if every else {}
                covey.fit(task, strategy, 2, steps=steps, threads=1, **given)
            walls[every] = clock.ended - clock.begun
        ratios.append(walls["auto"] / walls[""])
        shares.append(sum(clock.pauses) / walls["auto"])
        kept.append(len(clock.pauses))
    return {
        "wall ratio": round(statistics.median(ratios), 3), "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "pauses over wall": round(statistics.median(shares), 4), "checkpoints": kept, "seconds": round(walls[""], 1),
    }  # fmt: skip


def wide() -> covey.Task:
    x, y = torch.randn(64, WIDTH), torch.randint(0, 10, (64,))
    return covey.Task(
        model=lambda: nn.Linear(WIDTH, WIDTH, bias=False), data=(x, y), loss=nn.functional.cross_entropy, batch_size=1,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-4), warm=False,
    )  # fmt: skip


def stall(strategy: str = "allreduce", steps: int = 60) -> dict[str, Any]:
    """Seconds of the copy and of the whole pause for 300 MB in each of 2 workers, and per GB of a worker's state."""
    size = 3 * 4 * WIDTH**2 / 1e9
    with tempfile.TemporaryDirectory() as folder, Clock() as clock:
        covey.fit(wide(), strategy, 2, steps=steps, threads=1, checkpoint=folder, every="1s")
    copy, pause = statistics.median(clock.copies), statistics.median(clock.pauses)
    return {
        "GB of a role": size, "checkpoints": len(clock.copies), "copy": round(copy, 3), "pause": round(pause, 3),
        "longest copy": round(max(clock.copies), 3), "copy per GB": round(copy / size, 3),
        "pause per GB": round(pause / size, 3),
    }  # fmt: skip


class Killer:
    """Kills worker 1 after each new checkpoint, a few times."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.left, self.after = folder, times, 0
        self.kills: list[float] = []

    def say(self, line: str) -> None:
        pass

    def update(self, now: Progress) -> None:
        newest = max((int(place.name[-6:]) for place in self.folder.glob("checkpoint-*")), default=0)
        if self.left and now.phase == "training" and newest > self.after:
            self.left, self.after = self.left - 1, newest
            victim = process_of("worker 1")
            assert victim, "worker 1 is not there"
            self.kills.append(time.monotonic())
            os.kill(victim, signal.SIGKILL)


def restart(kills: int = 5, steps: int = 1500) -> dict[str, Any]:
    """Seconds from a kill until all roles train again, for each strategy."""
    found: dict[str, Any] = {}
    for strategy in ("bsp", "allreduce", "gosgd"):
        with tempfile.TemporaryDirectory() as folder, Clock() as clock:
            killer = Killer(Path(folder), kills)
            covey.fit(
                str(ROOT / "examples" / "digits.py"), strategy, 2, steps=steps, threads=1, checkpoint=folder,
                every="1s", on_failure="restart", watcher=killer,
            )  # fmt: skip
        times = [min(begun - kill for begun in clock.begins if begun > kill) for kill in killer.kills]
        found[strategy] = {
            "kills": len(times), "median": round(statistics.median(times), 2), "longest": round(max(times), 2),
        }  # fmt: skip
    return found


MEASURES = {"overhead": overhead, "stall": stall, "restart": restart}


def measure() -> dict[str, Any]:
    """All of them."""
    return {name: each() for name, each in MEASURES.items()}


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(MEASURES)
    print(json.dumps({name: MEASURES[name]() for name in chosen}, indent=1))

"""A peer's process: its task, its share of the data, its clock, and its line to whoever leads the race.

Words are lines of JSON: this process says on stdout that it is ready, and where it has come to; it hears on stdin
whether to go on. While it waits its clock stands still.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from covey.data.feed import Feed
from covey.engines.lab.networks import DATA
from covey.model import build
from covey.task import load_task

EVERY = 8  # steps between scores: 2,048 samples of 4 workers


class Seat:
    """One of the workers of a peer."""

    def __init__(self) -> None:
        given = json.loads(sys.argv[1])
        self.rank, self.size, self.seed = int(given["rank"]), int(given["size"]), int(given["seed"])
        self.address, self.first = str(given["address"]), str(given["first"])  # on the shaped links: mine, and rank 0's
        self.folder, self.settings = Path(given["folder"]), dict(given["settings"])
        os.environ["GLOO_SOCKET_IFNAME"] = DATA
        torch.set_num_threads(1)
        self.task = load_task(str(given["course"]))
        self.model = build.model(self.task, self.seed)
        self.optimizer: Any = self.task.optimizer(list(self.model.named_parameters()))
        self.batches = self.feed(self.rank)
        self.begin = self.paused = 0.0

    def feed(self, rank: int) -> Any:
        """The batches of a worker, in the order in which covey deals them."""
        return Feed(build.data_of(self.task), build.shards(self.task, self.size, self.seed), rank).start(0)

    @property
    def batch(self) -> int:
        """Samples of one step of all workers."""
        return self.size * self.task.batch_size

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin - self.paused

    def gradient(self, model: nn.Module, batches: Any) -> None:
        self.task.forward(model, next(batches)).backward()

    def step(self, model: nn.Module | None = None) -> None:
        self.optimizer.zero_grad()
        self.gradient(model or self.model, self.batches)
        self.optimizer.step()

    def ready(self) -> None:
        """Wait until everybody is."""
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        self.begin = time.perf_counter()

    def goes_on(self, mark: int, samples: int, seconds: float | None = None) -> bool:
        """Everybody stops at the marks, in order; rank 0's model is scored there."""
        stopped, seconds = time.perf_counter(), self.seconds if seconds is None else seconds
        if self.rank == 0:
            torch.save(self.model.state_dict(), self.folder / "model.pt")
            print(json.dumps({"mark": mark, "seconds": seconds, "samples": samples}), flush=True)
        word = json.loads(sys.stdin.readline())
        while word["on"] and word["mark"] < mark:  # who has skipped one hears of that first
            word = json.loads(sys.stdin.readline())
        self.paused += time.perf_counter() - stopped
        return bool(word["on"])

    def leave(self, name: str, text: str) -> None:
        """For the others to `find`."""
        (self.folder / f".{name}").write_text(text)
        os.replace(self.folder / f".{name}", self.folder / name)

    def find(self, name: str) -> str:
        while not (self.folder / name).exists():
            time.sleep(0.05)
        return (self.folder / name).read_text()

"""Endpoints on this machine, and clients that ask while something is killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from covey.page.endpoints import EndpointNow, WatchedEndpoints

PICKY = '''
import os, time
import torch
from torch import nn
import covey

class Picky(nn.Module):
    """Multiplies its inputs; raises over negative numbers, and ends its process from a million on."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, rows):
        if (rows < 0).any():
            raise ValueError("a negative number")
        if (rows >= 1e6).any():
            os._exit(3)
        return self.answer(rows)

    def answer(self, rows):
        time.sleep(0.002)
        return rows * self.scale

def made(model):
    return covey.Task(
        model=model, data=(torch.ones(8, 2), torch.ones(8, 2)), loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=4,
    )
'''
TASK = f"{PICKY}\ntask = made(Picky)\n"


class RunningEndpoint:
    """An endpoint, and its process."""

    def __init__(self, process: subprocess.Popen[str], port: int, folder: Path) -> None:
        self.process, self.port, self.folder = process, port, folder

    def replicas(self) -> list[int]:
        """The process numbers of replicas: children of the fork server, which is the endpoint's child."""
        (server,) = children(self.process.pid)
        return children(server)

    def shown(self) -> list[EndpointNow]:
        """What the live page has of it."""
        page = WatchedEndpoints(self.folder / "runs")
        page.look()
        return page.view

    def logged(self, word: str) -> int:
        """How many lines of its log have this word; each begins with a time and a replica."""
        lines = [line for line in (self.folder / "log").read_text().splitlines() if f" {word} " in f"{line} "]
        assert all(re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ replica \d ", line) for line in lines), lines
        return len(lines)

    def standing(self) -> tuple[int, int]:
        """How many replicas are ready, and how many were lost."""
        told = self.ask("GET", "/stats")[1]
        return told["replicas"], told["replicas_lost"]

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        link = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            given = {"Content-Type": "application/json"} | {key.replace("_", "-"): headers[key] for key in headers}
            link.request(method, path, body or None, given)
            answer = link.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            link.close()

    def predict(self, *numbers: float) -> tuple[int, Any]:
        return self.ask("POST", "/predict", json.dumps({"input": numbers}).encode())


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def serving(
    folder: Path, deadline: str, replicas: str = "2", more: str = "", task: str = TASK, model: str = "model.safetensors"
) -> Iterator[RunningEndpoint]:
    pytest.importorskip("uvicorn")
    (folder / "picky.py").write_text(task)
    save_file({"scale": torch.tensor([2.0])}, folder / "model.safetensors")
    flags = f"--task picky.py --replicas {replicas} --threads 1 --port 0 --body 10KB --deadline {deadline} {more}"
    words = ["-m", "covey", "serve", model, *flags.split()]
    environment = {name: value for name, value in os.environ.items() if name not in ("COVEY_TOKEN", "COVEY_RUNS")}
    log = (folder / "log").open("w")
    with log, subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield RunningEndpoint(process, int(process.stdout.readline().rpartition(":")[2]), folder)
        finally:
            process.kill()


def until(true: Callable[[], bool], seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def asked(endpoint: RunningEndpoint, right: Callable[[int], list[float]]) -> Iterator[Counter[tuple[int, bool]]]:
    """Eight clients ask, each with numbers of its own: the statuses, and whether the answers were right."""
    found: Counter[tuple[int, bool]] = Counter()
    over = threading.Event()

    def client(number: int) -> None:
        while not over.is_set():
            status, told = endpoint.predict(number, 1)
            found[status, told.get("output") == right(number)] += 1
            number += 1

    clients = [threading.Thread(target=client, args=(10_000 * one,)) for one in range(8)]
    for one in clients:
        one.start()
    try:
        yield found
    finally:
        over.set()
        for one in clients:
            one.join()

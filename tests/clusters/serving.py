"""Endpoints whose replicas run on the hosts of an engine, and clients that ask while something is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from safetensors.torch import save_file
from torch import nn

from tests.inference.running import TASK, RunningEndpoint
from tests.real.harness import Room
from tests.warm import Command

PATIENCE = 120.0  # seconds: a busy machine takes long to start an engine
CLIENTS = 4


class ServedRoom(RunningEndpoint):
    """An endpoint, whose replicas are found by their titles."""

    def __init__(self, room: Room, command: Command, port: int) -> None:
        self.room, self.command, self.port = room, command, port

    def named(self, title: str) -> list[int]:
        """The processes with titles that begin so."""
        return [pid for pid, shown in self.room.processes().items() if shown.startswith(f"covey: {title}")]

    def networks(self) -> set[int]:
        """Of the replicas."""
        return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in self.named("replica")}

    def answers_while(self, act: Callable[[], None], back: Callable[[], bool]) -> Counter[int]:
        """The statuses of what some clients ask while this is done, until all is well again."""
        statuses: Counter[int] = Counter()
        going = threading.Event()

        def client() -> None:
            while not going.is_set():
                status, told = self.predict(1, 2.5)
                statuses[status] += 1
                assert status != 200 or told["output"] == [2.0, 5.0]

        clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for one in clients:
            one.start()
        try:
            time.sleep(0.3)
            act()
            comes(back, "what was lost is not back", self.command)
            time.sleep(0.3)
        finally:
            going.set()
            for one in clients:
                one.join()
        return statuses

    def kill(self, title: str) -> None:
        for pid in self.named(title):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def served(
    room: Room, engine: str, *more: str, replicas: str = "2", task: str = TASK, model: nn.Module | None = None
) -> Iterator[ServedRoom]:
    """An endpoint on this engine; it must end well."""
    (room.path / "picky.py").write_text(task)
    save_file(model.state_dict() if model else {"scale": torch.tensor([2.0])}, room.path / "model.safetensors")
    words = ["model.safetensors", "--task", "picky.py", "--replicas", replicas, "--engine", engine, *more]
    places = ["--port", "0", "--threads", "1", "--deadline", "100s", "--no-record"]
    command = room.start("-m", "covey", "serve", *words, *places)
    try:
        comes(lambda: "\n" in command.written()[0], "the endpoint does not start", command)
        yield ServedRoom(room, command, int(command.written()[0].rpartition(":")[2]))
        command.terminate()
        assert command.wait(PATIENCE) in (0, -signal.SIGTERM), command.written()[1]
        assert "Traceback" not in command.written()[1]
    finally:
        command.kill()


def comes(true: Callable[[], bool], otherwise: str, command: Command) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert command.poll() is None and time.monotonic() < until, f"{otherwise}: {command.written()}"
        time.sleep(0.05)


def losses_cost_no_answer(endpoint: ServedRoom, host: str) -> None:
    """A replica is killed under load, then the host of one: every answer is right, and as many replicas are there."""
    assert endpoint.ask("GET", "/health")[1]["replicas"] == 2 and len(endpoint.named("replica")) == 2
    statuses = endpoint.answers_while(lambda: endpoint.kill("replica 1"), lambda: endpoint.standing() == (2, 1))
    assert set(statuses) == {200}, statuses
    statuses = endpoint.answers_while(lambda: endpoint.kill(host), lambda: endpoint.standing() == (2, 2))
    assert set(statuses) == {200}, statuses
    assert "(site 1) was lost: " in endpoint.command.written()[1]

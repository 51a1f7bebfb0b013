"""What tests on real processes share: a room of their own that must be empty afterwards, small tasks, and watchers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import covey
from covey.engines.process.forking import fork_server_client
from covey.observe.progress import Progress
from covey.observe.result import Result
from tests.warm import Command, Warm

GONE_WITHIN = 5.0  # seconds: the promise
PATIENCE = 90.0  # seconds for things that only a busy machine makes slow

TASK = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
import covey

HERE = Path(__file__).parent
CALLS = [0]

def first(name):
    "True for one process of the run only."
    try:
        os.close(os.open(HERE / name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def before_step():
    CALLS[0] += 1
    {before_step}

def build():
    {before_build}
    return {model}

def score(model):
    {before_score}
    return {{"accuracy": covey.accuracy((x, y))(model)["accuracy"]}}

def step(model, batch):
    before_step()
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

{more}

chance = torch.Generator().manual_seed(7)
x = torch.randn({samples}, 6, generator=chance).to({dtype})
y = torch.randint(0, 3, ({samples},), generator=chance)

task = covey.Task(
    model=build, data={data}, optimizer=lambda params: {optimizer}, step=step, batch_size={batch_size}, warm={warm},
    {options}
)
"""

PLAIN = {
    "before_step": "pass", "before_build": "pass", "before_score": "pass", "model": "nn.Linear(6, 3)", "more": "",
    "samples": 64, "data": "(x, y)", "optimizer": "torch.optim.SGD(params, lr=0.05, momentum=0.9)", "batch_size": 4,
    "dtype": "torch.float32", "options": "",
}  # fmt: skip
SLOW = "time.sleep(0.01)"
BATCH_NORM = "nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))"


class Room:
    """A directory, and a mark in the environment by which every process of the test's runs is known."""

    def __init__(self, warm: Warm) -> None:
        self.warm = warm
        self.mark = uuid.uuid4().hex
        self.path = Path(tempfile.mkdtemp(prefix="room", dir="/tmp"))
        self.temporary = self.path / "tmp"
        self.temporary.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "COVEY_ROOM": self.mark, "TMPDIR": str(self.temporary)}

    def task(self, name: str = "task.py", **given: Any) -> str:
        """A task file; `given` replaces parts of the plain one. What counts its steps has state of its own."""
        counts = any(word in given.get("before_step", "") for word in ("CALLS", "first(", ".touch("))
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TASK.format(**{**PLAIN, "warm": not counts, **given}))
        return str(file)

    def script(self, text: str, name: str = "script.py") -> Path:
        file = self.path / name
        file.write_text(text)
        return file

    def start(self, *arguments: str | Path, stdin: bool = False, **variables: str) -> Command:
        """Python with these arguments, in a session of its own, in a fork of a process that has imported covey."""
        return self.warm.start(arguments, self.path, {**self.environment, **variables}, stdin)

    def start_cold(self, *arguments: str | Path, **given: Any) -> subprocess.Popen[str]:
        """The same in a new process, which has everything to import: for tests of how things start."""
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)], env=self.environment, text=True, start_new_session=True,
            cwd=self.path, preexec_fn=_hear_interrupts,  # noqa: PLW1509
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given,
        )  # fmt: skip

    def processes(self) -> dict[int, str]:
        """The living processes of this room's runs, as `ps` shows them, but for this process's own fork server."""
        found = {}
        staying = [str(server.process.pid) for server in fork_server_client.RUNNING]
        for place in Path("/proc").glob("[0-9]*"):
            if place.name in staying:
                continue
            try:
                if self.mark.encode() in (place / "environ").read_bytes():
                    title = (place / "cmdline").read_bytes().rstrip(b"\0 ").replace(b"\0", b" ").decode()
                    if title:  # a zombie has none
                        found[int(place.name)] = title
            except OSError:
                continue
        return found

    def find(self, who: str) -> int:
        """The process of a role (or of the fork server), as soon as it has its name."""
        for _ in _tries():
            for pid, title in self.processes().items():
                if title == f"covey: {who}":
                    return pid
        raise AssertionError(f"there is no {who} among {self.processes()}")

    def kill(self, who: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.find(who), number)

    def appears(self, pattern: str) -> Path:
        """The first file of this room that fits."""
        for _ in _tries():
            for path in self.path.glob(pattern):
                return path
        raise AssertionError(f"no {pattern} came")

    def left(self) -> list[str]:
        """What a run has not cleaned up."""
        shared = [path.name for path in Path("/dev/shm").glob("*") if self.mark in path.name]
        files = [str(path) for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        return [*self.processes().values(), *files, *shared]

    def wait_empty(self, within: float = GONE_WITHIN) -> None:
        until = time.monotonic() + within
        while self.left() and time.monotonic() < until:
            time.sleep(0.05)
        left = self.left()
        assert left == [], left

    def close(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.path, ignore_errors=True)


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _tries() -> Any:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        yield
        time.sleep(0.005)


class Watch:
    """Acts once when the run has come to a point, and keeps what was said."""

    def __init__(self, when: Callable[[Progress], bool] = lambda now: False, act: Callable[[], Any] = lambda: None):
        self.when, self.act = when, act
        self.acted: float | None = None
        self.said: list[str] = []

    def update(self, progress: Progress) -> None:
        if self.acted is None and self.when(progress):
            self.acted = time.monotonic()
            self.act()

    def say(self, line: str) -> None:
        self.said.append(line)


def trained(samples: int) -> Callable[[Progress], bool]:
    return lambda now: now.phase == "training" and now.samples >= samples


def interrupt() -> None:
    """What Ctrl-C does to this process."""
    os.kill(os.getpid(), signal.SIGINT)


def fit(task: Any, strategy: str, workers: int = 2, **given: Any) -> Result:
    usual = {} if given.get("engine") == "simulated" else {"threads": 1, "stall": "60s"}
    return covey.fit(task, strategy, workers, **{**usual, **given})


def finish(process: subprocess.Popen[str] | Command) -> tuple[int, str, str]:
    """Exit code and output; the process must end by itself."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def tracebacks(text: str) -> list[str]:
    return re.findall(r"Traceback \(most recent call last\):\n  File \"([^\"]*)\"", text)


def differing(one: dict[str, Any], other: dict[str, Any]) -> Sequence[str]:
    """The names of weights that differ."""
    import torch

    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]

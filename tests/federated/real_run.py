"""A service and its clients as real processes of this machine, forked from one that has imported torch."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory
from covey.engines.service.dialled_link import DialledLink
from covey.engines.service.guest_keys import GuestKey, KeyFolder, read_key
from covey.engines.service.role_loop import LoopRole
from covey.federated.messages import AGGREGATOR, COORDINATOR
from covey.message import Address
from covey.run.federated import enrolled_clients, serving
from covey.run.federated.client_identities import identified
from covey.run.federated.federated_options import RoundOptions
from covey.run.federated.joining import join
from covey.run.federated.service_checkpoints import ServiceCheckpoints
from covey.task import task_hash
from covey.version import __version__

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["covey.run.federated.serving", "covey.run.federated.joining"])
LARGEST = 1 << 16  # bytes of the largest message of these small models

TASK = """
import torch
from torch import nn
from covey.task import Task
from tests.federated.conftest import regression

task = regression()
"""
SLOW_TASK = """
import time
from dataclasses import replace
from tests.federated.conftest import regression

task = regression()
quick = task.step

def step(model, batch):
    time.sleep(0.05)
    return quick(model, batch)

task = replace(task, step=step)
"""
DATA = """
import torch
from covey.data.client_shares import divided
from covey.run.federated.federated_options import read_partition
from tests.federated.conftest import regression

whole = regression().data
numbers = divided(read_partition("even"), whole, {clients}, 0)[{client}]
data = torch.utils.data.TensorDataset(*(part[numbers] for part in whole.tensors))
"""


class RealRun:
    """A folder with a task, keys and data, and the processes that use them."""

    def __init__(
        self, folder: Path, clients: int, samples: int = 100, task: str = TASK, data: str = DATA
    ) -> None:
        self.folder, self.clients = folder, clients
        (folder / "task.py").write_text(task)
        self.keys = KeyFolder(folder / "keys")
        for client in range(clients):
            self.keys.add(f"c{client}", samples, folder / f"c{client}.key")
            (folder / f"mine{client}.py").write_text(data.format(clients=clients, client=client))
        self.started: list[BaseProcess] = []

    @property
    def task(self) -> str:
        return str(self.folder / "task.py")

    @property
    def port(self) -> str:
        """Where the service listens, as soon as it does."""
        file = self.folder / "endpoint"
        awaited(file.exists, 300, "the service to listen")
        return file.read_text()

    def serve(self, listen: str = "127.0.0.1:0", **options: Any) -> BaseProcess:
        return self._start(serve_here, self.folder, listen, options)

    def join(self, client: int, **options: Any) -> BaseProcess:
        return self._start(join_here, self.folder, client, self.port, options)

    def identities(self) -> Path:
        """The list by which all clients know each other."""
        file = self.folder / "identities"
        lines = (identified(self.folder / f"c{client}.key") for client in range(self.clients))
        file.write_text("\n".join(lines))
        return file

    def _start(self, target: Callable[..., None], *args: Any) -> BaseProcess:
        process = FORKS.Process(target=target, args=args, daemon=True)
        process.start()
        self.started.append(process)
        return process

    def key(self, client: int) -> GuestKey:
        return read_key(self.folder / f"c{client}.key")

    def dial(
        self, client: int = 0, key: GuestKey | None = None, digest: str = "", greet: bool = True, samples: int = 0
    ) -> DialledLink:
        """A link of a client's, to say on it whatever a test wants."""
        me = Address("client", client)
        link = DialledLink(f"tcp://{self.port}", key or self.key(client), me, (COORDINATOR, AGGREGATOR), LARGEST)
        try:
            if greet:
                link.greet(__version__, digest or task_hash(self.task), samples)
        except BaseException:
            link.close()
            raise
        return link

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def states(self) -> list[tuple[int, str]]:
        """Of each time at which the service was kept: the rounds that were over, and the hash of its model."""
        lines = (self.folder / "states").read_text().splitlines()
        return [(int(rounds), digest) for rounds, digest in (line.split() for line in lines)]

    def end(self) -> None:
        for process in self.started:
            if process.is_alive():
                process.kill()
            process.join()


@contextmanager
def real_run(folder: Path, clients: int, **more: Any) -> Iterator[RealRun]:
    run = RealRun(folder, clients, **more)
    try:
        yield run
    finally:
        run.end()


def awaited(done: Callable[[], object], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


def ended(process: BaseProcess, seconds: float = 300) -> int:
    """The exit code of a process, which must end by itself."""
    process.join(seconds)
    assert process.exitcode is not None, f"{process.name} did not end in {seconds:g} s"
    return process.exitcode


def quiet_threads() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class WrittenLog:
    """Writes down what a service says."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def update(self, progress: Any) -> None:
        pass

    def say(self, line: str) -> None:
        with self._file.open("a") as file:
            print(line, file=file)


def serve_here(folder: Path, listen: str, options: Mapping[str, Any]) -> None:
    """(In a process of its own) Serve, and leave the result in the folder."""
    quiet_threads()
    keep = ServiceCheckpoints.keep

    def kept(self: ServiceCheckpoints, role: LoopRole, seconds: float, replica: Any, log: Any, *others: Any) -> None:
        digest = hashlib.sha256(b"".join(bytes(part.numpy().data) for part in replica.flat.parts)).hexdigest()
        with (folder / "states").open("a") as file:
            file.write(f"{log.begun} {digest}\n")
        keep(self, role, seconds, replica, log, *others)

    ServiceCheckpoints.keep = kept  # type: ignore[method-assign]

    def listens(endpoint: str) -> None:
        (folder / "new").write_text(endpoint.removeprefix("tcp://"))
        os.replace(folder / "new", folder / "endpoint")

    terms = {"selection": "90s", "reporting": "60s", "over": 1.0, **options}
    enrolled_clients.MOST_REFUSED = terms.pop("most_refused", enrolled_clients.MOST_REFUSED)
    names = {one.name for one in fields(RoundOptions)}
    waits = RoundOptions(**{name: terms.pop(name) for name in list(terms) if name in names})
    given = {"strategy": "fedavg", "rounds": 3, "runs": False, "keys": folder / "keys", **terms}
    given.setdefault("watcher", WrittenLog(folder / "served"))
    result = serving.serve(str(folder / "task.py"), listen=listen, listens=listens, waits=waits, **given)
    (folder / "result.json").write_text(result.to_json())


def join_here(folder: Path, client: int, port: str, options: Mapping[str, Any]) -> None:
    """(In a process of its own) Take part, and write down what is said."""
    quiet_threads()
    with (folder / f"said{client}").open("a", buffering=1) as file:
        join(
            port, str(folder / "task.py"), key=folder / f"c{client}.key", data=f"{folder}/mine{client}.py:data",
            patience="60s", say=lambda line: print(line, file=file), **options,
        )  # fmt: skip


def checkpoints(folder: Path) -> list[Path]:
    return CheckpointDirectory(folder).all()


@pytest.fixture
def four(tmp_path: Path) -> Iterator[RealRun]:
    """Four enrolled clients, of which none has come."""
    with real_run(tmp_path, 4) as run:
        yield run

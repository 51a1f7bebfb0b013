"""Sites of one machine get their roles from one fork server, each with what is its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from covey.engines.cluster import fork_broker
from covey.engines.cluster.memory_broker import new_secret
from covey.engines.process.forking.fork_server import RoleJob
from covey.engines.process.forking.fork_server_client import RUNNING, SharedForkServer, forked_by_server
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.engines.process.forking.run_fork_server import RunForkServer
from covey.engines.process.inherited import environment
from covey.message import Address
from covey.model.threads import limited_to

WARM = "covey.run.roles"
WORKER = Address("worker", 3)


class OwnServer(Exception):
    """A site wanted a fork server of its own."""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Of a run whose launcher offers its fork server; nobody starts another."""

    def started(*args: object) -> None:
        raise OwnServer

    monkeypatch.setattr(fork_broker, "started", started)
    monkeypatch.setattr(fork_broker, "spawned", started)
    with ExitStack() as stack:
        mine = stack.enter_context(RoleProcesses(WARM, start=partial(forked_by_server, 1)))
        known = new_secret()
        stack.callback(fork_broker.offered(known, 1, mine.fork_server))
        yield known


def site(secret: bytes) -> RoleProcesses:
    return RoleProcesses(WARM, start=partial(fork_broker.forked, secret, 1))


def tell(work: bytes, handed: bytes, who: Address) -> None:
    """(A role) Write down what it has from its site."""
    found = {"mark": os.environ.get("COVEY_MARK"), "folder": os.getcwd(), "who": str(who), "handed": handed.decode()}
    path = Path(work.decode())
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)


def gone(pid: int) -> None:
    """The server has reaped it, or will in a moment."""
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until, f"process {pid} is left"
        time.sleep(0.01)


def test_roles_have_what_is_their_sites(secret: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_MARK", "a site's")
    monkeypatch.chdir(tmp_path)
    with site(secret) as processes:
        assert isinstance(processes.fork_server, RunForkServer)
        assert processes.fork_server.server.pid == RUNNING[0].pid
        work, directory = str(tmp_path / "told").encode(), processes.directory
        job = RoleJob(entry=f"{__name__}:tell", roles=[WORKER], work=work, handed=b"a task")
        processes.start_roles(job)
        ends: list[tuple[Address, str]] = []
        until = time.monotonic() + 120
        while not ends and time.monotonic() < until:
            ends = processes.exits()
            time.sleep(0.01)
        assert ends == [(WORKER, "exited with code 0")]
        born = processes.fork_server.pid
    assert json.loads((tmp_path / "told").read_text()) == {
        "mark": "a site's", "folder": str(tmp_path), "who": "worker 3", "handed": "a task",
    }  # fmt: skip
    assert not directory.exists()
    gone(born)
    assert RUNNING[0].own(), "the server stays for its owner's next run"


def test_a_role_dies_with_its_site(secret: bytes, tmp_path: Path) -> None:
    """The site's end of the line closes, as it does however a process ends; the launcher's own roles stay."""
    ours, theirs = socket.socketpair()
    (tmp_path / "private").mkdir()
    with theirs:
        parent = fork_broker.forked(secret, 1, ours, theirs, tmp_path / "private", WARM, 60.0)
    assert isinstance(parent, RunForkServer)
    until = time.monotonic() + 120
    while parent.pid == RUNNING[0].pid and time.monotonic() < until:
        time.sleep(0.01)
    assert parent.pid != RUNNING[0].pid
    ours.close()
    parent.wait(60.0)
    assert parent.loss().startswith("the fork server of the run")
    parent.reap()
    assert not (tmp_path / "private").exists() and RUNNING[0].own()


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "OMP_DYNAMIC", "TORCH_LOGS"])
def test_what_is_read_while_libraries_load_needs_another_server(
    secret: bytes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "3")
    with pytest.raises(OwnServer):
        site(secret)


def test_what_torchrun_says_of_a_rank_does_not(secret: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "RANK"):
        monkeypatch.setenv(name, "1")
    with site(secret) as processes:
        assert isinstance(processes.fork_server, RunForkServer)
        assert processes.fork_server.server.pid == RUNNING[0].pid


def test_another_run_finds_nothing(secret: bytes) -> None:
    with pytest.raises(OwnServer):
        site(new_secret())


def test_who_knows_the_socket_but_not_the_secret_is_refused(secret: bytes) -> None:
    door = fork_broker._door(secret, environment(**limited_to(1)))
    ours, theirs = socket.socketpair()
    request = fork_broker.request_of(environment(), Path("nowhere"), WARM, 60.0)
    with ours, theirs, closing(fork_broker.connected(door)) as line, pytest.raises(OSError, match="refused|secret"):
        fork_broker.borrowed(line, new_secret(), theirs, request)
    with site(secret) as processes:  # it still serves others
        assert isinstance(processes.fork_server, RunForkServer)


def test_a_server_that_was_retired_is_not_waited_for(secret: bytes) -> None:
    RUNNING[0].line.close()
    with pytest.raises(OwnServer):
        site(secret)
    RUNNING.pop().kill()


def test_a_server_that_was_retired_while_it_imports_is_not_asked() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = SharedForkServer(process=None, line=ours, environment={})  # type: ignore[arg-type]  # it is not asked
        assert server.imports()
        ours.close()
        assert not server.imports()


def test_a_site_does_not_import_torch() -> None:
    """It waits and passes messages on; what it starts on each machine should be there at once."""
    modules = "covey.engines.cluster.site, covey.engines.mpi_site, covey.engines.torchrun_agent"
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

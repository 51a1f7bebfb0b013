"""Runs of one process share a fork server, and notice nothing of each other; nothing of it stays behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from covey.cli.training import import_ahead
from covey.engines.process import liveness
from covey.engines.process.forking import fork_server_client as client
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.engines.process.forking.run_fork_server import RunForkServer
from covey.errors import PeerLost
from tests.real.harness import GONE_WITHIN, SLOW, Room, Watch, finish, fit, trained

TELL = """
import json, numpy
def tell():
    known = {"environment": dict(os.environ), "folder": os.getcwd(), "mask": os.umask(0), "path": sys.path,
             "chance": numpy.random.random(), "parent": os.getppid(), "threads": torch.get_num_threads()}
    (HERE / "told.json").write_text(json.dumps(known))
"""


def server() -> int:
    """The number of the fork server that this process asked last."""
    return client.RUNNING[0].process.pid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def told(room: Room, **given: Any) -> dict[str, Any]:
    """What a role of a short run finds about itself."""
    task = room.task(before_build="tell() if first('told') else None", more=TELL)
    (room.path / "told").unlink(missing_ok=True)
    fit(task, "local_sgd", **{"workers": 1, "steps": 2, **given})
    found: dict[str, Any] = json.loads((room.path / "told.json").read_text())
    return found


def test_runs_share_one_fork_server_and_each_has_a_parent_of_its_own(room: Room) -> None:
    found: list[tuple[int, int]] = []

    def look() -> None:
        own = room.find("fork server")
        found.append((own, parent(own)))

    for _ in range(2):
        fit(room.task(before_step=SLOW), "bsp", 2, steps=60, watcher=Watch(trained(1), look))
    (first, shared), (second, again) = found
    assert first != second and shared == again == server()


def test_the_server_that_was_started_ahead_serves_the_run(room: Room) -> None:
    import_ahead(" local", 2, None)
    before = server()
    fit(room.task(), "bsp", 2, steps=1)
    assert server() == before


@pytest.mark.parametrize(
    "command",
    ["run task.py --strategy bsp --workers 3", "compare task.py --strategies bsp --workers 3 --until loss:1",
     "launch examples/digits.py --strategy bsp --workers 3"],
)  # fmt: skip
def test_commands_start_the_server_before_they_import_torch(command: str) -> None:
    code = """
import sys
from covey.cli import main
from covey.engines.process.forking import ahead
ahead.start_fork_server = lambda *given: sys.exit(f"{given}, torch here: {'torch' in sys.modules}")
main()
"""
    words = [sys.executable, "-c", code, *command.split(), "--threads", "2"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.stderr == "('covey.run.roles', 2), torch here: False\n"


def test_a_run_has_the_environment_folder_and_mask_of_its_moment(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(room.task(), "local_sgd", 1, steps=1)
    before = server()
    monkeypatch.setenv("OF_THE_SECOND_RUN", "só")
    monkeypatch.delenv("PATH")
    monkeypatch.chdir(room.temporary)
    monkeypatch.syspath_prepend(str(room.path / "more"))
    mask = os.umask(0o027)
    try:
        second = told(room)
    finally:
        os.umask(mask)
    assert second["environment"]["OF_THE_SECOND_RUN"] == "só" and "PATH" not in second["environment"]
    assert second["folder"] == str(room.temporary) and second["mask"] == 0o027
    assert str(room.path / "more") in second["path"]
    monkeypatch.delenv("OF_THE_SECOND_RUN")
    third = told(room)
    assert "OF_THE_SECOND_RUN" not in third["environment"]
    assert second["chance"] != third["chance"], "unseeded chance differs from run to run"
    assert server() == before


def test_a_changed_task_file_and_what_it_imports_are_read_again(room: Room) -> None:
    more = "import helper_of_the_task\ndef tell(): (HERE / 'told.json').write_text(f'[{helper_of_the_task.VALUE}, %d]')"
    for value in (1, 22):  # of another length, because Python compares files by size and second
        room.script(f"VALUE = {value}", "helper_of_the_task.py")
        (room.path / "told").unlink(missing_ok=True)
        task = room.task(before_build="tell() if first('told') else None", more=more % value)
        fit(task, "local_sgd", 1, steps=1)
        assert json.loads((room.path / "told.json").read_text()) == [value, value]


def test_what_libraries_read_when_they_are_loaded_takes_another_server(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(room.task(), "local_sgd", 1, steps=1)
    before = server()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    assert told(room)["environment"]["MALLOC_ARENA_MAX"] == "3"
    other = server()
    assert other != before
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    assert "MALLOC_ARENA_MAX" not in told(room)["environment"]
    assert server() == before, "it is kept for its next turn"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    fit(room.task(), "local_sgd", 1, steps=1)
    assert server() not in (before, other) and len(client.RUNNING) == 2
    until = time.monotonic() + GONE_WITHIN
    while liveness.state(other) not in ("", "Z") and time.monotonic() < until:
        time.sleep(0.05)
    assert liveness.state(other) in ("", "Z") and liveness.state(before) == "S"


def test_roles_write_where_the_launcher_writes_now(room: Room, capfd: pytest.CaptureFixture[str]) -> None:
    task = room.task(before_build="print('out of a role'); print('err of a role', file=sys.stderr)")
    for _ in range(2):
        fit(task, "local_sgd", 1, steps=1)
        out, err = capfd.readouterr()
        assert "out of a role" in out and "err of a role" in err


def test_a_fork_of_the_launcher_does_not_take_the_server_for_its_own(room: Room) -> None:
    fit(room.task(), "local_sgd", 1, steps=1)
    assert client.RUNNING
    if not (pid := os.fork()):
        os._exit(len(client.RUNNING))
    assert os.waitpid(pid, 0)[1] == 0
    assert fit(room.task(), "local_sgd", 1, steps=1).samples == 4


def test_an_idle_server_has_one_thread_and_uses_no_cpu(room: Room) -> None:
    fit(room.task(), "local_sgd", 1, steps=1)
    time.sleep(0.2)  # it still reaps the last run's parent
    used = liveness.cpu(server())
    time.sleep(1)
    assert liveness.cpu(server()) == used
    assert len(os.listdir(f"/proc/{server()}/task")) == 1


def test_ctrl_z_reaches_a_run_of_whose_fork_nobody_has_heard_yet(room: Room) -> None:
    """Else the run would see its launcher stand still, and end."""
    fit(room.task(), "local_sgd", 1, steps=1)
    with RoleProcesses("covey.run.roles", start=partial(client.forked_by_server, 1)) as processes:
        forked = processes.fork_server
        assert isinstance(forked, RunForkServer)
        select.select([forked.report], [], [], GONE_WITHIN)
        assert not forked.forked_pid
        processes.signal(signal.SIGSTOP)
        try:
            until = time.monotonic() + GONE_WITHIN
            while liveness.state(forked.forked_pid) != "T" and time.monotonic() < until:
                time.sleep(0.01)
            assert forked.forked_pid and liveness.state(forked.forked_pid) == "T"
        finally:
            processes.signal(signal.SIGCONT)


def test_a_server_that_is_killed_is_named_and_the_next_run_starts_another(room: Room) -> None:
    fit(room.task(), "local_sgd", 1, steps=1)
    before = server()
    watch = Watch(trained(40), lambda: os.kill(server(), signal.SIGKILL))
    with pytest.raises(PeerLost, match="^the shared fork server exited with signal 9, SIGKILL"):
        fit(room.task(before_step=SLOW), "asynchronous", 2, steps=2000, watcher=watch)
    assert watch.acted is not None and time.monotonic() - watch.acted < GONE_WITHIN
    assert not room.left()
    assert fit(room.task(), "local_sgd", 1, steps=1).samples == 4 and server() != before
    os.kill(server(), signal.SIGKILL)
    os.waitid(os.P_PID, server(), os.WEXITED | os.WNOWAIT)
    assert fit(room.task(), "local_sgd", 1, steps=1).samples == 4


def test_a_server_that_is_stopped_is_named_and_does_not_stay(room: Room) -> None:
    fit(room.task(), "local_sgd", 1, steps=1)
    before = server()
    watch = Watch(trained(40), lambda: os.kill(server(), signal.SIGSTOP))
    with pytest.raises(PeerLost, match="^the shared fork server was stopped by a signal: no report and"):
        fit(room.task(before_step=SLOW), "asynchronous", 2, steps=100_000, stall="2s", watcher=watch)
    assert watch.acted is not None and time.monotonic() - watch.acted < 2 + GONE_WITHIN
    assert not room.left()
    assert fit(room.task(), "local_sgd", 1, steps=1).samples == 4
    assert server() != before and liveness.state(before) in ("", "Z")


TWICE = """
import sys, covey
from functools import partial
from pathlib import Path
from covey.engines.process.forking import fork_server_client as client
for _ in range(2):
    covey.fit(sys.argv[1], "local_sgd", 1, steps=1, threads=1)
Path("between").write_text(str(client.RUNNING[0].process.pid))
input()
covey.fit(sys.argv[1], "local_sgd", 1, steps=100_000, threads=1, stall="2s")
"""


@pytest.mark.parametrize("moment", ["between", "training"])
def test_a_launcher_that_is_killed_takes_its_server_along(room: Room, moment: str) -> None:
    task = room.task(before_step=f"CALLS[0] > 5 and (HERE / 'training').touch(); {SLOW}")
    process = room.start(room.script(TWICE), task, stdin=True)
    assert process.stdin
    room.appears("between")
    if moment == "training":
        process.stdin.write("\n")
        process.stdin.flush()
        room.appears("training")
        for who in ("fork server", "shared fork server"):  # even those that can see nothing any more
            room.kill(who, signal.SIGSTOP)
    process.kill()
    room.wait_empty()
    finish(process)


def test_a_command_ends_with_its_server(room: Room) -> None:
    process = room.start_cold("-m", "covey", "run", room.task(), "--workers", "2", "--steps", "3")
    code, _, err = finish(process)
    assert code == 0, err
    assert sys.executable and not room.left()

"""A role that dies is named within five seconds, and takes the run, not the machine, with it."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from covey.errors import PeerLost
from tests.real.harness import GONE_WITHIN, SLOW, Room, Watch, finish, fit, trained

SOME = [("bsp", "server 1"), ("ssp", "worker 2"), ("easgd", "master 0"), ("allreduce", "worker 0")]
REST = [
    (strategy, victim)
    for strategy, victims in {
        "bsp": ["worker 0", "server 0", "scorer 0"], "ssp": ["worker 0", "server 0"], "asynchronous": ["worker 1"],
        "allreduce": ["worker 2", "scorer 0"], "local_sgd": ["worker 1"], "easgd": ["worker 2", "scorer 0"],
        "gosgd": ["worker 0"], "dpsgd": ["worker 1"],
    }.items()
    for victim in victims
]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "victim"), [*SOME, *(pytest.param(*pair, marks=pytest.mark.full) for pair in REST)]
)
def test_a_dead_role_is_named(room: Room, strategy: str, victim: str) -> None:
    moment = random.randrange(300)
    watch = Watch(trained(moment), lambda: room.kill(victim))
    servers = 2 if strategy == "bsp" else None
    with pytest.raises(PeerLost, match=f"^{victim} exited with signal 9, SIGKILL") as lost:
        fit(room.task(before_step=SLOW), strategy, 3, steps=2000, servers=servers, watcher=watch)
    assert watch.acted is not None
    assert time.monotonic() - watch.acted < GONE_WITHIN, f"killed at {moment} samples"
    assert "last heard" in str(lost.value)
    assert not room.left()


def test_the_scorer_dies_while_it_scores(room: Room) -> None:
    task = room.task(before_score="(HERE / 'scoring').touch(); time.sleep(60)", options="evaluate=score")
    watch = Watch(lambda now: (room.path / "scoring").exists(), lambda: room.kill("scorer 0"))
    with pytest.raises(PeerLost, match="^scorer 0 exited with signal 9"):
        fit(task, "bsp", 2, epochs=3, watcher=watch)


def test_a_role_dies_while_it_is_built(room: Room) -> None:
    task = room.task(before_build="(HERE / 'building').touch(); time.sleep(60)")
    watch = Watch(lambda now: (room.path / "building").exists(), lambda: room.kill("worker 1"))
    with pytest.raises(PeerLost, match="^worker 1 exited with signal 9.*last heard"):
        fit(task, "gosgd", 2, epochs=1, watcher=watch)


def test_the_parent_of_all_roles_dies(room: Room) -> None:
    watch = Watch(trained(40), lambda: room.kill("fork server"))
    with pytest.raises(PeerLost, match="^the fork server of the run exited with signal 9"):
        fit(room.task(before_step=SLOW), "asynchronous", 3, steps=2000, watcher=watch)
    assert watch.acted is not None
    assert time.monotonic() - watch.acted < GONE_WITHIN


def test_on_the_command_line_the_exit_code_tells(room: Room) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = room.start("-m", "covey", "run", task, "--workers", "2", "--steps", "5000")
    room.appears("training")
    room.kill("worker 1")
    code, _, err = finish(process)
    assert code == 1
    assert "worker 1 exited with signal 9" in err and "Traceback" not in err


@pytest.mark.parametrize("moment", ["starting", "training"])
def test_a_dead_launcher_takes_its_roles_along(room: Room, moment: str) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    start = room.start_cold if moment == "starting" else room.start
    process = start("-m", "covey", "run", task, "--workers", "2", "--steps", "5000", "--strategy", "local_sgd")
    room.appears("tmp/covey-*" if moment == "starting" else "training")
    os.kill(process.pid, signal.SIGKILL)
    room.wait_empty()
    finish(process)


def test_a_launcher_that_dies_while_torch_is_imported(room: Room) -> None:
    """On a busy machine that takes long; here a module that does stands for it."""
    room.script("(__import__('pathlib').Path(__file__).parent / 'importing').touch(); __import__('time').sleep(60)")
    room.script(
        "from covey.engines.process.forking.role_processes import RoleProcesses\n"
        "processes = RoleProcesses('script'); input()",
        "launcher.py",
    )
    launcher = room.start(room.path / "launcher.py", stdin=True)
    room.appears("importing")
    launcher.kill()
    room.wait_empty()
    finish(launcher)


def test_a_launcher_that_dies_before_its_roles_have_a_parent_leaves_nothing(room: Room) -> None:
    """Nobody could remove the directory, so there must be none yet."""
    room.script(
        "import os, signal\n"
        "from covey.engines.process.forking.role_processes import RoleProcesses\n"
        "RoleProcesses('os', start=lambda *given: os.kill(os.getpid(), signal.SIGKILL))",
        "launcher.py",
    )
    launcher = room.start(room.path / "launcher.py")
    assert finish(launcher)[0] == -signal.SIGKILL
    room.wait_empty()


def test_what_a_run_leaves_that_is_killed_with_all_its_processes_goes_with_the_next_run(room: Room) -> None:
    process = room.start("-m", "covey", "run", room.task(before_step=SLOW), "--workers", "2", "--steps", "5000")
    room.find("worker 1")
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees another one's end
        for pid in room.processes():
            os.kill(pid, number)
    finish(process)
    assert [path.name[:6] for path in room.temporary.iterdir()] == ["covey-"]
    fit(room.task(), "bsp", 2, steps=1)

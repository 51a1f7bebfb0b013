"""Whoever is stopped (SIGSTOP, a dead disk) and neither says anything nor uses the CPU ends the run, with its name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from covey.engines.process import liveness
from covey.engines.process.forking import fork_server_client
from covey.errors import PeerLost
from covey.observe.progress import Progress
from covey.run.own_loop.launching import launch
from tests.real.harness import GONE_WITHIN, SLOW, Room, Watch, finish, fit, interrupt, trained
from tests.warm import Command

pytestmark = pytest.mark.alone

STALL = 2.0
TOLD = r"{} was stopped by a signal: no report and no CPU use for 2 s"

NAMED = """
def am(who):
    "Whether this process is that role."
    return open("/proc/self/cmdline").read().strip("\\0 ") == f"covey: {who}"

def spin(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
"""
SLOW_STATE = """
class Slow(torch.optim.SGD):
    def state_dict(self):
        (HERE / "saving").touch()
        time.sleep(0.5)
        return super().state_dict()
"""

MOMENTS: dict[str, dict[str, Any]] = {
    "building": {"before_build": "(HERE / 'building').touch(); time.sleep(1)"},
    "waiting": {"before_build": "(HERE / 'waiting').touch(); spin(6) if am('worker 0') else None"},
    "training": {"before_step": f"CALLS[0] > 5 and (HERE / 'training').touch(); {SLOW}"},
    "scoring": {"before_score": "(HERE / 'scoring').touch(); time.sleep(1)", "options": "evaluate=score"},
    "saving": {"more": NAMED + SLOW_STATE, "optimizer": "Slow(params, lr=0.1)", "before_step": SLOW},
}
QUICK = [("worker 1", "building"), ("worker 1", "training"), ("scorer 0", "scoring")]
REST = [
    (who, moment)
    for who in ("worker 1", "server 0", "scorer 0", "fork server")
    for moment in MOMENTS
    if (who, moment) not in QUICK
]


class Stop(Watch):
    """Stops a process of the room; what counts is when that was done."""

    def __init__(self, room: Room, who: str, when: Callable[[Progress], bool]) -> None:
        super().__init__(when, lambda: room.kill(who, signal.SIGSTOP))

    def update(self, progress: Progress) -> None:
        before = self.acted
        super().update(progress)
        self.acted = time.monotonic() if self.acted != before else before


@pytest.mark.parametrize(("who", "moment"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.full) for case in REST)])
def test_whoever_is_stopped_is_named(room: Room, who: str, moment: str) -> None:
    watch = Stop(room, who, lambda now: (room.path / moment).exists())
    called = "the fork server of the run" if who == "fork server" else who
    kept = {"checkpoint": room.path / "kept", "every": "200ms"} if moment == "saving" else {}
    task = room.task(**{"more": NAMED, **MOMENTS[moment]})
    with pytest.raises(PeerLost, match="^" + TOLD.format(called)):
        fit(task, "bsp", 2, steps=100_000, stall=f"{STALL:g}s", watcher=watch, **kept)
    in_time(room, watch)


def in_time(room: Room, watch: Watch) -> None:
    assert watch.acted is not None
    assert time.monotonic() - watch.acted < STALL + GONE_WITHIN
    assert not room.left()


@pytest.mark.full
def test_the_fork_server_is_stopped_while_it_imports(room: Room) -> None:
    fork_server_client.close()
    watch = Watch(lambda now: True, lambda: fork_server_client.RUNNING[0].process.send_signal(signal.SIGSTOP))
    with pytest.raises(PeerLost, match="^" + TOLD.format("the shared fork server")):
        fit(room.task(), "bsp", 2, steps=10, stall=f"{STALL:g}s", watcher=watch)
    in_time(room, watch)


class Ending(Stop):
    """Interrupts a run that trains, and acts when it is stopping."""

    def update(self, progress: Progress) -> None:
        if progress.phase == "training" and progress.samples > 20 and not self.said:
            self.said.append("interrupted")
            interrupt()
        super().update(progress)


@pytest.mark.full
@pytest.mark.parametrize("who", ["worker 1", "server 0"])
def test_stopped_while_the_run_is_stopping(room: Room, who: str) -> None:
    watch = Ending(room, who, lambda now: now.phase == "stopping")
    with pytest.raises(PeerLost, match="^" + TOLD.format(who)):
        fit(room.task(before_step="time.sleep(0.7)"), "bsp", 2, steps=100, stall=f"{STALL:g}s", watcher=watch)
    in_time(room, watch)


@pytest.mark.parametrize("who", ["worker 1", pytest.param("fork server", marks=pytest.mark.full)])
def test_after_the_run_who_does_not_leave_is_named_and_the_result_is_kept(room: Room, who: str) -> None:
    watch = Stop(room, who, lambda now: now.phase == "ended")
    result = fit(room.task(), "gosgd", 2, steps=5, stall=f"{STALL:g}s", watcher=watch)
    called = "the fork server of the run" if who == "fork server" else who
    assert re.match("after the run, " + TOLD.format(called), result.failures[0]) and watch.said[-1:] == result.failures
    assert result.samples == 40 and result.weights
    in_time(room, watch)


# -- who is busy is not silent -----------------------------------------------------------------------------------------

HOLD = """
from collections import deque

def hold(seconds):
    "Count in C, which lets no other thread run."
    begun = time.perf_counter()
    deque(range(2_000_000), maxlen=0)
    deque(range(int(2_000_000 * seconds / (time.perf_counter() - begun))), maxlen=0)
"""


def test_a_role_that_holds_the_gil_is_busy(room: Room) -> None:
    held = "hold(3) if CALLS[0] == 2 and first('holds') else None"
    watch = Watch()
    result = fit(room.task(before_step=held, more=HOLD), "gosgd", 2, steps=4, stall="1s", watcher=watch)
    assert result.samples == 32 and any("a long wait" in line for line in watch.said)


@pytest.mark.full
def test_a_role_that_waits_for_what_it_has_started_is_busy(room: Room) -> None:
    """As one that compiles does, whose compiler is a process of its own."""
    room.script("import time; until = time.monotonic() + 4\nwhile time.monotonic() < until: pass", "compiler.py")
    compiles = "__import__('subprocess').run([sys.executable, HERE / 'compiler.py'])"
    assert fit(room.task(before_build=compiles), "gosgd", 2, steps=4, stall="1s").samples == 32


@pytest.mark.full
def test_a_long_start_with_a_short_patience(room: Room) -> None:
    """One role builds for long and the others wait for it: nobody stands still."""
    build = "spin(5) if am('worker 0') else None"
    assert fit(room.task(before_build=build, more=NAMED), "bsp", 2, steps=4, stall="1s").samples == 32


# -- the launcher ------------------------------------------------------------------------------------------------------


def begin(room: Room, moment: str, *more: str) -> Command:
    task = room.task(**{"more": NAMED, **MOMENTS[moment]})
    process = room.start("-m", "covey", "run", task, "--strategy", "bsp", "--workers", "2", "--stall", "2s", *more)
    room.appears(moment)
    return process


def others(room: Room, process: Command) -> list[int]:
    return [pid for pid in room.processes() if pid != process.pid]


@pytest.mark.parametrize(
    "moment", ["training", *(pytest.param(moment, marks=pytest.mark.full) for moment in ("building", "scoring"))]
)
def test_a_stopped_launcher_loses_its_roles_and_says_so(room: Room, moment: str) -> None:
    process = begin(room, moment, "--steps", "100000")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: not others(room, process), STALL + GONE_WITHIN)
    os.kill(process.pid, signal.SIGCONT)
    code, _, err = finish(process)
    assert code == 1 and re.search(r"the launcher itself was stopped for \d+ s, longer than 2 s", " ".join(err.split()))
    assert "Traceback" not in err
    room.wait_empty()


def test_ctrl_z_stops_everybody_and_fg_goes_on(room: Room) -> None:
    process = begin(room, "training", "--steps", "150", "--json", "result.json")
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTSTP)
    roles = others(room, process)
    wait_until(lambda: all(liveness.state(pid) == "T" for pid in [process.pid, *roles]), GONE_WITHIN)
    time.sleep(2 * STALL)
    assert others(room, process) == roles
    paused = time.monotonic() - began
    os.killpg(process.pid, signal.SIGCONT)
    code, _, err = finish(process)
    assert code == 0, err
    assert "\na long wait" not in err and "\ntraining: a long wait" not in err
    found = json.loads((room.path / "result.json").read_text())
    assert found["samples"] == 2 * 150 * 4 and not found["failures"]
    assert found["seconds"] < time.monotonic() - began - paused + 1, "the pause is no training time"


@pytest.mark.full
def test_a_role_that_goes_on_in_time_is_forgiven(room: Room) -> None:
    def pause() -> None:
        pid = room.find("worker 1")
        os.kill(pid, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {pid}"])

    watch = Watch(trained(40), pause)
    assert fit(room.task(before_step=SLOW), "bsp", 2, steps=100, stall="4s", watcher=watch).samples == 800


@pytest.mark.full
def test_a_script_of_ones_own_that_is_stopped_after_the_run(room: Room) -> None:
    script = room.script(LOOP)
    watch = Stop(room, "worker 1", lambda now: (room.path / "after").exists())
    with pytest.raises(PeerLost, match="^" + TOLD.format("worker 1")):
        launch(script, [], "allreduce", 2, stall=f"{STALL:g}s", threads=1, watcher=watch)
    in_time(room, watch)


LOOP = """
import time, torch, covey
from pathlib import Path
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = (torch.randn(64, 6), torch.randint(0, 3, (64,)))
with covey.join(model, optimizer) as member:
    for x, y in member.shard(data, 4):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        member.step()
Path(__file__).with_name("after").touch()
time.sleep(1000)
"""


def wait_until(true: Callable[[], bool], within: float) -> None:
    until = time.monotonic() + within
    while not true():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.05)

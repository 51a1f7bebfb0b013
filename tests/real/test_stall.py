"""Nothing hangs silently: who waits for which message from whom, and who was last heard when."""

from __future__ import annotations

import msgspec
import pytest

from covey.engines.local import LocalProcesses
from covey.engines.process.launcher.run_wishes import RunWishes
from covey.engines.process.launcher.supervisor import Supervisor
from covey.errors import PeerLost, Stalled
from covey.observe.progress import Progress
from covey.observe.referee import Referee
from tests.real import deadlock
from tests.real.harness import Room, Watch, fit

pytestmark = pytest.mark.alone


class Enough(Exception):
    """The report was made; the run need not go on."""


class Listener(Watch):
    """Ends the run with the first report of a long wait while the run is in this phase."""

    phase, waits_in = "starting", "training"

    def update(self, progress: Progress) -> None:
        self.phase = progress.phase
        super().update(progress)

    def say(self, line: str) -> None:
        super().say(line)
        if self.phase == self.waits_in and "a long wait" in line:
            raise Enough


def test_a_step_that_hangs_is_shown(room: Room) -> None:
    hang = 'time.sleep(1000) if CALLS[0] == 4 and first("hangs") else None'
    listener = Listener()
    with pytest.raises(Enough):
        fit(room.task(before_step=hang), "bsp", 3, epochs=3, stall="1s", watcher=listener)
    head, *roles = listener.said[-1].splitlines()
    assert head == "a long wait:" and len(roles) == 4
    waiting = [line for line in roles if " s for Params of step 4 from server 0; last heard" in line]
    assert len(waiting) == 2, listener.said[-1]
    assert any("has been computing" in line and "in step 3; last heard" in line for line in roles)
    idle = "for Pull or Push or Sample or Goodbye"
    assert any("server 0 has been waiting" in line and idle in line for line in roles)


@pytest.mark.full
def test_a_launcher_that_waits_says_so(room: Room) -> None:
    step = "time.sleep(1000) if CALLS[0] == 9 and first('hangs') else time.sleep(0.05)"
    listener = Listener()
    listener.waits_in = "saving"
    with pytest.raises(Enough):
        fit(
            room.task(before_step=step), "gosgd", 2, steps=100, stall="1s", watcher=listener,
            checkpoint=room.path / "kept", every="200ms",
        )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("moment", ["building", "scoring"])
def test_a_wait_without_end_in_the_users_own_code_ends_the_run(room: Room, moment: str) -> None:
    """Nobody hears of a role that builds, or of the scorer while it scores; what uses no CPU there does nothing."""
    given = {f"before_{'build' if moment == 'building' else 'score'}": "time.sleep(1000) if first('hangs') else None"}
    who = r"(worker|scorer) \d" if moment == "building" else "scorer 0"
    with pytest.raises(PeerLost, match=f"^{who} is unresponsive: no report .* 1 s; .* give a longer stall=…; "):
        fit(room.task(**given, options="evaluate=score"), "gosgd", 2, epochs=3, stall="1s")


STUCK = """
class Stuck(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(1000) if CALLS[0] >= 60 and first("stuck") else None
        return super().step(closure)
"""


def test_an_optimizers_step_that_never_ends_ends_the_run(room: Room) -> None:
    """Also after brief work, when the thread that computes drives the role: the other one must not look alive."""
    task = room.task(more=STUCK, optimizer="Stuck(params, lr=0.1)")
    with pytest.raises(PeerLost, match=r"^worker \d is unresponsive: no report .* 1 s; .*; last heard"):
        fit(task, "gosgd", 2, steps=100_000, stall="1s")


def test_a_deadlock_is_named(room: Room) -> None:
    with LocalProcesses(deadlock.__name__) as processes:
        board = processes.start(deadlock.PLAN.roles, f"{deadlock.__name__}:enter", msgspec.msgpack.encode)
        supervisor = Supervisor(deadlock.PLAN, board, processes, Referee(10), RunWishes(score=False, stall=1.0))
        with pytest.raises(Stalled) as stalled:
            supervisor.run()
    head, one, two = str(stalled.value).splitlines()
    assert head == "nothing has moved for 1 s:"
    assert one.startswith("  worker 0 has been waiting 1 s for Token of step 0 from worker 1; last heard 0.")
    assert two.startswith("  worker 1 has been waiting 1 s for Token of step 0 from worker 0; last heard 0.")

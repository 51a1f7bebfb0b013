"""How a launcher ends a run: why it stopped, and whether a process that goes was expected to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from covey.engines.process.control import ProgramRaised
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher import monitor
from covey.engines.process.launcher.run_wishes import RunWishes
from covey.engines.process.launcher.supervisor import Supervisor
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PeerLost, PlanError, RoleFailed
from covey.message import Address
from covey.observe.progress import Phase
from covey.observe.referee import Referee
from covey.observe.result import Stopped
from covey.target import Target
from tests.engines.test_hostile_progress import NoCrew
from tests.real.deadlock import PLAN

WORKER = PLAN.roles[0].address


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with zmq.Context() as context:
        board = Switchboard(context, "inproc://board", [*(role.address for role in PLAN.roles), SCORER])
        processes: Any = NoCrew()
        yield Supervisor(PLAN, board, processes, Referee(10, Target("accuracy", 0.8)), RunWishes())
        context.destroy(0)


@pytest.mark.parametrize(
    ("stopped", "accuracy", "why"),
    [
        (None, 0.9, "target"),
        (None, 0.1, "budget"),
        ("interrupted", 0.9, "interrupted"),
        ("interrupted", 0.1, "interrupted"),
    ],
)
def test_why_it_stopped(
    supervisor: Supervisor, stopped: Stopped | None, accuracy: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last score may reach the target; of a run that a person ended, that is not the reason."""
    supervisor.ending.reason = stopped
    monkeypatch.setattr(supervisor.scoring, "ask", lambda *_, **__: {"accuracy": accuracy})
    assert supervisor.finish().stopped == why
    assert supervisor.referee.metrics() == {"accuracy": accuracy}


@pytest.mark.parametrize("score", [True, False])
@pytest.mark.parametrize("model", [None, Path("model.safetensors")])
def test_the_last_model_is_asked_for_where_it_is_scored_or_written(
    supervisor: Supervisor, score: bool, model: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[Any, ...]]()
    supervisor.wishes.score, supervisor.wishes.model = score, model
    monkeypatch.setattr(supervisor.scoring, "ask", lambda *given: asked.append(given) or {"accuracy": 0.5})
    supervisor.finish()
    assert asked == ([(score, model)] if score or model else [])


@pytest.mark.parametrize("phase", ["starting", "warming", "training", "saving", "scoring"])
def test_an_interrupt_ends_at_once_what_has_not_begun_to_train(supervisor: Supervisor, phase: Phase) -> None:
    supervisor.monitor.phase = phase
    supervisor.wishes.interrupt.asked = True
    if phase in ("starting", "warming"):
        with pytest.raises(KeyboardInterrupt):
            supervisor.meanwhile()
    else:
        supervisor.meanwhile()
    assert supervisor.ending.reason == (None if phase in ("starting", "warming") else "interrupted")


@pytest.mark.parametrize(
    ("phase", "how", "lost"),
    [
        ("ended", "exited with code 0", False),
        ("ended", "exited with code 1", True),  # a script of the user's that fails after its run
        ("ended", "was killed by signal 9", True),
        ("training", "exited with code 0", True),
        ("training", "exited with code 1", True),
    ],
)
def test_who_may_go_when(
    supervisor: Supervisor, phase: Phase, how: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "LAST_WORD", 0.01)
    supervisor.monitor.phase = phase
    exits = [(WORKER, how)]
    if lost:
        with pytest.raises(PeerLost, match=f"{WORKER} {how}; nothing heard from it"):
            supervisor.monitor.check_exits(exits)
    else:
        supervisor.monitor.check_exits(exits)


def test_a_role_that_has_lost_another_fails_by_no_mistake_of_its_program() -> None:
    """Such a run starts again, where that was asked for."""
    found = [monitor.failure(WORKER, ProgramRaised("no answer", "", kind)) for kind in ("PeerLost", "PlanError", "")]
    assert [type(one) for one in found] == [PeerLost, PlanError, RoleFailed]
    assert isinstance(found[0], PeerLost) and found[0].who == str(WORKER)


@pytest.mark.parametrize(("who", "told"), [(WORKER, 1), (SCORER, 0)])
def test_a_long_wait_is_told_once_but_for_a_score_which_may_take_long(
    supervisor: Supervisor, who: Address, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, looks = list[str](), iter(range(9))
    monkeypatch.setattr(supervisor.monitor, "pump", lambda timeout: next(looks))
    monkeypatch.setattr(supervisor.monitor.notices, "say", said.append)
    supervisor.monitor.phase, supervisor.monitor.stalls.limit = "scoring", -1.0
    with pytest.raises(StopIteration):
        supervisor.monitor.wait_for(lambda: [who])
    assert len(said) == told and all("scoring: a long wait for these roles" in line for line in said)


class SlowKeeper:
    """Notes what a clock shows while a checkpoint is copied, which takes its time."""

    last = False

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.shown = now, list[float]()

    def complete(self) -> None:
        self.shown.append(self.now())

    def copy(self, record: Any) -> None:
        self.shown.append(self.now())
        time.sleep(0.02)
        self.shown.append(self.now())

    def stood_still(self, seconds: float) -> None:
        assert seconds >= 0.02, "the pause counts for the interval, if not for the training"


def test_the_clock_is_stopped_while_a_checkpoint_is_copied(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs while workers come to a common step, and goes on when they do."""
    monkeypatch.setattr(supervisor.quiescence, "hold", lambda score: time.sleep(0.001) is None)
    monkeypatch.setattr(supervisor.quiescence, "drain", lambda broken: True)
    monkeypatch.setattr(supervisor.monitor.board, "tell", lambda roles, word: None)
    watch = supervisor.clock.watch
    watch.start()
    keeper: Any = SlowKeeper(watch.now)
    supervisor.keep(keeper)
    began, copying, copied = keeper.shown
    time.sleep(0.001)
    assert began < copying == copied < watch.now()
    assert not keeper.last
    supervisor.keep(keeper, go_on=False)
    assert keeper.last, "so that one that fails does not promise another"

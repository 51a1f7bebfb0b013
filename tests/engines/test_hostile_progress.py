"""What a checkpoint says of a run's past is taken over, or refused: nothing of it ends a launcher with a traceback."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from _pytest.mark.structures import ParameterSet

from covey.checkpoint import RunRecord
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.run_wishes import RunWishes
from covey.engines.process.launcher.supervisor import Supervisor
from covey.errors import CheckpointError
from covey.observe.referee import Referee
from covey.observe.tally import Tally
from tests.real.deadlock import PLAN

WORKER = PLAN.roles[0].address
HUGE = 10**400


class NoCrew:
    """Of processes: a past is taken over before any has said a word."""

    wakeups: tuple[int, ...] = ()
    paused = 0.0


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with zmq.Context() as context:
        board = Switchboard(context, "inproc://board", [role.address for role in PLAN.roles])
        processes: Any = NoCrew()
        yield Supervisor(PLAN, board, processes, Referee(10), RunWishes(score=False))
        context.destroy(0)


def kept(supervisor: Supervisor) -> dict[str, Any]:
    """What a run keeps that has trained and scored, with a loss that became infinite."""
    tally = Tally(who=WORKER, seconds=3.0, compute=2.0, waiting=-0.1, bytes={"server 0": 4000}, staleness={0: 9})
    tally.samples, tally.losses, tally.batches = 30, math.inf, 3
    supervisor.roster.tallies[WORKER] = tally
    supervisor.referee.judge(2.5, 20, 3000, {"accuracy": 0.5}, math.nan)
    return json.loads(json.dumps(supervisor.recorder.progress(4.0)))  # type: ignore[no-any-return]


def run(progress: Any) -> RunRecord:
    return RunRecord(
        strategy="bsp", workers=2, servers=1, seed=0, samples=9, batch_size=3, limits=[5, 5], progress=progress
    )


def test_a_past_is_taken_over(supervisor: Supervisor) -> None:
    supervisor.resume(run(kept(supervisor)))
    shown = supervisor.roster.progress("training", supervisor.clock.watch.now(), None, supervisor.referee.metrics())
    assert (shown.seconds, shown.samples, shown.bytes, shown.metrics) == (4.0, 30, 4000, {"accuracy": 0.5})
    assert not supervisor.referee.due(29) and supervisor.referee.due(30)


FIELDS: dict[str, list[Any]] = {
    "seconds": [None, "4", "nan", [], {}, True, math.nan, math.inf, -1.0, HUGE],
    "tallies": [None, "abc", 3, {}, [1], [None], [{}], [[WORKER, 1]], math.nan],
    "history": [None, "abc", 3, [1], ["row"], [None], [{}], [[]], math.nan],
}
TALLY: dict[str, list[Any]] = {
    "who": [None, "worker", {"role": "worker"}, ["worker", "0"], [1, 2]],
    "samples": [None, "3", 1.5, -1, math.nan, HUGE],
    "updates": [-1, HUGE], "batches": [-1, HUGE], "memory": [-1, HUGE],
    "seconds": [None, "3", math.nan, math.inf, HUGE], "compute": [math.nan], "waiting": [math.inf],
    "losses": ["nan", HUGE],
    "bytes": [None, [1], {"server 0": "many"}, {"server 0": -1}, {"server 0": HUGE}, {"server 0": math.nan}],
    "messages": [{"server 0": HUGE}],
    "staleness": [{"old": 1}, {"1": HUGE}, {str(10**30): 1}, {"1": -1}],
    "notes": [{"a": "b"}, {"a": HUGE}],
}  # fmt: skip
ROW: dict[str, list[Any]] = {
    "samples": [None, "3", -1, math.nan, math.inf, HUGE], "seconds": [None, math.nan, HUGE], "bytes": [None, HUGE],
    "accuracy": ["good", [], HUGE, -HUGE],
}  # fmt: skip


def each(wrong: dict[str, list[Any]]) -> list[ParameterSet]:
    return [pytest.param(name, value, id=f"{name}={value!r:.20}") for name, values in wrong.items() for value in values]


def refuses(supervisor: Supervisor, progress: Any) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint does not say how far the run came") as refused:
        supervisor.resume(run(progress))
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(("name", "value"), each(FIELDS))
def test_a_past_of_the_wrong_kind_is_refused(supervisor: Supervisor, name: str, value: Any) -> None:
    refuses(supervisor, {**kept(supervisor), name: value})


@pytest.mark.parametrize("name", FIELDS)
def test_a_past_that_lacks_something_is_refused(supervisor: Supervisor, name: str) -> None:
    refuses(supervisor, {key: value for key, value in kept(supervisor).items() if key != name})


@pytest.mark.parametrize(("name", "value"), each(TALLY))
def test_a_tally_that_cannot_be_is_refused(supervisor: Supervisor, name: str, value: Any) -> None:
    past = kept(supervisor)
    past["tallies"][0][name] = value
    refuses(supervisor, past)


@pytest.mark.parametrize(("name", "value"), each(ROW))
def test_a_line_of_history_that_cannot_be_is_refused(supervisor: Supervisor, name: str, value: Any) -> None:
    past = kept(supervisor)
    past["history"][-1][name] = value
    refuses(supervisor, past)


@pytest.mark.parametrize("name", ["seconds", "samples", "bytes", "loss"])
def test_a_line_of_history_that_lacks_something_is_refused(supervisor: Supervisor, name: str) -> None:
    past = kept(supervisor)
    del past["history"][-1][name]
    refuses(supervisor, past)

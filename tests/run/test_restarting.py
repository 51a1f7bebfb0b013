"""What attempts at a run add up to: what was kept counts once, and only what was lost is done again."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest

from covey.checkpoint import RunRecord
from covey.engines.interrupt import Interrupt
from covey.errors import PeerLost
from covey.observe.membership import MembershipLog
from covey.observe.tally import REPEATED
from covey.run.options import options
from covey.run.restarting import Attempt, FailureCount, Restarts


class Checkpoints:
    """The newest one is the one of this number, with so many samples; there is none before the first."""

    def __init__(self) -> None:
        self.number, self.samples = 0, 0

    def keep(self, samples: int) -> None:
        self.number, self.samples = self.number + 1, samples

    def all(self) -> list[Path]:
        return [self.newest()[0]] if self.number else []

    def newest(self) -> tuple[Path, RunRecord]:
        run = RunRecord(
            strategy="bsp", workers=2, servers=1, seed=0, samples=10, batch_size=2, limits=[None, None],
            progress={"tallies": [{"samples": self.samples // 2}, {"samples": self.samples - self.samples // 2}]},
        )  # fmt: skip
        return Path(f"checkpoint-{self.number:06d}"), run


@pytest.mark.parametrize(
    ("attempts", "repeated"),
    [
        ([(100, None)], 100),  # samples of an attempt when it was lost, and those of its newest checkpoint
        ([(100, 60)], 40),
        ([(100, 60), (170, 150)], 40 + 20),
        ([(100, 60), (170, None)], 40 + 110),
        ([(100, 60), (50, None)], 40),  # lost before it was told of what was kept
    ],
)
def test_what_was_lost_since_the_newest_checkpoint_is_repeated(
    attempts: list[tuple[int, int | None]], repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.run.restarting.pause", lambda failures: 0.0)
    checkpoints: Any = Checkpoints()
    given = options({"on_failure": "restart", "checkpoint": "kept"})
    restarts = Restarts(given, checkpoints, Interrupt(), 2)
    begun, told = list[Path | None](), list[Any]()
    result = SimpleNamespace(samples=200, tell_membership=lambda *given: told.extend(given))

    def train(attempt: Attempt) -> Any:
        samples, kept = attempts[len(begun)] if len(begun) < len(attempts) else (200, None)
        begun.append(attempt.kept)
        attempt.supervisor = SimpleNamespace(  # type: ignore[assignment]
            clock=SimpleNamespace(watch=SimpleNamespace(now=lambda: 5.0), stood_still=0.5),
            roster=SimpleNamespace(trained=samples),
            referee=SimpleNamespace(furthest=samples),
        )
        if kept is not None:
            checkpoints.keep(kept)
        if len(begun) <= len(attempts):
            raise PeerLost("worker 1 died", "worker 1")
        return result

    assert restarts.run(Attempt(), train) is result  # type: ignore[comparison-overlap]
    assert told[1] == repeated
    assert [(event.who, event.stalled, event.view) for event in told[0]] == [
        ("worker 1", 0.5, number + 1) for number in range(len(attempts))
    ]


def test_what_was_repeated_before_the_checkpoint_is_not_lost_again() -> None:
    given = options({"on_failure": "restart", "checkpoint": "kept"})
    failures = FailureCount(given.checkpoints, None, 2, MembershipLog())
    checkpoints = Checkpoints()
    checkpoints.keep(60)
    run = checkpoints.newest()[1]
    run.progress["tallies"][0]["notes"] = {REPEATED: 10.0}
    failures.note(PeerLost("worker 1 died", "worker 1"), 5.0, 100, run)
    assert failures.repeated == 100 - 60 - 10


def test_pauses_grow_until_a_new_checkpoint_and_the_sixth_failure_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints: Any = Checkpoints()
    restarts = Restarts(options({"on_failure": "restart", "checkpoint": "kept"}), checkpoints, Interrupt(), 2)
    waits, begun = list[float](), list[Path | None]()
    monkeypatch.setattr(Restarts, "_wait", lambda self, seconds: waits.append(seconds))

    def train(attempt: Attempt) -> Any:
        begun.append(attempt.kept)
        if len(begun) == 3:
            checkpoints.keep(10)
        raise PeerLost("worker 1 died", "worker 1")

    with pytest.raises(PeerLost, match="worker 1 died\nthe run failed 6 times in a row without a new checkpoint"):
        restarts.run(Attempt(), train)
    assert waits == [0, 1, 0, 1, 2, 4, 4]


def test_an_interrupt_ends_the_pause_before_the_next_attempt() -> None:
    interrupt = Interrupt()
    restarts = Restarts(options({"on_failure": "restart", "checkpoint": "kept"}), None, interrupt, 2)
    Timer(0.2, interrupt).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        restarts._wait(60.0)
    assert time.monotonic() - begun < 30

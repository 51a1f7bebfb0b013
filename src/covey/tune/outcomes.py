"""What became of a search: a row for each trial, the best of them, and the command that trains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from covey.policy.search import WORST, TrialState
from covey.spec.call import Scalar
from covey.target import Better

SCHEMA = "covey.study/1"
TrialStatus = Literal["running", "paused", "finished", "ended", "failed"]


class TrialRow(msgspec.Struct, kw_only=True):
    """A trial: what it was tried with, how good it was after how many epochs, and how it stands."""

    number: int
    asked: int  # its number in Optuna's file
    point: dict[str, Scalar]
    task: str  # with its arguments
    strategy: str
    status: TrialStatus = "running"
    until: int = 0  # epochs that it was last started for
    curve: list[tuple[int, float | None]] = []  # (epochs, the metric); null: not a number
    samples: int = 0
    seconds: float = 0.0  # of training
    parent: int | None = None  # whose weights it began with
    why: str = ""  # it failed

    def check(self, number: int) -> None:
        """Refuse, with a ValueError, what no search has written of the trial with this number."""
        epochs = [0, *(one for one, _ in self.curve)]
        if self.number != number or not (self.parent is None or 0 <= self.parent < number):
            raise ValueError("the file is of another trial")
        if not all(0 <= count < 1 << 53 for count in (self.samples, self.until, self.asked, *epochs)):
            raise ValueError("a trial cannot have counted that")
        if any(before >= after for before, after in pairwise(epochs)) or not 0 <= self.seconds < math.inf:
            raise ValueError("a trial cannot have taken that time")

    @property
    def reached(self) -> int:
        return self.curve[-1][0] if self.curve else 0

    def state(self, better: Better) -> TrialState:
        """The trial as a policy sees it."""
        over = self.status in ("finished", "ended", "failed")
        curve = [(epochs, turned(value, better)) for epochs, value in self.curve]
        if self.status == "failed":
            curve.append((max(1, self.reached), WORST))
        return TrialState(self.number, tuple(curve), running=self.status == "running", over=over)

    def best(self, better: Better) -> float:
        """The last score, turned so that more is better."""
        return WORST if self.status == "failed" or not self.curve else turned(self.curve[-1][1], better)


class StudyResult(msgspec.Struct, kw_only=True):
    """A search: what was asked, all trials, and the best of them (null: none was scored)."""

    schema: str = SCHEMA
    task: str
    space: str
    policy: str
    metric: str
    better: Better
    workers: int
    engine: str
    epochs: int
    seed: int = 0
    command: str = ""  # that was typed
    trials: list[TrialRow] = []
    best: int | None = None
    train: str = ""  # the command that trains the best
    verdict: str = ""
    samples: int = 0
    seconds: float = 0.0  # that the search took
    earlier: int = 0  # samples that were trained before it went on
    stopped: Literal["trials", "time", "target", "interrupted"] = "trials"
    fused: float | None = None  # how many times faster fused trials were, where that was measured

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def turned(value: float | None, better: Better) -> float:
    """A metric as policies want it: more is better, and what is not a number is the worst."""
    if value is None or not math.isfinite(value):
        return WORST
    return value if better == "higher" else -value


def best_of(rows: Sequence[TrialRow], better: Better) -> TrialRow | None:
    """The trial with the best last score; of equal ones that which trained less, then the earlier."""
    scored = [row for row in rows if row.best(better) > WORST]
    return min(scored, key=lambda row: (-row.best(better), row.reached, row.number), default=None)

"""What was found: the strategies of the advice, each with its times, reasons and risks."""

from __future__ import annotations

from typing import Literal

import msgspec

from covey.compare.outcomes import Standing

Basis = Literal["trained in virtual time", "timed in virtual time", "formulas"]
Timing = Literal["formulas", "virtual time", "real steps"]
Sure = Literal["raced", "quite sure", "a close call", "a rough guess"]

SCHEMA = "covey.advice/1"


class RankedStrategy(msgspec.Struct, kw_only=True):
    """One strategy of the list. Intervals hold the truth with a chance of 90 %."""

    spec: str
    workers: int
    relative: float  # time to the target, in that of one worker alone
    relative_interval: tuple[float, float]
    seconds: float | None = None  # to the target, where one was trained for
    seconds_interval: tuple[float, float] | None = None
    step: float  # seconds
    timing: Timing  # what the time of a step is from
    exchange: float  # the share of a step that is exchange
    staleness: float = 0.0  # updates
    missed: bool = False  # a short run of it did not come to the target
    seeds: int = 0  # with which it, or a strategy of the same mathematics, was trained
    tried: float = 0.0  # seconds of a run that ended before the target
    money: float | None = None
    basis: Basis
    family: str
    reasons: list[str] = []
    risks: list[str] = []
    command: str = ""


class SpotAllocation(msgspec.Struct, kw_only=True):
    """Some of the spot machines, beside all that stay: what the same work then takes and costs."""

    spot: list[int]  # the workers on them
    seconds: float
    money: float


class SpotOutcome(msgspec.Struct, kw_only=True):
    """What machines that come and go do to a strategy, against machines that stay; both timed without training."""

    spec: str
    fixed_seconds: float
    seconds: float = 0.0
    counted: float = 1.0  # the share of the work that counts
    money: float | None = None  # where the cluster has prices
    fixed_money: float | None = None
    failure: str = ""  # why it cannot go on
    simulated: float | None = None  # seconds of the trace, where the whole run would take too long to simulate
    departures: int = 0  # in what was simulated
    allocations: list[SpotAllocation] = []  # of the cheapest strategy, the cheapest first


class RaceResult(msgspec.Struct, kw_only=True):
    """What a race of the first ones said, for real."""

    verdict: str
    winner: str | None
    tied: list[str]
    strategies: list[Standing]
    interrupted: bool = False


class AdvisedLayout(msgspec.Struct, kw_only=True):
    """A layout in which the model is divided."""

    plan: str
    command: str
    step: float  # seconds: in virtual time, or by a formula where it was not tried
    samples: int  # of a step
    memory: float  # bytes of the fullest machine
    relative: float  # seconds for a sample over those of data parallelism


class Advice(msgspec.Struct, kw_only=True):
    """What was found, best first."""

    schema: str = SCHEMA
    task: str
    workers: int
    until: str | None
    choices: list[RankedStrategy]
    findings: list[str]  # in plain words
    sure: Sure
    why_sure: str
    compute: float  # seconds of a batch
    model: int  # bytes
    trained_to: str = ""  # what strategies were compared by, where the target takes too long to train to
    epochs: int | None = None  # over which schedules were spread, where the task has any that follows them
    race: RaceResult | None = None
    spot: list[SpotOutcome] = []  # where a trace of spot machines was given; the cheapest first
    layouts: list[AdvisedLayout] = []  # where they were asked for; the fastest first
    interrupted: bool = False

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

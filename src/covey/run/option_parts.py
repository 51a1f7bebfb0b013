"""What else may a person ask of a run? Options that belong together are one part, which checks itself."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import ClassVar, Literal, get_args

from covey.errors import PlanError
from covey.names import option
from covey.observe.callbacks import Callback
from covey.observe.instruments import Instrument
from covey.observe.progress import Watcher
from covey.simulate import Cluster, parse_duration, parse_rate
from covey.simulate.faults import FaultPlan, read_faults
from covey.simulate.spot_trace import SpotTrace, load_trace
from covey.target import parse_target

STEPS = re.compile(r"([1-9][0-9]*) ?steps?")
SEEDS = 1 << 63
Kind = Literal["local", "cluster", "simulated"]
OnFailure = Literal["stop", "restart", "continue"]

ALL: frozenset[Kind] = frozenset({"local", "cluster", "simulated"})
REAL: frozenset[Kind] = frozenset({"local", "cluster"})
HOSTS: frozenset[Kind] = frozenset({"cluster"})
VIRTUAL: frozenset[Kind] = frozenset({"simulated"})

class OptionPart:
    """Options that belong together: the same kinds of engines read all of them."""

    __slots__ = ()

    read_by: ClassVar[frozenset[Kind]] = ALL

    def check(self) -> None:
        """Refuse options that contradict each other, once the engine is known to read them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOptions(OptionPart):
    """What to train with."""

    servers: int | None = None
    seed: int = 0
    rate: float = 1.0  # a factor on the task's learning rate
    link_rate: str | None = None  # of each link, such as 50mbit

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise PlanError(f"rate {self.rate}: the factor on the task's learning rate must be more than 0")
        if not 0 <= self.seed < SEEDS:
            raise PlanError(f"{option('seed', self.seed)}: a whole number from 0 to 2**63 - 1 is needed")
        readable("link_rate", self.link_rate or None, parse_rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyOptions(OptionPart):
    """What outlives a lost server."""

    replicas: int = 1  # copies of what each server holds

    def __post_init__(self) -> None:
        at_least_one(replicas=self.replicas)


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetOptions(OptionPart):
    """How long to train, and how often to score."""

    epochs: int | None = None
    steps: int | None = None
    until: str | None = None
    scores: int = 1  # of the model, in a pass over the data; 0: never
    score_every: str | None = None  # such as "100 steps" or "30s", in place of scores
    confirm: int = 1  # scores in a row that must meet the target
    best: str | None = None  # the metric by which the best model is kept
    patience: int | None = None  # scores without a better one, after which the run ends

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise PlanError(f"give {option('epochs')} or {option('steps')}, not both: each says when a worker ends")
        if self.scores == 0 and self.until is not None:
            raise PlanError(
                f"{option('until', self.until)} needs scores, and {option('scores', 0)} asks for none: omit one of them"
            )
        if self.scores == 0 and self.best is not None:
            raise PlanError(
                f"{option('best', self.best)} needs scores, and {option('scores', 0)} asks for none: omit one of them"
            )
        readable("until", self.until or None, parse_target)
        at_least_one(
            epochs=self.epochs, steps=self.steps, scores=self.scores or 1, confirm=self.confirm, patience=self.patience
        )

    @property
    def score_steps(self) -> int:
        """The steps between two scores, where a number of them is asked for; else 0."""
        found = STEPS.fullmatch(self.score_every or "")
        return int(found[1]) if found else 0

    @property
    def score_seconds(self) -> float | None:
        """The seconds between two scores, where a time is asked for."""
        return None if self.score_every is None or self.score_steps else parse_duration(self.score_every)

    def _score_every_is_readable(self) -> bool:
        try:
            return self.score_seconds != 0
        except (PlanError, TypeError):  # no duration, or no text
            return False

    def check(self) -> None:
        if self.score_every is not None and self.scores != 1:
            raise PlanError(
                f"give {option('scores')} or {option('score_every')}, not both: each says how often to score the model"
            )
        if not self._score_every_is_readable():
            raise PlanError(f"{option('score_every', self.score_every)}: write for example '100 steps' or 30s")
        if self.patience is not None and self.best is None:
            raise PlanError(
                f"{option('patience', self.patience)} counts scores without a better one: name the metric, as "
                f"{option('best', 'accuracy')}"
            )
        if self.confirm > 1 and self.until is None:
            raise PlanError(f"{option('confirm', self.confirm)} is for scores that meet {option('until')}: give both")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOptions(OptionPart):
    """How processes compute, and how long one may be silent."""

    read_by = REAL

    threads: int | None = None
    stall: str = "30s"
    profiled: bool = False  # record also what torch does

    def __post_init__(self) -> None:
        at_least_one(threads=self.threads)
        readable("stall", self.stall, parse_duration)


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualOptions(OptionPart):
    """What virtual time needs."""

    read_by = VIRTUAL

    cluster: Cluster | None = None
    timing_only: bool = False
    instruments: Sequence[Instrument] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions(OptionPart):
    """What to keep for another run, what to go on from, and whether to do so after a failure."""

    checkpoint: str | os.PathLike[str] | None = None
    every: str = "60s"  # or auto
    resume: str | os.PathLike[str] | None = None
    on_failure: OnFailure = "stop"
    max_failures: int | None = None  # in a row without progress, that a run survives

    def __post_init__(self) -> None:
        if self.on_failure not in get_args(OnFailure):
            raise PlanError(f"{option('on_failure', self.on_failure)}: use stop, restart or continue")
        at_least_one(max_failures=self.max_failures)
        readable("every", None if self.every == "auto" else self.every, parse_duration)

    def check(self) -> None:
        if self.on_failure == "restart" and self.checkpoint is None:
            raise PlanError(
                f"{option('on_failure', 'restart')} needs {option('checkpoint', 'DIR')}: the run starts again from its "
                "newest checkpoint"
            )
        if self.max_failures is not None and self.on_failure == "stop":
            raise PlanError(
                f"{option('max_failures', self.max_failures)} counts failures that a run survives: add "
                f"{option('on_failure', 'restart')} or {option('on_failure', 'continue')}"
            )
        if "every" in given_names(self) and self.checkpoint is None:
            raise PlanError(f"{option('every', self.every)}: say where with {option('checkpoint', 'DIR')}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultOptions(OptionPart):
    """What is to go wrong, and which machines come and go."""

    faults: FaultPlan | str | None = None
    spot_trace: str | os.PathLike[str] | None = None  # a file

    def check(self) -> None:
        plan_of(self)


def planned(faults: FaultPlan | str | None) -> FaultPlan:
    """The faults, read; seeds are for a command that can do a run several times."""
    if not isinstance(faults, str):
        return faults or FaultPlan()
    found = read_faults(faults)
    if isinstance(found, range):
        raise PlanError(
            f"faults {faults}: a seed draws its faults for one run in virtual time, which is done twice: use "
            "`covey simulate … --faults SEED`, or write the faults themselves"
        )
    return found


def trace_of(given: FaultOptions) -> SpotTrace | None:
    """When machines come and go, where that was said."""
    return load_trace(given.spot_trace) if given.spot_trace else None


def plan_of(given: FaultOptions, begins_full: bool = False) -> FaultPlan:
    """All that goes wrong, and all who come and go; a run that `begins_full` has a worker in every seat at first."""
    trace = trace_of(given)
    return FaultPlan((*planned(given.faults).faults, *(trace.plan(begins_full).faults if trace else ())))


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions(OptionPart):
    """What to keep of the result, and what to show."""

    save: str | os.PathLike[str] | None = None
    traced: bool = False  # keep a recording of what each role did when
    command: str = ""
    watcher: Watcher | None = None
    callbacks: Sequence[Callback] = ()
    log: Sequence[str] = ()  # loggers, such as csv:scores.csv
    runs: str | os.PathLike[str] | Literal[False] | None = None  # the folder of all records; False: no record

    def say(self, line: str) -> None:
        """Tell whoever watches."""
        if self.watcher:
            self.watcher.say(line)


def deaths_survived(given: CheckpointOptions) -> int:
    """How many deaths of a worker in a row, without a new step between them, a run survives while it goes on."""
    return given.max_failures or 2


def restarts_survived(given: CheckpointOptions) -> int:
    """How many failures in a row, without a new checkpoint between them, a run survives by starting again."""
    most = given.max_failures or 5
    return most if given.on_failure != "stop" and given.checkpoint is not None else 0


def option_names(part: OptionPart | type[OptionPart]) -> list[str]:
    """The options of this part."""
    return [one.name for one in fields(part)]  # type: ignore[arg-type]  # every part is a dataclass


def given_names(part: OptionPart) -> list[str]:
    """The options that differ from their defaults."""
    values = {one.name: (getattr(part, one.name), one.default) for one in fields(part)}  # type: ignore[arg-type]
    return [name for name, (value, usual) in values.items() if (value or None) != (usual or None)]


def readable(name: str, text: str | None, read: Callable[[str], object]) -> None:
    """Refuse a text that cannot be read, and say of which option it is; None is none."""
    try:
        if text is not None:
            read(text)
    except PlanError as error:
        raise PlanError(f"{option(name, text)}: {error}") from None


def at_least_one(**numbers: int | None) -> None:
    """Refuse what is no whole number from 1 up; None is none."""
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise PlanError(f"{option(name, value)}: a whole number is needed, from 1 up")
        if value < 1:
            raise PlanError(f"{option(name, value)}: at least 1 is needed")

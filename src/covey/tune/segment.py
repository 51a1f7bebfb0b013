"""Train a trial from where it paused to where it pauses next."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from covey import faults
from covey.decoding import WireFormat
from covey.errors import CoveyError
from covey.observe.result import Result
from covey.run.fitting import RUNNERS, heard
from covey.run.options import options
from covey.run.request import request
from covey.task import Task

KEPT, MODEL, OUTCOME = "kept", "model.safetensors", "outcome.json"
NOT_FINITE = "NaN or infinite"  # how errors of messages and codecs say that training has diverged
NEVER = "100000h"  # between two checkpoints: a trial is kept when it pauses


class Segment(msgspec.Struct, kw_only=True, frozen=True):
    """What to train, from the epoch at which the trial was kept until another one."""

    trial: int
    task: str  # with its arguments
    strategy: str
    metric: str
    folder: str
    epochs: int  # of the whole trial, for schedules
    until: int
    workers: int = 1
    engine: str = "simulated"
    seed: int = 0
    resumes: bool = False
    own_settings: bool = False  # it goes on from another trial's checkpoint, with settings of its own
    runs: str = ""  # the folder of its record; none
    fuse: Literal["auto", "always", "never"] = "never"
    begun: int = 0  # epochs that it has done, in these seconds
    seconds: float = 0.0
    curve: list[tuple[int, float | None]] = []


class SegmentOutcome(msgspec.Struct, kw_only=True):
    """How good the trial was after how many epochs, since its beginning; or how it failed."""

    trial: int
    curve: list[tuple[int, float | None]] = []
    samples: int = 0
    seconds: float = 0.0
    failure: str = ""
    fused: float | None = None  # how many times faster training together was, where that was measured


segments: WireFormat[list[Segment]] = WireFormat("segments of trials", list[Segment])
outcomes: WireFormat[SegmentOutcome] = WireFormat("outcome of a trial", SegmentOutcome, "json")


def train_segment(segment: Segment, task: Task | str | None = None) -> SegmentOutcome:
    """Train it; whatever goes wrong is an outcome too. `task` is the task, where this process has it already."""
    try:
        result, epoch = _trained(segment, task if task is not None else segment.task)
    except Exception as error:  # of the user's code, or a strategy that refuses the task
        return SegmentOutcome(trial=segment.trial, failure=failure_of(error))
    rows = [row for row in result.history if int(row["samples"] or 0) > 0]
    if rows and segment.metric not in rows[-1]:
        known = ", ".join(sorted(name for name in rows[-1] if name not in ("seconds", "samples", "bytes")))
        return SegmentOutcome(trial=segment.trial, failure=f"no metric {segment.metric!r}; there are: {known}")
    curve = [(max(1, round(int(row["samples"] or 0) / epoch)), finite(row[segment.metric])) for row in rows]
    curve = list({epochs: (epochs, value) for epochs, value in curve if epochs <= segment.until}.values())
    lost = [row for row in rows if row["loss"] is not None and not math.isfinite(float(row["loss"]))]
    failure = f"diverged: the loss is {rows[-1]['loss']} after {told_epochs(curve[-1][0])}" if lost and curve else ""
    return SegmentOutcome(
        trial=segment.trial, curve=curve, samples=result.samples, seconds=result.seconds, failure=failure
    )


def _trained(segment: Segment, task: Task | str) -> tuple[Result, float]:
    """The result, and the samples in an epoch."""
    place = Path(segment.folder)
    given: dict[str, Any] = {
        "engine": segment.engine, "epochs": segment.epochs, "seed": segment.seed, "save": place / MODEL,
        "checkpoint": place / KEPT, "every": NEVER, "runs": segment.runs or False,
    }  # fmt: skip
    if segment.resumes:
        given["resume"] = place / KEPT
    asked = request(task, segment.strategy, segment.workers, options(given))
    assert asked.budget is not None, "epochs were asked for"
    epoch = asked.budget / segment.epochs
    pause = None if segment.until >= segment.epochs else math.floor(epoch * segment.until)
    asked = replace(asked, name=segment.task, pause=pause, own_settings=segment.own_settings)
    return heard(asked, segment.engine, RUNNERS[segment.engine]), epoch


def failure_of(error: Exception) -> str:
    """What went wrong, in one line; of covey's own errors their words."""
    told = str(error).splitlines()[0] if isinstance(error, CoveyError) and str(error) else faults.words(error)
    if NOT_FINITE in told:
        step = re.search(rf" of step (\d+) with {NOT_FINITE} numbers", told)
        return "diverged: its numbers were not finite" + (f" at step {step[1]}" if step else "")
    return told


def told_epochs(epochs: int) -> str:
    """So many epochs, in words."""
    return f"{epochs} epoch{'' if epochs == 1 else 's'}"


def finite(value: float | None) -> float | None:
    """There is no NaN in JSON."""
    return float(value) if value is not None and math.isfinite(value) else None

"""What does a checkpoint say of its run? `run.json`, sealed with its own SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from covey.checkpoint.files import read_object
from covey.decoding import UNREADABLE, brief
from covey.errors import CheckpointError
from covey.observe.facts import RunOrigin

SCHEMA = "covey.checkpoint/3"
READS = {SCHEMA, "covey.checkpoint/2"}  # which has no blocks, and numbers for names of tensors


class RunRecord(msgspec.Struct, kw_only=True):
    """What `run.json` says: which run this is, how far it came, and what belongs to it."""

    schema: str = SCHEMA
    strategy: str
    workers: int
    servers: int
    seed: int
    samples: int  # of the data set
    batch_size: int
    limits: list[int | None]  # each worker's budget of steps
    ranged: bool = False  # workers came and went: the servers know what is left to do
    skipped: list[int] = []  # steps of each worker that an earlier run with other workers has done
    clock: Literal["", "real", "virtual"] = ""  # which seconds `progress` counts; older checkpoints do not say
    loop: bool = False  # of a script, which has no task's samples and batches
    optimizer: list[dict[str, str]] = []  # of each group, what the task's optimizer is made with, as text
    ended: list[int] = []  # the workers that had done theirs
    progress: dict[str, Any] = {}
    files: dict[str, tuple[int, str]] = {}
    replicas: int = 1  # copies of what each server held; only written where there were several
    origins: list[RunOrigin] = []  # the runs so far, the first one first: that of the checkpoint is the last
    torn: list[str] = []  # newer checkpoints that could not be read; never written


def read_record(place: Path) -> RunRecord:
    try:
        if place.is_symlink():
            raise ValueError("its folder is a link")
        record = read_object(place / "run.json")
        if (schema := record.get("schema")) not in READS:
            raise CheckpointError(
                f"{place} has the format {str(schema)[:40]!r}, and this covey reads {SCHEMA!r}: go on with the covey "
                "that wrote it, or start again"
            )
        if record.pop("seal", "") != sealed(record):
            raise CheckpointError(f"{place / 'run.json'} is torn or was changed: its SHA-256 is not the recorded one")
        run = msgspec.convert(record, RunRecord)
        numbers = run.workers, run.servers, run.samples, run.batch_size, run.replicas
        if not all(0 <= number < 1 << 53 for number in numbers):
            raise ValueError("it contains a number out of range")
        if len(run.limits) != run.workers or not all(limit is None or 0 <= limit < 1 << 53 for limit in run.limits):
            raise ValueError(f"it does not say for each of {run.workers} workers how many steps it may do")
        if run.skipped and (len(run.skipped) != run.workers or not all(0 <= steps < 1 << 53 for steps in run.skipped)):
            raise ValueError(f"it does not say for each of {run.workers} workers how many steps were done before")
        if not all(0 <= rank < run.workers for rank in run.ended):
            raise ValueError(f"it says that workers {run.ended} had ended, and the run has {run.workers}")
        return run
    except (OSError, *UNREADABLE) as error:
        raise CheckpointError(f"{place / 'run.json'} cannot be read: {brief(error)}") from None


def sealed(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def is_whole(place: Path) -> bool:
    """Whether its record can be read; that of a torn one, or of something else with the name of one, cannot."""
    try:
        read_record(place)
    except CheckpointError:
        return False
    return True

"""What is known of a run before it begins; read without torch, which takes seconds to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from covey.decoding import WireFormat
from covey.errors import WireError

FAMILY = "covey.run/"  # the versions of all records
SCHEMA = f"{FAMILY}1"
FACTS, JOURNAL, NOW, RESULT, INSIDE = "facts.json", "journal.jsonl", "now.json", "result.json", "runs"


RecordKind = Literal["run", "comparison", "study"]


class RunFacts(msgspec.Struct, kw_only=True):
    """What is known before the run."""

    schema: str = "covey.result/1"
    task: str
    strategy: str
    taxonomy: dict[str, str]
    engine: str
    workers: int
    servers: int = 0
    threads: int = 1
    seed: int = 0
    command: str = ""
    settings: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}


class RunOrigin(msgspec.Struct, kw_only=True, frozen=True):
    """A run, for the lineage of what came of it; checkpoints hand it on to the runs that resume them."""

    key: str  # that no other run has
    record: str = ""  # the name of its record, if it has one
    began: str = ""  # UTC
    command: str = ""
    strategy: str = ""
    engine: str = ""
    workers: int = 0
    seed: int = 0


class RecordFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known before the run: what was asked, of which source, where."""

    schema: str
    id: str
    began: str  # UTC
    kind: RecordKind = "run"
    run: RunFacts
    source: str = ""  # sha256 of the task's file
    commit: str = ""  # that git has checked out where the task lies
    cluster: str = ""  # that was simulated


class _RecordVersion(msgspec.Struct):
    """All that facts of every version have."""

    schema: str


_facts: WireFormat[RecordFacts] = WireFormat("record of a run", RecordFacts, "json", most=1 << 24)
_versions: WireFormat[_RecordVersion] = WireFormat("record of a run", _RecordVersion, "json", most=1 << 24)


def is_record(folder: Path) -> bool:
    """Whether some version of covey has made this folder."""
    try:
        return _versions.read_file(folder / FACTS).schema.startswith(FAMILY)
    except (WireError, OSError):
        return False


def read_facts(record: Path) -> RecordFacts:
    """The facts of the record in this folder."""
    found = _facts.read_file(record / FACTS)
    if found.schema != SCHEMA:
        raise WireError(f"{record} is a record of another version of covey ({found.schema}, not {SCHEMA})")
    return found


class PrivacyFacts(msgspec.Struct, kw_only=True):
    """What was hidden from whom, and what was spent: null where there was no noise."""

    secure_sums: bool  # the service learned sums of reports only
    randomness: str  # where keys, masks, noise and draws came from
    smallest_sum: int | None = None  # the clients of the smallest sum that was opened
    epsilon: float | None = None  # spent
    delta: float | None = None
    noise: float | None = None  # its standard deviation, in multiples of `clip`
    clip: float | None = None
    rate: float | None = None  # the chance of a client, or of a sample, to take part in a round, or a step
    rounds: int | None = None  # that were spent
    limit: float | None = None  # what might have been spent

"""What comes of a comparison: how each of its runs went."""

from __future__ import annotations

import msgspec

from covey.observe.recording import Recording
from covey.observe.result import Result
from covey.target import Better

SCHEMA = "covey.comparison/1"


class ComparedRun(msgspec.Struct, kw_only=True):
    """How one run of a comparison went: a result, or the reason why there is none."""

    spec: str
    rate: float = 1.0
    repeat: int = 0
    result: Result | None = None
    failure: str = ""
    recording: Recording | None = None  # a few steps of the first repetition


class Comparison(msgspec.Struct, kw_only=True):
    """A comparison as it is kept, shown and drawn."""

    schema: str = SCHEMA
    task: str
    workers: int
    engine: str
    until: str | None
    better: dict[str, Better] = {}  # what the task declares of its metrics
    command: str = ""
    prices: dict[int, float] = {}  # of a worker, money per hour
    watts: dict[int, float] = {}
    outcomes: list[ComparedRun] = []
    interrupted: bool = False

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

"""What comes of a comparison: how each of its runs went."""

from __future__ import annotations

import msgspec

from covey.compare.paired import Ratio
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
    refused: bool = False  # before it began: with another seed it would be as well
    recording: Recording | None = None  # a few steps of the first repetition

    @property
    def reached(self) -> bool:
        return self.result is not None and self.result.reached is not None

    @property
    def untrained(self) -> bool:
        """Whether the initial weights met the target already."""
        return self.result is not None and self.result.reached is not None and not self.result.reached.samples

    @property
    def disturbed(self) -> bool | None:
        """Whether other programs took cores from this run; None where that is not known."""
        load = self.result.contention if self.result else None
        return load.disturbed if load else None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a strategy stands, at the rate that is best for it."""

    spec: str
    rate: float
    runs: int
    reached: int  # runs that reached the target
    seconds: float | None  # to the target, the median over all runs; null where half of them missed it
    ratio: Ratio | None  # its time in that of the leader; null where no run counts
    disturbed: int  # runs from which other programs took cores
    failure: str = ""


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
    verdict: str = ""
    winner: str | None = None  # a SPEC; null for a tie, or no verdict
    tied: list[str] = []
    strategies: list[Standing] = []
    outcomes: list[ComparedRun] = []
    interrupted: bool = False

    @property
    def busy(self) -> bool:
        """Whether other programs disturbed most runs."""
        return 2 * sum(bool(run.disturbed) for run in self.outcomes) > len(self.outcomes)

    def specs(self) -> list[str]:
        """The strategies, in the order in which they were asked for."""
        return list(dict.fromkeys(run.spec for run in self.outcomes))

    def failed(self, spec: str, rate: float | None = None) -> str:
        """How often a strategy failed, at this rate or at any: `failed in 1 of 4 runs`; empty where it never did."""
        mine = [run for run in self.outcomes if run.spec == spec and rate in (None, run.rate)]
        broken = sum(run.result is None for run in mine)
        return f"failed in {broken} of {len(mine)} runs" if 0 < broken < len(mine) else "failed" if broken else ""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

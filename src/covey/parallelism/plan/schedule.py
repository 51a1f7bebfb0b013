"""Which timetable, with what settings; what it keeps in memory, by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.errors import PlanError

ABOUT: Mapping[str, str] = {
    "plain": "one batch at a time through all stages",
    "gpipe": "all forwards, then all backwards, one update (Huang et al. 2018)",
    "1f1b": "forwards and backwards in turn, one update: GPipe's gradient with less memory (Narayanan et al. 2019)",
    "interleaved": "1f1b with several chunks of the model on each stage (Narayanan et al. 2021)",
    "pipedream": "no flush: an update after every batch, weights kept for those in flight (Narayanan et al. 2019)",
    "2bw": "no flush: an update after m micro-batches, two versions of the weights (Narayanan et al. 2021)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A timetable by its name. Equal settings give equal timetables."""

    name: str = "1f1b"
    microbatches: int = 8  # a batch is cut into so many; plain and pipedream take batches whole
    chunks: int = 1  # of the model on each stage, for interleaved
    vertical: bool = False  # pipedream: all stages use the version that the first stage used
    recompute: bool = False  # keep only what a stage takes, and run its forward again before backward

    def __post_init__(self) -> None:
        if self.name not in ABOUT:
            raise PlanError(f"there is no timetable {self.name!r}; there are {', '.join(ABOUT)}")
        if self.microbatches < 1 or self.chunks < 1:
            raise PlanError(
                f"a timetable needs at least 1 micro-batch and 1 chunk, not {self.microbatches}, {self.chunks}"
            )
        if self.chunks > 1 and self.name != "interleaved":
            raise PlanError(f"{self.name} has one chunk on each stage; chunks={self.chunks} goes with interleaved")
        if self.vertical and self.name != "pipedream":
            raise PlanError(f"{self.name} has no versions to keep in step; vertical sync goes with pipedream")

    @property
    def flushes(self) -> bool:
        """Whether everything in flight ends before an update, so that gradients are those of the uncut model."""
        return self.name not in ("pipedream", "2bw")

    @property
    def divides(self) -> bool:
        """Whether a batch is cut into micro-batches."""
        return self.name not in ("plain", "pipedream")

    def check(self, machines: Sequence[int]) -> None:
        """Refuse what cannot run on so many machines for each stage."""
        stages, alone = len(machines), all(count == 1 for count in machines)
        if not alone and (self.vertical or self.name in ("plain", "interleaved")):
            raise PlanError(
                f"{self.name}{' with vertical sync' * self.vertical} has one machine for each stage; use 1f1b"
            )
        if self.name == "interleaved" and self.microbatches % stages:
            least = -(-self.microbatches // stages) * stages
            raise PlanError(
                f"interleaved: micro-batches go around in groups of {stages}, the stages; use {least}, not "
                f"{self.microbatches}"
            )
        if self.name == "2bw" and self.microbatches < sum(machines):
            raise PlanError(
                f"2bw: with {self.microbatches} micro-batches for an update and {sum(machines)} machines a third "
                f"version of the weights would be needed; use at least {sum(machines)} micro-batches"
            )

    def in_flight(self, left: int, here: int = 1) -> int:
        """The most batches that a machine has begun and not ended: `left` machines from its stage on, `here` of it."""
        share = -(-self.microbatches // here)
        most = -(-left // here)
        return {"plain": 1, "gpipe": share, "pipedream": most, "2bw": most}.get(self.name, min(most, share))

    def versions(self, left: int, here: int = 1, machines: int | None = None) -> int:
        """The most versions of its weights that a machine has at once, of `machines` in all."""
        if self.name == "pipedream":
            return machines or left if self.vertical else self.in_flight(left, here)
        return 2 if self.name == "2bw" else 1

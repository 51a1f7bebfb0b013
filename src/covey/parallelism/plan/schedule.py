"""Which timetable, with what settings; what it keeps in memory, by formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from covey.errors import PlanError

MICROBATCHES = 4  # of a batch, by default


@dataclass(frozen=True, kw_only=True, slots=True)
class TimetableTraits:
    """What distinguishes a timetable from 1f1b. Nothing else asks which one it is."""

    about: str
    overlaps: bool = True  # several batches are under way at once
    divides: bool = True  # a batch is cut into micro-batches
    flushes: bool = True  # everything in flight ends before an update: gradients are those of the uncut model
    replicates: bool = True  # a stage may have several machines
    lean: bool = True  # keeps no more batches in flight than 1f1b
    in_flight: Callable[[int, int], int] = min  # the most batches, of (machines from a stage on, batches of a machine)
    versions: int | None = 1  # of the weights at once; None: one for each batch in flight
    chunks: int = 1  # of the model on each stage, by default; more only where it is more than 1
    fills: bool = False  # needs at least a micro-batch for each machine

    def microbatches(self, stages: int) -> int:
        """How many, by default."""
        usual = max(MICROBATCHES, stages if self.fills else 1) if self.divides else 1
        return -(-usual // stages) * stages if self.chunks > 1 else usual


TIMETABLES: Mapping[str, TimetableTraits] = {
    "plain": TimetableTraits(
        about="one batch at a time through all stages",
        overlaps=False, divides=False, replicates=False, in_flight=lambda most, share: 1,
    ),
    "gpipe": TimetableTraits(
        about="all forwards, then all backwards, one update (Huang et al. 2018)",
        lean=False, in_flight=lambda most, share: share,
    ),
    "1f1b": TimetableTraits(
        about="forwards and backwards in turn, one update: GPipe's gradient with less memory (Narayanan et al. 2019)",
    ),
    "interleaved": TimetableTraits(
        about="1f1b with several chunks of the model on each stage (Narayanan et al. 2021)",
        replicates=False, chunks=2, fills=True,
    ),
    "pipedream": TimetableTraits(
        about="no flush: an update after every batch, weights kept for those in flight (Narayanan et al. 2019)",
        divides=False, flushes=False, lean=False, in_flight=lambda most, share: most, versions=None,
    ),
    "2bw": TimetableTraits(
        about="no flush: an update after m micro-batches, two versions of the weights (Narayanan et al. 2021)",
        flushes=False, lean=False, in_flight=lambda most, share: most, versions=2, fills=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A timetable by its name. Equal settings give equal timetables."""

    name: str = "1f1b"
    microbatches: int = 8  # a batch is cut into this many; plain and pipedream take batches whole
    chunks: int = 1  # of the model on each stage, for interleaved
    vertical: bool = False  # pipedream: all stages use the version that the first stage used
    recompute: bool = False  # keep only what a stage takes, and run its forward again before backward

    def __post_init__(self) -> None:
        if self.name not in TIMETABLES:
            raise PlanError(f"there is no timetable {self.name!r}; there are {', '.join(TIMETABLES)}")
        if self.microbatches < 1 or self.chunks < 1:
            raise PlanError(
                f"a timetable needs at least 1 micro-batch and 1 chunk, not {self.microbatches}, {self.chunks}"
            )
        if self.chunks > 1 and self.traits.chunks == 1:
            raise PlanError(f"{self.name} has one chunk on each stage; chunks={self.chunks} goes with interleaved")
        if self.vertical and self.traits.versions is not None:
            raise PlanError(f"{self.name} has no versions to keep in step; vertical sync goes with pipedream")

    @property
    def traits(self) -> TimetableTraits:
        return TIMETABLES[self.name]

    @property
    def flushes(self) -> bool:
        """Whether everything in flight ends before an update, so that gradients are those of the uncut model."""
        return self.traits.flushes

    @property
    def divides(self) -> bool:
        """Whether a batch is cut into micro-batches."""
        return self.traits.divides

    def check(self, machines: Sequence[int]) -> None:
        """Refuse what cannot run on this many machines for each stage."""
        stages, alone = len(machines), all(count == 1 for count in machines)
        if not alone and (self.vertical or not self.traits.replicates):
            raise PlanError(
                f"{self.name}{' with vertical sync' * self.vertical} has one machine for each stage; use 1f1b"
            )
        if self.traits.chunks > 1 and self.microbatches % stages:
            least = -(-self.microbatches // stages) * stages
            raise PlanError(
                f"{self.name}: micro-batches go around in groups of {stages}, the stages; use {least}, not "
                f"{self.microbatches}"
            )
        if self.traits.versions == 2 and self.microbatches < sum(machines):
            raise PlanError(
                f"{self.name}: with {self.microbatches} micro-batches for an update and {sum(machines)} machines a "
                f"third version of the weights would be needed; use at least {sum(machines)} micro-batches"
            )

    def in_flight(self, left: int, here: int = 1) -> int:
        """The most batches that a machine has begun and not ended: `left` machines from its stage on, `here` of it."""
        return self.traits.in_flight(-(-left // here), -(-self.microbatches // here))

    def versions(self, left: int, here: int = 1, machines: int | None = None) -> int:
        """The most versions of its weights that a machine has at once, of `machines` in all."""
        if self.traits.versions is not None:
            return self.traits.versions
        return machines or left if self.vertical else self.in_flight(left, here)

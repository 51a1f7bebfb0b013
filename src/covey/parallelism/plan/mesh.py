"""A mesh of workers: along one axis replicas, which a strategy keeps together; along the other the stages of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from covey.errors import PlanError
from covey.parallelism.plan.schedule import Schedule

BEST, EQUAL = "best", "equal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Replicas of the model, each cut into stages; each stage is a worker's."""

    replica: int | None = None
    stage: int | None = None
    timetable: Literal["plain", "gpipe", "1f1b", "interleaved", "pipedream", "2bw"] = "1f1b"
    microbatches: int | None = None  # into which a batch is cut
    chunks: int | None = None  # of the model on each worker, for interleaved
    vertical: bool = False  # pipedream: all stages use the version that the first stage used
    recompute: bool = False  # run forwards again instead of keeping what they made
    cut: int | str = BEST  # or equal; or after which layers, by number or name: 3:7, features.2:classifier.0
    tied: Literal["refuse", "sum"] = "refuse"  # weights that lie in two stages
    memory: str = ""  # that a worker has, such as 2GB
    load: float | str = ""  # each part's share of the computing, in percent; measured if omitted

    def fitted(self, workers: int) -> Mesh:
        """With all its sizes said, for this many workers; refused where they do not fit."""
        replica, stage = self.replica, self.stage
        if any(size is not None and size < 1 for size in (replica, stage, self.microbatches, self.chunks)):
            raise PlanError("a mesh has at least 1 replica, 1 stage, 1 micro-batch and 1 chunk")
        if stage is None:
            if replica is None:
                raise PlanError("say how the model is cut: with mesh(stage=2), or mesh(replica=2, stage=2)")
            stage = max(1, workers // replica)
        replica = max(1, workers // stage) if replica is None else replica
        if replica * stage != workers:
            shown = f"mesh(replica={replica}, stage={stage})" if self.replica else f"mesh(stage={stage})"
            need = f"{replica * stage} workers" if self.replica else f"a multiple of {stage} workers"
            raise PlanError(f"{shown} needs {need}, not {workers}")
        traits = Schedule(name=self.timetable).traits
        chunks, microbatches = self.chunks or traits.chunks, self.microbatches or traits.microbatches(stage)
        if not traits.divides and microbatches != 1:
            raise PlanError(f"{self.timetable} takes batches whole: omit microbatches, or use gpipe or 1f1b")
        fitted = replace(self, replica=replica, stage=stage, chunks=chunks, microbatches=microbatches)
        fitted.schedule.check((1,) * stage)
        if chunks > 1 and stage == 1:
            raise PlanError("interleaved goes around several stages: use mesh(stage=2), or more")
        if self.tied == "sum" and not fitted.schedule.flushes:
            raise PlanError(
                f"{self.timetable} keeps different versions of weights on its stages, so tied weights are "
                "impossible: use 1f1b or gpipe"
            )
        return fitted

    @property
    def stages(self) -> int:
        assert self.stage is not None
        return self.stage

    @property
    def parts(self) -> int:
        """Runs of layers, of which each stage has one or, interleaved, several."""
        return self.stages * self.schedule.chunks

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            name=self.timetable, microbatches=self.microbatches or 1, chunks=self.chunks or 1,
            vertical=self.vertical, recompute=self.recompute,
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether it says exactly where the model is cut."""
        return bool(self.load) and (self.parts == 1 or all(part.isdigit() for part in self.borders))

    @property
    def borders(self) -> list[str]:
        """After which layers, as they were written."""
        return [part for part in str(self.cut).split(":") if part]

    @property
    def after(self) -> list[int]:
        return [int(part) for part in self.borders] if self.parts > 1 else []

    @property
    def loads(self) -> list[float]:
        """Each part's share of the computing of a batch."""
        try:
            percents = [float(part) for part in str(self.load).split(":")]
        except ValueError:
            raise PlanError(f"load={self.load}: shares are numbers, with colons between them, such as 60:40") from None
        return [percent / (sum(percents) or 1.0) for percent in percents]

    def __str__(self) -> str:
        usual = Mesh()
        said = {name: getattr(self, name) for name in self.__slots__ if name != "chunks" or self.chunks != 1}
        kept = {name: value for name, value in said.items() if value != getattr(usual, name)}
        return "mesh(" + ", ".join(f"{name}={_written(value)}" for name, value in kept.items()) + ")"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

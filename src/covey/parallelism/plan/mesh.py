"""A mesh of workers: along one axis replicas, which a strategy keeps together; along others the members of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from covey.errors import PlanError
from covey.parallelism.plan.schedule import Schedule

BEST, EQUAL = "best", "equal"
AXES = ("stage", "shard", "expert", "tensor")
"""Inside a replica, the outermost first."""
BARE = re.compile(r"[A-Za-z0-9_.:/@%*+-]+")  # what the text of a strategy has without quotes


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Replicas of the model, and how each is divided: among as many workers as the sizes of its axes multiply to."""

    replica: int | None = None
    stage: int | None = None
    shard: int | None = None  # workers that divide the rows of every parameter, each with its own batches
    expert: int | None = None  # workers that divide the experts of covey.nn.Experts, each with its own batches
    tensor: int | None = None  # workers that divide layers, and compute on the same batch
    split: str = ""  # best (default), none, or which layers by what: "blocks.*.up:column blocks.*.down:row"
    zero: int | None = None  # what they divide: 1 the optimizer's state, 2 gradients too, 3 (default) parameters too
    timetable: Literal["plain", "gpipe", "1f1b", "interleaved", "pipedream", "2bw"] = "1f1b"
    microbatches: int | None = None  # into which a batch is cut
    chunks: int | None = None  # of the model on each worker, for interleaved
    vertical: bool = False  # pipedream: all stages use the version that the first stage used
    recompute: bool = False  # run forwards again instead of keeping what they made
    cut: int | str = BEST  # or equal; or after which layers, by number or name: 3:7, features.2:classifier.0
    tied: Literal["refuse", "sum"] = "refuse"  # weights that lie in two stages
    memory: str = ""  # that a worker has, such as 2GB
    load: float | str = ""  # each part's share of the computing, in percent; measured if omitted
    plan: str = ""  # a file of `covey search --save`, whose mesh is taken

    def fitted(self, workers: int) -> Mesh:
        """With all its sizes said, for this many workers; refused where they do not fit."""
        for name in ("replica", *AXES, "microbatches", "chunks"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise PlanError(f"mesh({name}={size}): at least 1 is needed")
        sizes = self._sizes(workers)
        replica = max(1, workers // prod(sizes.values())) if self.replica is None else self.replica
        if replica * prod(sizes.values()) != workers:
            raise self._misfit({"replica": replica, **sizes}, workers)
        fitted = replace(
            self, replica=replica, stage=sizes["stage"], shard=sizes["shard"] if self.sharded else None,
            tensor=sizes["tensor"] if self.tensor or self.split else None,
            split=self.split or (BEST if self.tensor else ""),
        )  # fmt: skip
        if not fitted.cut_in_layers:
            self._check_no_pipeline()
        return fitted._with_zero()._with_schedule() if fitted.cut_in_layers else fitted._with_zero()

    def _sizes(self, workers: int) -> dict[str, int]:
        """Of the axes inside a replica; the one that is asked for without a size has the workers that are left."""
        sizes = {name: getattr(self, name) or 1 for name in AXES}
        left = [name for name, said in (("shard", self.zero is not None), ("tensor", self.split)) if said]
        left = [name for name in left if getattr(self, name) is None]
        if not (left or self.stage or self.sharded or self.expert or self.tensor):
            if self.replica is None:
                raise PlanError(
                    "say how the model is cut: with mesh(stage=2), mesh(shard=2), mesh(tensor=2), or "
                    "mesh(replica=2, stage=2)"
                )
            left = ["stage"]
        if len(left) > 1:
            raise PlanError(f"mesh(zero={self.zero}, split={self.split}): say the sizes, as mesh(shard=2, tensor=2)")
        for name in left:
            sizes[name] = max(1, workers // (prod(sizes.values()) * (self.replica or 1)))
        return sizes

    def _misfit(self, sizes: Mapping[str, int], workers: int) -> PlanError:
        replica = sizes["replica"]
        if self.zero is not None and self.shard is None:
            need = prod(sizes.values()) // sizes["shard"]
            return PlanError(
                f"mesh(replica={replica}, zero={self.zero}) needs a multiple of {need} workers, not {workers}"
            )
        named = {**sizes, "replica": replica if self.replica else 1}
        shown = ", ".join(f"{name}={size}" for name, size in named.items() if size > 1 or getattr(self, name))
        inside = prod(sizes.values()) // replica
        many = f"{replica * inside} workers" if self.replica else f"a multiple of {inside} workers"
        return PlanError(f"mesh({shown}) needs {many}, not {workers}")

    def _check_no_pipeline(self) -> None:
        sizes = {name: getattr(self, name) for name in ("replica", *AXES)}
        if self == Mesh(**sizes, split=self.split, zero=self.zero):
            return
        if self.tensor is not None or self.split:
            raise PlanError("divided layers have no timetable, cut, micro-batches or memory to say: omit them")
        what = "experts" if self.expert is not None else "shards"
        raise PlanError(
            f"{what} have no timetable, cut, micro-batches or memory to say: omit them; Task(accumulate=4) computes "
            "a step in four batches"
        )

    def _with_zero(self) -> Mesh:
        """Where members have more than rows, what is divided is ready before a step, as with zero=1."""
        if self.zero is not None and self.zero not in (1, 2, 3):
            raise PlanError(f"zero={self.zero}: 1, 2 or 3")
        if not self.sharded:
            return self
        other = "stage" if self.stages > 1 else "expert" if self.expert is not None else ""
        if other and (self.zero or 1) > 1:
            raise PlanError(
                f"zero={self.zero} brings layers together one by one, or hands them out so, and with {other} and shard "
                f"in one mesh all are ready before a step: use zero=1, or shard without {other}"
            )
        return replace(self, zero=1 if other else self.zero or 3)

    def _with_schedule(self) -> Mesh:
        traits = Schedule(name=self.timetable).traits
        chunks, microbatches = self.chunks or traits.chunks, self.microbatches or traits.microbatches(self.stages)
        if not traits.divides and microbatches != 1:
            raise PlanError(f"{self.timetable} takes batches whole: omit microbatches, or use gpipe or 1f1b")
        fitted = replace(self, chunks=chunks, microbatches=microbatches)
        fitted.schedule.check((1,) * self.stages)
        if chunks > 1 and self.stage == 1:
            raise PlanError("interleaved goes around several stages: use mesh(stage=2), or more")
        if not fitted.schedule.flushes and (self.tied == "sum" or fitted.batches * fitted.tensors > 1):
            what = "tied weights are" if self.tied == "sum" else "stages that divide their weights are"
            raise PlanError(
                f"{self.timetable} keeps different versions of weights on its stages, so {what} impossible: use 1f1b "
                "or gpipe"
            )
        return fitted

    def place(self, member: int) -> tuple[int, ...]:
        """Where a member of a replica stands along each of the `AXES`."""
        found = []
        for size in (self.tensors, self.experts, self.shards, self.stages):
            member, index = divmod(member, size)
            found.append(index)
        return tuple(reversed(found))

    def share(self, worker: int) -> int:
        """Which share of the data a worker has, of those of all replicas."""
        replica, member = divmod(worker, self.members)
        _, shard, expert, _ = self.place(member)
        return (replica * self.shards + shard) * self.experts + expert

    def first_with(self, share: int) -> int:
        """The first worker that has a share of the data."""
        replica, own = divmod(share, self.batches)
        return replica * self.members + own * self.tensors

    @property
    def stages(self) -> int:
        assert self.stage is not None
        return self.stage

    @property
    def sharded(self) -> bool:
        """Whether it divides rows, be it among one worker only."""
        return self.shard is not None or self.zero is not None

    @property
    def shards(self) -> int:
        return self.shard or 1

    @property
    def experts(self) -> int:
        """Members among which experts are divided."""
        return self.expert or 1

    @property
    def cut_in_layers(self) -> bool:
        """Whether stages have layers of their own, be it one stage with all of them."""
        return self.stages > 1 or not (self.sharded or self.expert is not None or self.tensor is not None)

    @property
    def batches(self) -> int:
        """Workers of a replica that have batches of their own."""
        return self.shards * self.experts

    @property
    def tensors(self) -> int:
        """Members among which layers are divided."""
        return self.tensor or 1

    @property
    def members(self) -> int:
        """Workers of a replica."""
        return self.stages * self.batches * self.tensors

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
    def flushes(self) -> bool:
        """Whether a step ends before the next one begins."""
        return self.schedule.flushes

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
    if isinstance(value, str) and not BARE.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value).lower() if isinstance(value, bool) else str(value)

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
BARE = re.compile(r"[A-Za-z0-9_.:/@%*+-]+")  # what the text of a strategy has without quotes


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Replicas of the model, each cut into stages or divided into shards or experts; each of those is a worker's."""

    replica: int | None = None
    stage: int | None = None
    shard: int | None = None  # workers that divide the rows of every parameter, each with its own batches
    expert: int | None = None  # workers that divide the experts of covey.nn.Experts, each with its own batches
    tensor: int | None = None  # workers that divide layers, and compute on the same batch
    split: str = ""  # best (usual), none, or which layers by what: "blocks.*.up:column blocks.*.down:row"
    zero: int | None = None  # what they divide: 1 the optimizer's state, 2 gradients too, 3 (usual) parameters too
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
        self._check_sizes()
        if self.tensor is not None or self.split:
            return self._with_tensor(workers)
        return self._in_stages(workers) if self.expert is None else self._for_experts(self.expert, workers)

    def _check_sizes(self) -> None:
        for name in ("replica", "stage", "shard", "expert", "tensor", "microbatches", "chunks"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise PlanError(f"mesh({name}={size}): at least 1 is needed")

    def _in_stages(self, workers: int) -> Mesh:
        """With stages, or with shards."""
        replica, stage, shard = self.replica, self.stage, self.shard or 1
        if self.zero is not None and self.shard is None:
            shard = max(1, workers // ((replica or 1) * (stage or 1)))
        if stage is None:
            if replica is None and not self.sharded:
                raise PlanError(
                    "say how the model is cut: with mesh(stage=2), mesh(shard=2), mesh(tensor=2), or "
                    "mesh(replica=2, stage=2)"
                )
            stage = 1 if self.sharded or replica is None else max(1, workers // replica)
        replica = max(1, workers // (stage * shard)) if replica is None else replica
        if replica * stage * shard != workers:
            raise self._misfit({"replica": replica, "stage": stage, "shard": shard}, workers)
        if self.sharded:
            return self._sharded(replica, stage, shard)
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

    def _misfit(self, sizes: Mapping[str, int], workers: int) -> PlanError:
        replica = sizes["replica"]
        if self.zero is not None and self.shard is None:
            return PlanError(
                f"mesh(replica={replica}, zero={self.zero}) needs a multiple of {replica} workers, not {workers}"
            )
        named = {**sizes, "replica": replica if self.replica else 1}
        shown = ", ".join(f"{name}={size}" for name, size in named.items() if size > 1 or getattr(self, name))
        inside = prod(sizes.values()) // replica
        need = f"{replica * inside} workers" if self.replica else f"a multiple of {inside} workers"
        return PlanError(f"mesh({shown}) needs {need}, not {workers}")

    def _sharded(self, replica: int, stage: int, shard: int) -> Mesh:
        if self.zero is not None and self.zero not in (1, 2, 3):
            raise PlanError(f"zero={self.zero}: 1, 2 or 3")
        if stage > 1:
            raise PlanError("a model is cut into stages or divided into shards, not both: use stage or shard")
        usual = Mesh(replica=self.replica, stage=self.stage, shard=self.shard, zero=self.zero)
        if replace(self, stage=None) != replace(usual, stage=None):
            raise PlanError(
                "shards have no timetable, cut, micro-batches or memory to say: omit them; Task(accumulate=4) computes "
                "a step in four batches"
            )
        return replace(self, replica=replica, stage=stage, shard=shard, zero=self.zero or 3)

    def _for_experts(self, expert: int, workers: int) -> Mesh:
        replica = max(1, workers // expert) if self.replica is None else self.replica
        if self.sharded or (self.stage or 1) > 1:
            other = "shard" if self.sharded else "stage"
            raise PlanError(
                f"expert={expert} and {other} in one mesh: members with experts have all other weights whole; use "
                f"mesh(replica=2, expert={expert}), or {other} without expert"
            )
        if replace(self, stage=None) != Mesh(replica=self.replica, expert=expert):
            raise PlanError(
                "experts have no timetable, cut, micro-batches or memory to say: omit them; Task(accumulate=4) "
                "computes a step in four batches"
            )
        if replica * expert != workers:
            raise self._misfit({"replica": replica, "expert": expert}, workers)
        return replace(self, replica=replica, stage=1)

    def _with_tensor(self, workers: int) -> Mesh:
        """With layers divided, which have no timetable."""
        tensor = self.tensor or max(1, workers // (self.replica or 1))
        if (self.stage or 1) > 1 or self.sharded or self.expert is not None:
            other = "shard" if self.sharded else "stage" if self.expert is None else "expert"
            raise PlanError(
                f"a mesh divides layers (tensor, split) or has {other}=..., not both: replicas go with either, as "
                "mesh(replica=2, tensor=2)"
            )
        if replace(self, stage=None) != Mesh(replica=self.replica, tensor=self.tensor, split=self.split):
            raise PlanError("divided layers have no timetable, cut, micro-batches or memory to say: omit them")
        replica = self.replica or max(1, workers // tensor)
        if replica * tensor != workers:
            raise self._misfit({"replica": replica, "tensor": tensor}, workers)
        return replace(self, replica=replica, stage=1, tensor=tensor, split=self.split or BEST)

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
        return not self.sharded and self.expert is None and self.tensor is None

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

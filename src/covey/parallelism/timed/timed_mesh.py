"""Runs of cut models that are only timed: one replica is seen at work for a step or two, and all ask for the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import nan

import torch

from covey.data.group_batches import GroupBatches
from covey.data.shards import Shards
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.model.timed.stand_in import Shapes, ShapesOnly, in_one
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.timed.recorded_step import RecordedStep
from covey.parallelism.timed.step_recorder import Drive, recorded_steps
from covey.parallelism.timed.timed_part import TimedPart
from covey.strategy import Role


class TimedMesh:
    """Makes the replicas of a mesh's roles, which have shapes and times but no numbers.

    `build` makes a role's real part of the model. Where the timetable flushes, a step depends only on the sizes of the
    batches, and on whether it is the first one, in which members do not know yet how often they will speak. Where it
    does not, the steps in the middle of a run are alike.
    """

    def __init__(
        self, mesh: Mesh, roles: Sequence[Role], deal: Shards, limits: Sequence[int], *,
        build: Callable[[Role], Replica], drive: Drive, clips: bool, plain: bool,
    ) -> None:  # fmt: skip
        """`limits` are the steps of each replica; whether gradients are clipped, and whether only sizes count."""
        self.mesh, self.batches, self.limits = mesh, GroupBatches(deal, mesh.batches), limits
        self._steps: list[dict[Hashable, RecordedStep]] = [{} for _ in range(mesh.members)]
        self._shapes: list[Shapes] = []
        self._buffers: list[Shapes] = []
        trained = {role.address.rank: role for role in roles if role.trains}
        for replica, steps in self._wanted().items():
            members = [trained[replica * mesh.members + member] for member in range(mesh.members)]
            parts = [part for role in members if isinstance(part := build(role), CutReplica)]
            shortest = [min(limit, self._most) for limit in limits]
            found = recorded_steps(mesh, members, parts, steps, shortest, clips, drive)
            for known, new in zip(self._steps, found, strict=True):
                known.update({self._key(replica, step, shortest[replica]): one for step, one in new.items()})
            if not self._shapes:
                self._take_shapes(parts, plain)

    def _take_shapes(self, parts: Sequence[CutReplica], plain: bool) -> None:
        for part in parts:
            shapes = {name: torch.empty_like(one, device="meta") for name, one in part.layout.parameters.items()}
            buffers = {f"buffer{n}": torch.empty_like(one, device="meta") for n, one in enumerate(part.buffers.parts)}
            self._shapes.append(in_one(shapes) if plain else shapes)
            self._buffers.append(buffers)

    @property
    def _most(self) -> int:
        """Steps that are enough to see a pipeline begin, go on and end."""
        return 2 * self.mesh.stages + 3

    def _wanted(self) -> dict[int, list[int]]:
        """Which steps of which replicas are to be seen; each replica's first one comes before others of it."""
        found: dict[int, set[int]] = {}
        seen: set[Hashable] = set()
        for replica, limit in enumerate(self.limits):
            each, most = self.batches.steps(replica), min(limit, self._most)
            ends = [0, 1, each - 2, each - 1] if self.mesh.flushes else list(range(most))
            for step in ends:
                if 0 <= step < limit and (key := self._key(replica, step, most)) not in seen:
                    seen.add(key)
                    found.setdefault(replica, {0}).add(step)
        return {replica: sorted(steps) for replica, steps in found.items()}

    def _key(self, replica: int, step: int, most: int) -> Hashable:
        """What is alike in all steps that have the same, of a replica that is seen for `most` steps."""
        if not self.mesh.flushes:
            return most, step
        return tuple(self.batches.batch(rank, step) for rank in self.batches.ranks(replica)), step == 0

    def _step(self, member: int, replica: int, step: int) -> RecordedStep:
        """What a member does in a step; one in the middle of a pipeline that goes on is as any other there."""
        limit, head = self.limits[replica], self.mesh.stages + 1
        most = min(limit, self._most)
        if not self.mesh.flushes and limit > most and step > head:
            step = max(head, most - (limit - step))
        return self._steps[member][self._key(replica, step, most)]

    def part(self, role: Role) -> TimedPart:
        """A role's part of its replica."""
        member = role.address.rank % self.mesh.members
        module = ShapesOnly(self._shapes[member])
        for name, buffer in self._buffers[member].items():
            module.register_buffer(name, torch.empty_like(buffer))
        source = BatchSource(
            samples=self.batches.samples, steps=self.batches.steps,
            own=(lambda step: Batch(nan, 1)) if role.trains else None,
        )  # fmt: skip
        return TimedPart(module, source, partial(self._step, member) if role.trains else None)

"""The checkpoint that a run continues from, of the same run or of one with another cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from torch.optim import Optimizer

from covey.checkpoint import RoleState, RunRecord
from covey.message import Address
from covey.model.replica import Replica
from covey.parallelism.plan.mesh import Mesh
from covey.spec import bind, parse
from covey.strategy import Role


def mesh_of(strategy: str) -> Mesh:
    """How a SPEC that was written by covey cuts its model; one that does not has a single stage."""
    call = parse(strategy).mesh
    if call is None:
        return Mesh(replica=1, stage=1, timetable="plain", microbatches=1, chunks=1)
    written = bind(call, Mesh, "mesh", strategy)
    return written.fitted((written.replica or 1) * (written.stage or 1) * written.batches * written.tensors)


def same_cut(one: str, other: str) -> bool:
    """Whether two SPECs cut their model alike; what its parts are said to cost, and when shards meet, do not matter."""
    return replace(mesh_of(one), load="", zero=None) == replace(mesh_of(other), load="", zero=None)


def uncut(run: RunRecord) -> RunRecord:
    """The run as it would be with whole models, in which two with different cuts are the same."""
    members = mesh_of(run.strategy).members
    return msgspec.structs.replace(
        run, strategy=str(replace(parse(run.strategy), mesh=None)), workers=run.workers // members,
        servers=run.servers // members, limits=run.limits[::members],
    )  # fmt: skip


def settings_of(optimizer: Optimizer) -> list[dict[str, str]]:
    """What each group of an optimizer is made with, as text: the learning rate, the momentum and so on."""
    return [
        {name: repr(value) for name, value in group.items() if isinstance(value, int | float | str | tuple | None)}
        for group in optimizer.param_groups
    ]  # fmt: skip


def changed_settings(run: RunRecord, here: RunRecord) -> list[str]:
    """One line for a person, where the task's optimizer is now made with others than the kept run's was."""
    found: dict[str, None] = {}
    for number, (past, now) in enumerate(zip(run.optimizer, here.optimizer, strict=False)):
        group = f" (group {number})" if len(run.optimizer) > 1 else ""
        for name in sorted(past.keys() & now.keys()):
            if past[name] != now[name]:
                found[f"{name} {past[name]}{group}, not {now[name]}"] = None
    if not found:
        return []
    return [f"the checkpoint's optimizer settings hold, not the task's new ones: {'; '.join(found)}"]


def recalled(place: Path, role: Role, replica: Replica, before: str, now: str) -> RoleState:
    """What a role kept; with the cut that it had `before`, if that was another."""
    if not before:
        return RoleState.read(place, role.address)
    from covey.parallelism.pipeline.recut import recut

    old, new, me = mesh_of(before), mesh_of(now), role.alias or role.address
    states = [
        RoleState.read(place, Address(me.role, me.rank * old.stages + stage)) for stage in range(old.stages)
    ]  # fmt: skip
    return recut(states, replica, begin=not new.schedule.flushes)

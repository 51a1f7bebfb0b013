"""The checkpoint that a run continues from, of the same run or of one with another cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from torch.optim import Optimizer

from covey.checkpoint import RoleState, RunRecord
from covey.decoding import UNREADABLE, brief
from covey.errors import CheckpointError
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


def same_stages(one: str, other: str) -> bool:
    """Whether two SPECs cut their model alike, or have one stage each, whatever its members divide."""
    return same_cut(one, other) or mesh_of(one).stages == mesh_of(other).stages == 1


def uncut(run: RunRecord) -> RunRecord:
    """The run as it would be with whole models, one for each share of the data: whatever the cut, it is the same."""
    mesh = mesh_of(run.strategy)
    alike = mesh.members // mesh.batches  # workers that compute on the same batch
    return msgspec.structs.replace(
        run, strategy=str(replace(parse(run.strategy), mesh=None)), workers=run.workers // alike,
        servers=run.servers // mesh.members, limits=run.limits[::alike],
    )  # fmt: skip


def after(run: RunRecord | None, here: RunRecord) -> RunRecord:
    """The record of a run that goes on from another one, if it does: its lineage begins with that of the other."""
    return msgspec.structs.replace(here, origins=[*run.origins, *here.origins]) if run else here


def check_layout(run: RunRecord, here: RunRecord, alike: bool) -> None:
    """Refuse a divided model with another number of replicas, unless the strategy keeps all of them `alike`."""
    meshes = mesh_of(run.strategy), mesh_of(here.strategy)
    old, new = run.workers // meshes[0].members, here.workers // meshes[1].members
    if old != new and not alike and any(mesh.batches > 1 for mesh in meshes):
        raise CheckpointError(
            f"the checkpoint is of a run with {old} replicas of the model, and this one has {new}: only strategies "
            "that keep replicas alike, such as allreduce, can go on so; use as many replicas"
        )


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


def keep_own_settings(state: RoleState, replica: Replica) -> None:
    """Let what a role kept have the settings of this replica's optimizer, such as its learning rate."""
    groups = replica.optimizer.state_dict()["param_groups"]
    state.replica["optimizer"] = {**state.replica["optimizer"], "param_groups": groups}


def recalled(place: Path, role: Role, replica: Replica, before: str, now: str) -> RoleState:
    """What a role kept; with the cut that it had `before`, if that was another."""
    if not before:
        return RoleState.read(place, role.address)
    try:
        return _divided_anew(place, role, replica, before, now)
    except (*UNREADABLE, AssertionError) as error:
        raise CheckpointError(
            f"what {place} keeps of the model cannot be divided anew ({brief(error)}): go on with the same mesh, or "
            "start anew"
        ) from None


def _divided_anew(place: Path, role: Role, replica: Replica, before: str, now: str) -> RoleState:
    """What a role goes on from, of what members of other cuts kept."""
    from covey.parallelism.pipeline.recut import recut

    old, new, me = mesh_of(before), mesh_of(now), role.alias or role.address
    if any(mesh.batches * mesh.tensors > 1 for mesh in (old, new)):
        return _relaid(place, role, replica, old, new)
    # where there are more replicas than before, all had the same model
    number = me.rank % (old.replica or 1) if parse(before).mesh else me.rank
    states = [
        RoleState.read(place, Address(me.role, number * old.stages + stage)) for stage in range(old.stages)
    ]  # fmt: skip
    return recut(states, replica, begin=not new.schedule.flushes)


def _relaid(place: Path, role: Role, replica: Replica, old: Mesh, new: Mesh) -> RoleState:
    """What a role goes on from where members of its replica had parts of layers or batches of their own, or have now.

    A worker's batches are those of its share of the data, so the worker with the same share kept where they are.
    """
    from covey.parallelism.relayout import relaid

    name, alias = role.address.role, role.alias or role.address
    replicas, first = [alias.rank], alias.rank * old.members
    if role.trains:
        shares = range(alias.rank * new.batches, (alias.rank + 1) * new.batches)
        replicas = sorted({share // old.batches for share in shares})
        first = old.first_with(new.share(role.address.rank))
    groups = [
        [RoleState.read(place, Address(name, one * old.members + member)) for member in range(old.members)]
        for one in replicas
    ]  # fmt: skip
    return relaid(RoleState.read(place, Address(name, first)), groups, replica, begin=not new.schedule.flushes)

"""Refuses runs of a mesh with a range of workers that could not change their layout."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from covey import catalog
from covey.checkpoint import CheckpointDirectory
from covey.errors import CheckpointError, PlanError
from covey.names import option
from covey.parallelism.plan.mesh import Mesh
from covey.run.options import Options
from covey.simulate import Cluster
from covey.spec import parse
from covey.spec.worker_range import WorkerRange
from covey.systems import SYSTEMS


def check(strategy: str | Any, team: WorkerRange, given: Options) -> None:
    """Refuse what a mesh with a range of workers cannot do."""
    chosen = catalog.resolve(catalog.chosen(strategy, team.most), team.most)
    mesh, fixed = chosen.composition.mesh, f"or use a number, as {option('workers', team.most)}"
    assert isinstance(mesh, Mesh)
    why, world = "", given.virtual.cluster or Cluster()
    base = parse(SYSTEMS[chosen.name].spec).strategy.name if chosen.name in SYSTEMS else chosen.name
    if base != "allreduce" or not chosen.composition.codec.traits.plain:
        why = f"{chosen.text}: only replicas of allreduce, without a codec, have nothing that belongs to their number"
    elif mesh.batches * mesh.tensors > 1 or mesh.timetable not in ("1f1b", "gpipe"):
        why = "only plain pipelines change their layout: use mesh(stage=2, microbatches=4) with 1f1b or gpipe"
    elif given.engine != "simulated":
        why = "a mesh changes its layout in virtual time only (covey simulate)"
    elif team.auto:
        why = f"a mesh follows its machines: use a range, as {option('workers', f'1:{team.most}')}"
    elif given.fault_plan.faults or world.kills:
        flag = option("faults") if given.fault_plan.faults else option("kill")
        why = f"{flag}: say in {option('spot_trace', 'FILE')} who comes and goes"
    elif world.machines:
        why = "the cluster has machines that roles share, and a mesh follows machines with one worker each: omit them"
    elif given.virtual.timing_only:
        why = f"{option('timing_only', True)} has no weights to divide anew: omit it"
    elif given.checkpoints.resume:
        why = f"{option('resume')}: such a run begins with the machines of its beginning: omit it"
    if why:
        raise PlanError(f"{option('workers', team)}: {why}; {fixed}")
    _check_folder(given.checkpoints.checkpoint)


def _check_folder(place: str | PathLike[str] | None) -> None:
    if place is not None and CheckpointDirectory(Path(place)).all():
        raise CheckpointError(
            f"{place} holds the checkpoints of an earlier run, which this one would replace: choose another folder"
        )

"""A pipeline as it ran: its timetable in time, from the recording of a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from covey.errors import PlanError
from covey.observe.recording import Recording
from covey.parallelism.pipeline.stage_schedule import StageSchedule
from covey.parallelism.plan.gantt import Gantt, TimedMove
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.plan.timetable import MachineRow, Move, Timetable
from covey.run.kept import mesh_of


def timetable_of(recording: Recording, replica: int = 0) -> Gantt:
    """When each stage of a replica did each of its moves: its computing, in order, is its timetable's."""
    mesh = mesh_of(recording.strategy)
    if mesh.stages < 2:
        raise PlanError("this run had no pipeline: its strategy needs 'with mesh(stage=2)', or more stages")
    rows, slots = [], []
    for stage in range(mesh.stages):
        who = f"worker {(replica * mesh.stages + stage) * (mesh.members // mesh.stages)}"
        done = [(span.begin, span.end) for span in recording.spans if span.who == who and not span.what]
        moves = list(islice(_moves(mesh, stage), len(done)))
        rows.append(MachineRow(stage, 0, tuple(moves)))
        slots += [TimedMove(stage, move, begin, end) for move, (begin, end) in zip(moves, done, strict=True)]
    first = min((slot.begin for slot in slots), default=0.0)
    moved = tuple(TimedMove(slot.row, slot.move, slot.begin - first, slot.end - first) for slot in slots)
    return Gantt(Timetable(mesh.schedule, (1,) * mesh.stages, tuple(rows)), moved)


def _moves(mesh: Mesh, stage: int) -> Iterator[Move]:
    """All moves of a stage, from step to step, micro-batches being counted through."""
    plan = mesh.schedule
    stage_schedule = StageSchedule(plan, stage, mesh.stages, 0, None)
    step = 0
    while True:
        offset = step * (plan.microbatches if plan.divides else 1) if plan.flushes else 0
        for move in stage_schedule.step(step):
            yield Move(move.what, move.batch + offset, move.chunk, move.version)
        step += 1

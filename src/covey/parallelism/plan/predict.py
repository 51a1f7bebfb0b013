"""The predicted performance of a cut: time, bubble and traffic of a step, and the memory of every stage."""

from __future__ import annotations

import math
from dataclasses import dataclass

from covey.parallelism.plan.gantt import Gantt, Times, simulate
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.terms import Cut, CutTerms, ring_time, row_memory, steady


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage; with several chunks its layers are several runs."""

    layers: tuple[tuple[int, int], ...]  # first and last of each run
    machines: int
    forward: float  # seconds of one (micro-)batch
    backward: float
    weights: int  # bytes
    memory: float
    in_flight: int
    versions: int
    sends: int  # bytes ahead for one (micro-)batch
    returns: int  # bytes of gradients back to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A cut under a timetable. `step` is the time from update to update, once it runs steadily."""

    cut: Cut
    schedule: Schedule
    stages: tuple[StagePlan, ...]
    step: float
    bubble: float
    traffic: int  # bytes over all cuts in one step
    gantt: Gantt

    @property
    def memory(self) -> float:
        return max(stage.memory for stage in self.stages)


def predict(profile: Profile, cut: Cut, terms: CutTerms, latency: float = 0.0) -> Prediction:
    """Run the timetable in time, with the profile's costs and the network's."""
    schedule = terms.schedule
    gantt = simulate(steady(cut, schedule), _times(profile, cut, terms, latency))
    rows = {row.stage: row for row in gantt.timetable.rows if row.replica == 0}
    parts, devices = cut.parts(len(profile)), len(rows)
    stages = []
    for number, row in rows.items():
        mine = parts[number::devices]
        crossing = [profile.layers[last] for _, last in mine if last < len(profile) - 1]
        stages.append(
            StagePlan(
                layers=tuple(mine),
                machines=gantt.timetable.machines[number],
                forward=sum(profile.forward(*part) for part in mine),
                backward=sum(profile.backward(*part) for part in mine),
                weights=sum(profile.weights(*part) for part in mine),
                memory=row_memory(profile, cut, schedule, row),
                in_flight=row.in_flight(),
                versions=row.versions(),
                sends=sum(layer.sends for layer in crossing),
                returns=sum(layer.returns for layer in crossing),
            )
        )
    step, bubble = _pace(gantt)
    each = schedule.microbatches if schedule.divides else 1
    traffic = round(each * profile.fill * sum(stage.sends + stage.returns for stage in stages))
    return Prediction(
        cut=cut, schedule=schedule, stages=tuple(stages), step=step, bubble=bubble, traffic=traffic, gantt=gantt
    )


def _times(profile: Profile, cut: Cut, terms: CutTerms, latency: float) -> Times:
    parts = cut.parts(len(profile))
    again = terms.schedule.recompute
    inner = [profile.layers[last] for _, last in parts[:-1]]
    return Times(
        forward=[profile.forward(*part) for part in parts],
        backward=[profile.backward(*part) + (profile.forward(*part) if again else 0.0) for part in parts],
        ahead=[profile.fill * layer.sends / terms.bandwidth for layer in inner],
        back=[profile.fill * layer.returns / terms.bandwidth for layer in inner],
        latency=latency,
        update=[ring_time(profile, terms, *part, here) for part, here in zip(parts, cut.machines, strict=True)],
    )


def _pace(gantt: Gantt) -> tuple[float, float]:
    """Seconds and bubble of a step: all of it where it flushes, else from one update to another in the middle."""
    if gantt.timetable.schedule.flushes:
        return gantt.makespan, gantt.bubble()
    updates = sorted(slot.end for slot in gantt.slots if slot.move.what == "U" and slot.row == 0)
    begin, end = len(updates) // 3, max(2 * len(updates) // 3, len(updates) // 3 + 1)
    if end >= len(updates):
        return gantt.makespan / max(len(updates), 1), math.nan
    # a machine of a replicated first stage makes an update for each round of batches
    rounds = 1 if gantt.timetable.schedule.divides else gantt.timetable.machines[0]
    step = (updates[end] - updates[begin]) / (end - begin) / rounds
    return step, gantt.bubble(updates[begin], updates[end])

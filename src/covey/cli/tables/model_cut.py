"""A cut as a table on the output, and as JSON: its stages, what a step would take, and why it was cut there."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.parallelism import Chain, CutTerms, Prediction, Profile, best_cut, equal_cut, predict
from covey.parallelism.plan.predict import StagePlan
from covey.simulate.units import format_bytes, format_duration, format_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The best cut, beside the one that one would make without measuring."""

    task: str
    chain: Chain
    profile: Profile
    terms: CutTerms
    best: Prediction
    equal: Prediction
    alone: float  # seconds in which one machine computes a batch, whole
    batch: int  # samples of it

    @staticmethod
    def of(
        task: str, chain: Chain, profile: Profile, terms: CutTerms, latency: float, *, alone: float, batch: int
    ) -> Answer:  # fmt: skip
        cut = best_cut(profile, terms)
        parts = len(cut.machines) if terms.stages is not None else min(terms.hosts, len(profile))
        plain = equal_cut(profile, parts, terms.hosts * terms.schedule.chunks)
        return Answer(
            task=task, chain=chain, profile=profile, terms=terms,
            best=predict(profile, cut, terms, latency), equal=predict(profile, plain, terms, latency),
            alone=alone, batch=batch,
        )  # fmt: skip

    def name(self, layers: tuple[tuple[int, int], ...]) -> str:
        """Runs of layers, by the first and the last."""
        names = [layer.name for layer in self.chain.layers]
        return ", ".join(names[a] if a == b else f"{names[a]} … {names[b]}" for a, b in layers)

    def to_json(self) -> str:
        """`covey.cut/1`; bytes and seconds are for one (micro-)batch, `step` for all of a step."""
        plan = self.terms.schedule
        facts = {
            "schema": "covey.cut/1", "task": self.task, "way": self.chain.traced.way, "notes": self.chain.notes,
            "timetable": asdict(plan), "bandwidth": _finite(self.terms.bandwidth), "memory": _finite(self.terms.memory),
            "layers": [asdict(layer) for layer in self.profile.layers], "alone": self.alone, "batch": self.batch,
            "best": self._shown(self.best), "equal": self._shown(self.equal),
        }  # fmt: skip
        return json.dumps(facts, indent=1) + "\n"

    def _shown(self, found: Prediction) -> dict[str, Any]:
        names = [self.chain.layers[cut].name for cut in found.cut.after]
        return {
            "after": names, "step": found.step, "bubble": _finite(found.bubble), "traffic": found.traffic,
            "stages": [asdict(stage) for stage in found.stages],
        }  # fmt: skip


def print_cut(console: Console, answer: Answer, picture: Path | None, *, everything: bool) -> None:
    """Print the stages, the step, and the reasons; `everything` adds the layers."""
    if everything:
        console.print(_layers(answer))
        console.print()
    console.print(_stages(answer))
    console.print()
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, words in _facts(answer):
        facts.add_row(name, Text(words))
    if picture is not None:
        facts.add_row("picture", Text(str(picture)))
    console.print(facts)


def _facts(answer: Answer) -> list[tuple[str, str]]:
    best, equal, plan = answer.best, answer.equal, answer.terms.schedule
    unit = "step" if plan.divides else "batch"
    facts = [
        (unit, f"{format_duration(best.step)} under {plan.name}{_parts(answer)}"),
        ("alone", _alone(answer)),
        ("bubble", f"{best.bubble:.1%} of the machines' time" + _ideal(answer)),
        ("traffic", f"{format_bytes(best.traffic)} over the cuts in a {unit}; {format_rate(answer.terms.bandwidth)}"),
        ("why", _why(answer)),
        ("equal", _compared(answer, best, equal)),
    ]  # fmt: skip
    return [*facts, *(("note", note) for note in answer.chain.notes)]


def _parts(answer: Answer) -> str:
    plan = answer.terms.schedule
    return f", for a batch of {answer.batch} in {plan.microbatches} micro-batches" if plan.divides else ""


def _alone(answer: Answer) -> str:
    """The verdict: whether the cut is faster than no cut."""
    times = answer.alone / answer.best.step
    took = f"one machine computes the batch of {answer.batch}, uncut, in {format_duration(answer.alone)}"
    if times < 1:
        return f"{took}: the cut takes {1 / times:.2f} times as long, so it pays only where the model does not fit"
    return f"{took}, {times:.2f} times as long"


def _ideal(answer: Answer) -> str:
    plan, stages = answer.terms.schedule, len(answer.best.stages)
    if not plan.flushes:
        return ", in the steady state"
    if not plan.traits.overlaps:
        return f"; {1 - 1 / stages:.1%} if all stages were alike"
    return f"; {(stages - 1) / (plan.chunks * plan.microbatches + stages - 1):.1%} if all stages were alike"


def _why(answer: Answer) -> str:
    """What holds the pipeline up."""
    stages = answer.best.stages
    if not answer.terms.schedule.traits.overlaps:
        return "one stage works at a time, so the cut is one with the least traffic" + _fits(answer)
    if len(stages) == 1 < stages[0].machines:
        return "whole models on all machines, which sum their gradients, are faster than any cut"
    number = max(range(len(stages)), key=lambda k: (stages[k].forward + stages[k].backward) / stages[k].machines)
    slow = stages[number]
    pace = (slow.forward + slow.backward) / slow.machines
    whole = answer.profile.compute(0, len(answer.profile) - 1)
    if answer.best.cut.slowest > pace * 1.001 and answer.terms.schedule.chunks == 1:
        held = format_duration(answer.best.cut.slowest)
        return f"the network holds it up: {held} for each batch, which computes for {format_duration(pace)}"
    share = f"stage {number} has {pace * slow.machines / whole:.0%} of the computing"
    share += f" on {slow.machines} machines" if slow.machines > 1 else ""
    if all(first == last for first, last in slow.layers):
        return f"{share} and is a single layer, so no cut is faster"
    return f"{share}; there is less in the slowest stage of no other cut" + _fits(answer)


def _fits(answer: Answer) -> str:
    return "" if answer.terms.memory == math.inf else f" that fits in {format_bytes(answer.terms.memory)}"


def _compared(answer: Answer, best: Prediction, equal: Prediction) -> str:
    if equal.cut.after == best.cut.after and equal.cut.machines == best.cut.machines:
        return "the same cut as with equally many layers in each stage"
    slow = max(equal.stages, key=lambda stage: stage.forward + stage.backward)
    share = (slow.forward + slow.backward) / answer.profile.compute(0, len(answer.profile) - 1)
    over = equal.memory > answer.terms.memory
    return (
        f"with equally many layers it would take {format_duration(equal.step)}, {equal.step / best.step:.2f} times as "
        f"long: {answer.name(slow.layers)} has {share:.0%} of the computing"
        + (f"; it would not fit ({format_bytes(equal.memory)})" if over else "")
    )


def _stages(answer: Answer) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage", justify="right")
    table.add_column("layers", overflow="fold")
    replicated = any(stage.machines > 1 for stage in answer.best.stages)
    columns = [*(["machines"] if replicated else []), "forward", "backward", "weights", "memory", "in flight", "sends"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for number, stage in enumerate(answer.best.stages):
        table.add_row(str(number), answer.name(stage.layers), *_cells(stage, replicated))
    return table


def _cells(stage: StagePlan, replicated: bool) -> list[str]:
    return [
        *([str(stage.machines)] if replicated else []), format_duration(stage.forward), format_duration(stage.backward),
        format_bytes(stage.weights), format_bytes(stage.memory), str(stage.in_flight), format_bytes(stage.sends),
    ]  # fmt: skip


def _layers(answer: Answer) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("layer", overflow="fold")
    for column in ("forward", "backward", "weights", "keeps", "crossing"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in answer.profile.layers:
        times = format_duration(layer.forward), format_duration(layer.backward)
        table.add_row(layer.name, *times, *(format_bytes(n) for n in (layer.weights, layer.kept, layer.sends)))
    return table


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None

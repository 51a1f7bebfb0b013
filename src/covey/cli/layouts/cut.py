"""covey cut: where should a model be cut into stages, and what would that be like?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag, teller
from covey.cli.typed_flags import names_of, typed
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.cli.tables.model_cut import Answer
    from covey.parallelism import CutTerms, Schedule

CUT, NETWORK = "How to cut", "The machines"

Picture = Annotated[Path | None, flag("--picture", "FILE", "The timetable as an SVG.", options.KEEP)]


@dataclass(frozen=True, kw_only=True)
class CutFlags(options.FlagGroup):
    """How the model is cut, and in which order its stages work."""

    stages: Annotated[
        int | None, flag("--stages", "P", "How many. (default: 2, or with --machines what pays)", CUT, least=1)
    ] = None
    machines: Annotated[
        int | None, flag("--machines", "N", "More than stages: slow stages get several.", CUT, least=1)
    ] = None
    timetable: Annotated[
        str, flag("--timetable", "NAME", "plain, gpipe, 1f1b, interleaved, pipedream or 2bw.", CUT)
    ] = "1f1b"
    microbatches: Annotated[int, flag("--microbatches", "M", "Into how many a batch is cut.", CUT, least=1)] = 8
    chunks: Annotated[int, flag("--chunks", "V", "Of each stage, for interleaved.", CUT, least=1)] = 1
    vertical: Annotated[bool, flag("--vertical", "", "pipedream: one version of the weights for a batch.", CUT)] = False
    recompute: Annotated[
        bool, flag("--recompute", "", "Run forwards again instead of keeping what they made.", CUT)
    ] = False
    after: Annotated[
        list[str] | None, flag("--after", "MODULE", "Only after this module; may be repeated.", CUT)
    ] = None
    tied: Annotated[
        str, flag("--tied", "HOW", "Weights in two stages: refuse, or sum their gradients.", CUT)
    ] = "refuse"

    tensor: Annotated[
        int | None, flag("--tensor", "N", "Divide every layer among N workers instead.", CUT, least=2)
    ] = None
    split: Annotated[
        str, flag("--split", "HOW", "With --tensor: best, none, or LAYER:KIND, such as *.up:column.", CUT)
    ] = "best"

    def schedule(self) -> Schedule:
        from covey.parallelism import Schedule

        return Schedule(
            name=self.timetable, microbatches=self.microbatches, chunks=self.chunks, vertical=self.vertical,
            recompute=self.recompute,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StageMachineFlags(options.FlagGroup):
    """The machines that hold the stages."""

    memory: Annotated[
        str | None, flag("--memory", "SIZE", "Memory of each machine, such as 2GB. (default: no limit)", NETWORK)
    ] = None
    bandwidth: Annotated[str, flag("--bandwidth", "RATE", "Bandwidth between two machines.", NETWORK)] = "1gbit"
    latency: Annotated[str, flag("--latency", "TIME", "One-way latency.", NETWORK)] = "0.1ms"


@options.grouped
def command(
    *,
    context: typer.Context,
    task: options.Task,
    cut: CutFlags,
    machine: StageMachineFlags,
    picture: Picture = None,
    output: options.OutputFlags,
) -> None:
    """Cut a model into stages: where, how long a step would take, how much memory each stage needs, and why there.

    Every layer is measured on this machine, on one thread.

    covey cut examples/unbalanced.py --stages 3 --memory 2GB --timetable 1f1b --picture cut.svg
    """
    manner, json = output.voice, output.json
    with explained(manner):
        json_file.check(json)
        json_file.check(picture, "--picture", "cut.svg")
        _refuse_unread(context, cut)
        if cut.tensor is not None:
            return _divide(task, cut.tensor, cut.split, output)
        from covey.simulate.units import parse_duration, parse_rate, parse_size

        limit = parse_size(machine.memory) if machine.memory else math.inf
        rate, wait = parse_rate(machine.bandwidth), parse_duration(machine.latency)
        if cut.tied not in ("refuse", "sum"):
            raise PlanError(f"--tied {cut.tied}: weights in two stages can be refused or summed; write refuse or sum")
        from covey.cli.tables.model_cut import Answer, print_cut
        from covey.parallelism import CutTerms
        from covey.run.cutting import profiled, time_alone, whole_batch
        from covey.task import load_task

        plan, loaded = cut.schedule(), load_task(task, teller(manner))
        stages = 2 if cut.stages is None and cut.machines is None else cut.stages
        terms = CutTerms(stages=stages, machines=cut.machines, schedule=plan, bandwidth=rate, memory=limit, trains=True)
        chain, profile = profiled(
            loaded, plan, after=cut.after or [], tied=cut.tied, told=teller(manner)
        )
        alone = time_alone(loaded, chain)
        answer = Answer.of(task, chain, profile, terms, wait, alone=alone, batch=whole_batch(loaded))
        with (
            json_file.written(json, answer.to_json),
            json_file.written(picture, lambda: _drawn(answer, task, terms), "--picture") as there,
        ):
            if manner != "quiet":
                print_cut(json_file.console(json), answer, there, everything=manner == "verbose")


def _refuse_unread(context: typer.Context, cut: CutFlags) -> None:
    """Refuse flags of stages with --tensor, and those of --tensor without it."""
    if cut.tensor is None:
        if typed(context, ["split"]):
            raise PlanError(f"--split {cut.split} says how --tensor divides layers: add --tensor N, or omit it")
        return
    of_stages = {*names_of(CutFlags, StageMachineFlags), "picture"} - {"tensor", "split"}
    if unread := typed(context, sorted(of_stages)):
        raise PlanError(f"--tensor {cut.tensor} divides layers, and cuts no stages: omit it, or {unread}")


def _divide(task: str, members: int, split: str, output: options.OutputFlags) -> None:
    """Divide layers, and tell which."""
    from covey.cli.tables.layer_split import LayerSplits, print_splits
    from covey.run.cutting import divided
    from covey.task import load_task

    mesh, model, plan = divided(load_task(task, teller(output.voice)), members, split)
    found = LayerSplits(task=task, mesh=mesh, model=model, plan=plan)
    with json_file.written(output.json, found.to_json):
        if output.voice != "quiet":
            print_splits(json_file.console(output.json), found)


def _drawn(answer: Answer, task: str, terms: CutTerms) -> str:
    from covey.report import gantt

    title = f"{task} · {terms.schedule.name} · {len(answer.best.stages)} stages"
    return gantt.draw(answer.best.gantt, title)

"""covey tune: which arguments of a task, which strategy and which codec are best?"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covey import atomic_file
from covey.cli import json_file, options
from covey.cli.errors import INTERRUPTED, explained
from covey.cli.options import flag, teller
from covey.cli.progress.page import Beside, page_beside
from covey.cli.training import importing, load_plugins
from covey.cli.typed_flags import typed
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.tune import StudyResult, TenantsResult

SEARCH = "How to search"
OF_REHEARSAL = ("tasks", "rehearse", "slots", "json", "quiet", "verbose")


@dataclass(frozen=True, kw_only=True)
class SpaceFlags(options.FlagGroup):
    """What to search, and how."""

    space: Annotated[
        str, flag("--space", "SPACE", "What to choose from, such as 'rate=log(1e-4, 1), width=16|64'.", SEARCH)
    ] = ""
    policy: Annotated[
        str,
        flag("--policy", "NAME", "asha, random, hyperband, pop, tupaq or pbt; of several tasks easeml.", SEARCH),
    ] = "asha"
    sampler: Annotated[
        Literal["random", "tpe"], flag("--sampler", "NAME", "How Optuna suggests: random or tpe.", SEARCH)
    ] = "random"
    metric: Annotated[
        str | None, flag("--metric", "NAME", "What trials are compared by. (default: the task's only metric)", SEARCH)
    ] = None
    fuse: Annotated[
        Literal["auto", "always", "never"],
        flag("--fuse", "WHEN", "Train trials of equal shapes in one pass: auto, always or never.", SEARCH),
    ] = "auto"
    slots: Annotated[
        int | None, flag("--slots", "N", "How many trials run at a time. (default: the cores)", SEARCH, least=1)
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrialFlags(options.FlagGroup):
    """How a trial trains, where the space does not say it."""

    strategy: options.Strategy = "bsp"
    workers: options.Workers = 1
    engine: Annotated[
        str, flag("--engine", "ENGINE", "simulated: a process for each trial, in virtual time; or local.", options.RUN)
    ] = "simulated"
    seed: options.Seed = 0


@dataclass(frozen=True, kw_only=True)
class StudyBudgetFlags(options.FlagGroup):
    """When the search ends."""

    trials: Annotated[int, flag("--trials", "N", "How many points to try.", options.BUDGET, least=1)] = 64
    epochs: Annotated[
        int, flag("--epochs", "E", "How many passes over the data a trial has at most.", options.BUDGET, least=1)
    ] = 10
    within: Annotated[
        str | None, flag("--within", "TIME", "End the search after this time, with the best so far.", options.BUDGET)
    ] = None
    until: Annotated[
        str | None, flag("--until", "TARGET", "End the search at 'accuracy>=0.97', or accuracy:0.97.", options.BUDGET)
    ] = None


@dataclass(frozen=True, kw_only=True)
class StudyKeepFlags(options.FlagGroup):
    """What is kept of a search."""

    save: Annotated[Path | None, flag("--save", "FILE", "Save the best model as safetensors.", options.KEEP)] = None
    folder: Annotated[
        Path | None, flag("--continue", "DIR", "Keep the study here, and go on with it next time.", options.KEEP)
    ] = None


@options.grouped
def command(
    *,
    context: typer.Context,
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE[:NAME]…",
            help="A Python file, and the name of a function that makes a Task. Several share the slots by easeml.",
        ),
    ],
    space: SpaceFlags,
    trial: TrialFlags,
    plugin: options.Plugins = None,
    budget: StudyBudgetFlags,
    rehearse: Annotated[
        bool, flag("--rehearse", "", "FILE is a finished study: what would each policy have done?", SEARCH)
    ] = False,
    kept: StudyKeepFlags,
    record: options.RecordFlags,
    page: Beside = False,
    output: options.OutputFlags,
) -> None:
    """Search for the best settings of a task, and print the command that trains it with them.

    covey tune examples/tune.py --space 'rate=log(1e-3, 1), width=16|64' --policy asha --trials 16 --epochs 8
    """
    manner = output.voice
    with explained(manner):
        json_file.check(output.json)
        if rehearse:
            if unread := typed(context, [name for name in context.params if name not in OF_REHEARSAL]):
                raise PlanError(f"--rehearse reads a finished study, and trains nothing: omit it, or {unread}")
            if len(tasks) > 1:
                raise PlanError("--rehearse reads one file: that which covey tune --json wrote, of one task or several")
            _rehearse(Path(tasks[0]), space, output)
            return
        _refuse_early(space, budget, kept)
        if len(tasks) > 1 and kept.save is not None:
            raise PlanError("--save writes one model, and each task has one: omit it, or name one file")
        load_plugins(plugin, manner)
        with importing(manner):
            from covey.tune import tune, tune_tenants

        asked = {
            "command": shlex.join(["covey", *sys.argv[1:]]), "runs": record.folder, "told": teller(manner),
            **space.arguments(), **trial.arguments(), **budget.arguments(), **kept.arguments(),
        }  # fmt: skip
        with page_beside(page, record.folder, teller(manner)):
            if len(tasks) > 1:
                asked.pop("save")
                whole: StudyResult | TenantsResult = tune_tenants(tasks, **asked)
            else:
                whole = tune(tasks[0], **asked)
        _tell(whole, kept, output)


def _refuse_early(space: SpaceFlags, budget: StudyBudgetFlags, kept: StudyKeepFlags) -> None:
    """Refuse what can be seen to be wrong before torch is imported, which takes seconds."""
    from covey.simulate.units import parse_duration
    from covey.target import parse_target

    if not space.space.strip():
        raise PlanError("say what to search with --space, such as --space 'rate=log(1e-4, 1), width=16|64'")
    if budget.within is not None:
        parse_duration(budget.within)
    if budget.until is not None:
        parse_target(budget.until)
    if kept.save is not None:
        atomic_file.check(kept.save, f"--save {kept.save}", "model.safetensors")


def _tell(whole: StudyResult | TenantsResult, kept: StudyKeepFlags, output: options.OutputFlags) -> None:
    from covey.cli.tables.study import print_study, print_tenants
    from covey.tune import StudyResult

    studies = [whole] if isinstance(whole, StudyResult) else whole.tenants
    with json_file.written(output.json, whole.to_json):
        if output.voice != "quiet":
            console, everything = json_file.console(output.json), output.voice == "verbose"
            if isinstance(whole, StudyResult):
                print_study(console, whole, everything=everything)
            else:
                print_tenants(console, whole, everything=everything)
    if whole.stopped == "interrupted":
        if kept.folder is not None:
            typer.echo(f"Interrupted; go on with --continue {kept.folder}.", err=True)
        raise typer.Exit(INTERRUPTED)
    if any(one.best is None for one in studies):
        raise typer.Exit(1)


def _rehearse(study: Path, space: SpaceFlags, output: options.OutputFlags) -> None:
    from covey.cli.tables.study import print_rehearsal, print_tenants_rehearsal
    from covey.tune.rehearsing import rehearsal_of
    from covey.tune.tenants.rehearsing import is_of_tenants, tenants_rehearsal_of

    if is_of_tenants(study):
        shared = tenants_rehearsal_of(study, space.slots)
        with json_file.written(output.json, shared.to_json):
            if output.voice != "quiet":
                print_tenants_rehearsal(json_file.console(output.json), shared)
        return
    found = rehearsal_of(study, space.slots)
    with json_file.written(output.json, found.to_json):
        if output.voice != "quiet":
            print_rehearsal(json_file.console(output.json), found)

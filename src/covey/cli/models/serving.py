"""covey serve: a model that answers requests."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.models.flags import Store, opened
from covey.cli.models.planning import show_plan
from covey.cli.models.serving_flags import (
    EdgeFlags,
    PlanFlags,
    PromiseFlags,
    ReplicaFlags,
    VersionFlags,
    objective,
    replica_range,
)
from covey.cli.options import flag, grouped, teller
from covey.cli.training import importing
from covey.cli.typed_flags import names_of, typed
from covey.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from covey.inference.served_model import ModelPlace
    from covey.inference.serving import ServeWishes

ENDING = ".safetensors"
Model = Annotated[
    str,
    typer.Argument(metavar="NAME|FILE", help="A registered model, such as digits or digits:3, or a safetensors file."),
]
TaskFile = Annotated[
    str | None, flag("--task", "FILE[:NAME]", "The task that builds the model. (default: that of the run)", options.RUN)
]


@grouped
def command(
    *, context: typer.Context, model: Model, task: TaskFile = None, store: Store = None, computing: ReplicaFlags,
    promise: PromiseFlags, versions: VersionFlags, edge: EdgeFlags, planned: PlanFlags, record: options.RecordFlags,
    output: options.VoiceFlags,
) -> None:  # fmt: skip
    """Answer requests with a model, in batches that keep an objective.

    covey serve digits --slo p99:50ms --replicas 2
    """
    manner = output.voice
    with explained(manner):
        edge.check()
        planned.check()
        versions.check()
        _refuse_unread(context, model, computing.replicas, versions, planned)
        for name in (model, *versions.named):
            check_named(name, store, task)
        with importing(manner):
            from covey.inference.request_desk import FrontSettings
            from covey.inference.serving import ServeWishes, serve
            from covey.inference.sites.engine_choice import engine_of
            from covey.run.record import folder_of_runs
            from covey.simulate.units import parse_duration, parse_size

        share, seconds = objective(promise.slo)
        front = FrontSettings(
            objective=seconds, deadline=parse_duration(promise.deadline), queue=promise.queue,
            cache=promise.cache, largest=promise.largest, in_flight=computing.stages,
        )  # fmt: skip
        files = (edge.tls_certificate, edge.tls_key) if edge.tls_certificate and edge.tls_key else None
        wishes = ServeWishes(
            front=front, replicas=replica_range(computing.replicas), share=share, threads=computing.threads,
            stages=computing.stages, engine=engine_of(computing.engine), host=edge.host, port=edge.port,
            certificate=files, token=os.environ.get("COVEY_TOKEN", ""), body=int(parse_size(promise.body)),
            runs=folder_of_runs(record.folder),
        )  # fmt: skip
        place = placed(model, task, store)
        wishes = with_versions(wishes, versions, lambda name: placed(name, task, store))
        if planned.plan and planned.prices:
            return show_plan(place, wishes, planned, manner)
        serve(place, wishes, lambda line: print(line, flush=True), teller(manner))


def _refuse_unread(
    context: typer.Context, model: str, replicas: str, versions: VersionFlags, planned: PlanFlags
) -> None:
    """Refuse flags that would not be read."""
    if versions.canary is None and (unread := typed(context, ["enough"])):
        raise PlanError(f"{unread} says when --canary is promoted: add --canary NAME=SHARE, or omit it")
    if all(name.endswith(ENDING) for name in (model, *versions.named)) and (unread := typed(context, ["store"])):
        raise PlanError(f"{unread} has registered models, and {model} is a file: omit it")
    if planned.plan is None:
        return
    serving = ["engine", "cache", *names_of(VersionFlags, EdgeFlags, options.RecordFlags)]
    if unread := typed(context, serving):
        raise PlanError(f"--plan tries machines of --prices in virtual time, where no input comes twice: omit {unread}")
    if ":" not in replicas and (unread := typed(context, ["replicas"])):
        raise PlanError(f"--plan finds how many replicas are needed: omit {unread}, or write a range, such as 1:8")


def with_versions(
    wishes: ServeWishes, versions: VersionFlags, named: Callable[[str], ModelPlace]
) -> ServeWishes:
    """The wishes with the other versions, and with what chooses among them."""
    from covey.inference.versions.bandit import Exp3, Exp4
    from covey.inference.versions.canary import Canary, CanarySettings

    if versions.canary:
        found = re.fullmatch(r"(.+)=([0-9]{1,2}(?:\.[0-9]+)?)%", versions.canary)
        if not found:
            raise PlanError(f"--canary {versions.canary}: write a version and its share, such as digits:4=5%")
        settings = CanarySettings(
            share=float(found[2]) / 100, enough=versions.enough, objective=wishes.front.objective, promised=wishes.share
        )
        return replace(wishes, also=(named(found[1]),), choice=Canary(settings))
    if versions.also:
        also = tuple(named(name.strip()) for name in versions.also.split(","))
        count = 1 + len(also)
        choice = Exp4(count, wishes.front.objective) if versions.select == "exp4" else Exp3(count)
        return replace(wishes, also=also, choice=choice)
    return wishes


def check_named(model: str, store: Path | None, task: str | None) -> None:
    """Refuse, before torch is imported, a model that is not there, and one whose code others may have chosen."""
    if not model.endswith(ENDING):
        from covey.store.task_code import task_of

        place = opened(store)
        task_of(place, place.named(model), task)
    elif not Path(model).is_file():
        raise PlanError(f"there is no file {model}: name a safetensors file, or a model of `covey models list`")


def placed(model: str, task: str | None, store: Path | None) -> ModelPlace:
    """The model that was named; a version that is not there is refused now."""
    from covey.inference.served_model import ModelPlace

    if model.endswith(ENDING):
        return ModelPlace(file=model, task=task or "")
    place = opened(store)
    return ModelPlace(store=str(place.folder), version=place.named(model).text, task=task or "")

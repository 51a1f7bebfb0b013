"""covey serve: a model that answers requests."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.models.flags import Store, opened
from covey.cli.options import FlagGroup, flag, grouped, teller
from covey.cli.training import importing
from covey.cli.typed_flags import names_of, typed
from covey.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from covey.inference.served_model import ModelPlace
    from covey.inference.serving import ServeWishes

PROMISE, EDGE, PLAN, CHOICE = "What is promised", "Where to listen", "A plan", "Several versions"
ENDING = ".safetensors"
Model = Annotated[
    str,
    typer.Argument(metavar="NAME|FILE", help="A registered model, such as digits or digits:3, or a safetensors file."),
]
TaskFile = Annotated[
    str | None, flag("--task", "FILE[:NAME]", "The task that builds the model. (usual: that of the run)", options.RUN)
]


@dataclass(frozen=True, kw_only=True)
class PromiseFlags(FlagGroup):
    """Times and limits."""

    slo: Annotated[
        str, flag("--slo", "pNN:TIME", "The share of requests that should be answered in this time.", PROMISE)
    ] = "p99:50ms"
    deadline: Annotated[str, flag("--deadline", "TIME", "Answer with 504 after this time.", PROMISE)] = "10s"
    queue: Annotated[int, flag("--queue", "N", "Requests that may wait; others get 429.", PROMISE, least=1)] = 1024
    cache: Annotated[int, flag("--cache", "N", "Answers to keep for equal inputs.", PROMISE, least=0)] = 0
    largest: Annotated[int, flag("--largest-batch", "N", "The most requests of a batch.", PROMISE, least=1)] = 256
    body: Annotated[str, flag("--body", "SIZE", "The largest request.", PROMISE)] = "1MB"


@dataclass(frozen=True, kw_only=True)
class EdgeFlags(FlagGroup):
    """The address."""

    host: Annotated[
        str, flag("--host", "ADDRESS", "Where to listen; others than 127.0.0.1 need TLS and a token.", EDGE)
    ] = "127.0.0.1"
    port: Annotated[int, flag("--port", "PORT", "Which port; 0 takes a free one.", EDGE, least=0)] = 8480
    tls_certificate: Annotated[Path | None, flag("--tls-certificate", "FILE", "The certificate, as PEM.", EDGE)] = None
    tls_key: Annotated[Path | None, flag("--tls-key", "FILE", "Its key, as PEM.", EDGE)] = None

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.port > 65535:
            raise PlanError(f"--port {self.port}: the highest port is 65535")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise PlanError("TLS needs both: --tls-certificate FILE and --tls-key FILE")
        for name, file in (("certificate", self.tls_certificate), ("key", self.tls_key)):
            if file is not None and not file.is_file():
                raise PlanError(f"--tls-{name} {file}: there is no such file")


@dataclass(frozen=True, kw_only=True)
class PlanFlags(FlagGroup):
    """What to find out instead of serving."""

    plan: Annotated[
        Path | None, flag("--plan", "FILE", "Serve nothing: find the cheapest set-up for these arrivals.", PLAN)
    ] = None
    prices: Annotated[Path | None, flag("--prices", "FILE", "Kinds of machines, as TOML, for --plan.", PLAN)] = None
    json: Annotated[Path | None, flag("--json", "FILE", "Write the answer of --plan as JSON.", PLAN)] = None

    def check(self) -> None:
        """Refuse what contradicts itself."""
        json_file.check(self.json)
        if (self.plan is None) != (self.prices is None) or (self.json and self.plan is None):
            raise PlanError(
                "a plan needs both: --plan FILE, with times of requests, and --prices FILE; --json is for it"
            )


@dataclass(frozen=True, kw_only=True)
class VersionFlags(FlagGroup):
    """Other versions of the model."""

    canary: Annotated[
        str | None, flag("--canary", "NAME=SHARE", "Try a new version, such as digits:4=5%, and promote it.", CHOICE)
    ] = None
    enough: Annotated[
        int, flag("--canary-requests", "N", "Answers of it after which it may be promoted.", CHOICE, least=1)
    ] = 1000
    also: Annotated[
        str | None, flag("--also", "NAME,…", "Serve these versions, too; feedback says which is better.", CHOICE)
    ] = None
    select: Annotated[
        str | None, flag("--select", "exp3|exp4", "One version answers, or all vote. (usual: exp3)", CHOICE)
    ] = None

    @property
    def named(self) -> list[str]:
        """The other versions, as they were given."""
        canary = [self.canary.rpartition("=")[0] or self.canary] if self.canary else []
        return [name.strip() for name in (self.also or "").split(",") if name.strip()] + canary

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.canary and self.also:
            raise PlanError("--canary tries one new version, and --also has several judged by feedback: give one")
        if self.select and not self.also:
            raise PlanError("--select is for several versions: name the others, with --also NAME")
        if self.select not in (None, "exp3", "exp4"):
            raise PlanError(f"--select {self.select}: write exp3 (one version answers) or exp4 (all vote)")


@dataclass(frozen=True, kw_only=True)
class ReplicaFlags(FlagGroup):
    """The processes that compute."""

    replicas: Annotated[
        str, flag("--replicas", "N|N:N", "Processes that compute, or the fewest and the most of them.", options.RUN)
    ] = "1"
    stages: Annotated[
        int, flag("--stages", "N", "Cut the model: each replica is a row of N processes.", options.RUN, least=1)
    ] = 1
    threads: options.Threads = None
    engine: Annotated[str, flag("--engine", "NAME", "Where replicas run: local, ray or lab.", options.RUN)] = "local"


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


def show_plan(
    place: ModelPlace, wishes: ServeWishes, planned: PlanFlags, manner: options.Voice
) -> None:
    """Try set-ups in virtual time, and print them, the cheapest that keeps the objective first."""
    import msgspec
    import torch

    from covey.cli.tables.models import print_forecasts
    from covey.inference.cut_model import best_places, cut_at
    from covey.inference.path.measured_endpoint import MeasuredWishes
    from covey.inference.path.measuring import measured_costs
    from covey.inference.planning import Times, forecasts, measure, measure_stages, read_prices, read_trace
    from covey.inference.served_model import load

    assert planned.plan and planned.prices
    arrivals, prices = read_trace(planned.plan), read_prices(planned.prices)
    threads = wishes.threads or 1
    torch.set_num_threads(threads)
    model = load(place, teller(manner))
    times: Sequence[Times]
    if wishes.stages > 1:
        cut = cut_at(model, best_places(model, wishes.stages))
        times = measure_stages(cut, model.example(), wishes.front.largest)
    else:
        times = [measure(model, model.example(), wishes.front.largest)]
    measured = MeasuredWishes(
        place=place, front=wishes.front, threads=threads, stages=wishes.stages, body=wishes.body
    )
    path = measured_costs(measured, model.example()[0], lambda size: sum(one(size) for one in times))
    found = forecasts(arrivals, times, prices, wishes.front, wishes.share, scaled=wishes.scaled, path=path)
    if planned.json is not None:
        json_file.write(planned.json, msgspec.json.encode(found).decode() + "\n")
    if manner != "quiet" and planned.json != json_file.OUTPUT:
        print_forecasts(json_file.console(planned.json), found, len(arrivals), wishes.share)


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


def replica_range(text: str) -> tuple[int, int]:
    """The fewest and the most of `2` or `1:8`."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?", text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise PlanError(f"--replicas {text}: write a number, or the fewest and the most, such as 1:8")
    return least, most


def objective(text: str) -> tuple[float, float]:
    """The share and the seconds of `p99:50ms`."""
    from covey.simulate.units import parse_duration

    found = re.fullmatch(r"p([0-9]{1,2}(?:\.[0-9]{1,3})?):(.+)", text.strip())
    if not found or float(found[1]) <= 0:
        raise PlanError(f"--slo {text}: write a percentile and a time, such as p99:50ms or p99.9:1s")
    return float(found[1]) / 100, parse_duration(found[2])

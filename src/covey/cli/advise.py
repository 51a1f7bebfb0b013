"""covey advise: which strategy should I use, and why?"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options, simulate
from covey.cli.errors import INTERRUPTED, explained
from covey.cli.options import flag, teller
from covey.cli.training import ShownRequest, load_plugins
from covey.cli.typed_flags import names_of, one_number, typed
from covey.errors import PlanError
from covey.target import parse_target

if TYPE_CHECKING:
    from covey.advise.ranked import Advice
    from covey.advise.situation import Situation
    from covey.simulate import Cluster
    from covey.task import Task

WISHES = "What matters"
BATCHES = 10  # of calibration: real steps of many strategies are measured afterwards
LONG = "; then trials, a minute or two of CPU time, longer where the machine is busy (--within limits them)"

Report = Annotated[Path | None, flag("--report", "FILE", "The delays as a page to open in a browser.", options.KEEP)]
Workers = Annotated[
    int | None,
    flag(
        "--workers", "N", "How many workers. (default: those of --cluster, else cores)", options.RUN, parser=one_number
    ),
]  # fmt: skip
Top = Annotated[
    int | None, flag("--top", "N", "How many to show. (default: 5; with --verbose all)", options.OUTPUT, least=1)
]
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class MeasureFlags(options.FlagGroup):
    """How the advice is found."""

    engine: Annotated[
        str | None,
        flag("--engine", "ENGINE", "Measure on local, or 'lab(…)'. (default: local, without a cluster)", options.RUN),
    ] = None
    quick: Annotated[bool, flag("--quick", "", "Estimate with formulas alone, in a moment.", options.RUN)] = False
    race: Annotated[
        bool, flag("--race", "", "Then compare up to four of the best on real processes.", options.RUN)
    ] = False
    epochs: Annotated[
        int | None,
        flag("--epochs", "E", "The passes of the run you plan, for its schedule. (default: 100)", options.BUDGET, 1),
    ] = None
    within: Annotated[
        str | None,
        flag("--within", "TIME", "Start no trial, or round of --race (default: 60s), after this.", options.BUDGET),
    ] = None
    delays: Annotated[
        bool, flag("--delays", "", "Show the least delay of every exchange pattern instead.", options.RUN)
    ] = False


@dataclass(frozen=True, kw_only=True)
class WishFlags(options.FlagGroup):
    """What matters to the person."""

    repeatable: Annotated[bool, flag("--repeatable", "", "Two runs must give the same model.", WISHES)] = False
    once: Annotated[bool, flag("--exactly-once", "", "Every sample must count once in each epoch.", WISHES)] = False
    spot: Annotated[bool, flag("--spot", "", "Machines may vanish.", WISHES)] = False
    spot_trace: Annotated[
        Path | None, flag("--spot-trace --trace", "FILE", "Times at which machines come and go: weigh prices.", WISHES)
    ] = None
    model_parallel: Annotated[
        bool, flag("--model-parallel", "", "Also show the fastest layouts of a model that is divided.", WISHES)
    ] = False
    memory: Annotated[
        str | None, flag("--memory", "SIZE", "Memory of each worker. (default: this machine's)", WISHES)
    ] = None

    @property
    def limit(self) -> float | None:
        """Bytes of a worker, where they were given."""
        from covey.simulate.units import parse_size

        return parse_size(self.memory) if self.memory else None

    def arguments(self) -> dict[str, bool]:
        return {"reproducible": self.repeatable, "once": self.once, "spot": self.spot or self.spot_trace is not None}


@options.grouped
def command(
    *,
    context: typer.Context,
    task: options.Task,
    workers: Workers = None,
    plugin: options.Plugins = None,
    until: options.Until = None,
    measuring: MeasureFlags,
    seed: options.Seed = 0,
    cluster: simulate.UnevenClusterFlags,
    wishes: WishFlags,
    report: Report = None,
    top: Top = None,
    output: options.OutputFlags,
) -> None:
    """Rank the strategies for a task and a cluster: times, costs, reasons, risks, and the command to run.

    covey advise examples/digits.py --workers 8 --bandwidth 100mbit --slow 3:4x --until accuracy:0.95

    covey advise examples/digits.py --until accuracy:0.9 --race
    """
    manner, json = output.voice, output.json
    with explained(manner):
        imagined, limit = cluster.described(), wishes.limit
        if until is not None:
            parse_target(until)
        json_file.check(json)
        json_file.check(report, "--report", "delays.html")
        _refuse_unread(context, measuring, wishes, report)
        from covey.simulate.spot_trace import load_trace

        trace = load_trace(wishes.spot_trace) if wishes.spot_trace else None
        wanted = AskedEngine(measuring, imagined is not None, until, plugin or [])
        load_plugins(plugin, manner)
        from covey.calibrate.measuring import cores
        from covey.calibrate.short_task import shortened
        from covey.scoring import target_of
        from covey.task import load_task

        told = teller(manner)
        loaded = load_task(task, told)
        if until is not None:
            target_of(loaded, until)
        told("measuring a batch on this machine" + ("" if measuring.quick or measuring.delays else LONG))
        short: Task | str = task
        if wanted.real:
            short = shortened(loaded, task, workers or cores())
            imagined = wanted.measured(short, told)
        now, pace = _situation(
            loaded, workers, imagined, measure=cluster.cluster is None and cluster.compute is None and not wanted.real,
            here=wanted.local, wishes=wishes.arguments(),
        )  # fmt: skip
        now = now if limit is None else replace(now, memory=limit)
        now = now if trace is None else replace(now, fewest=trace.fewest(now.workers))
        request = ShownRequest(strategy="", workers=now.workers, engine="", until=until, output=output)
        if measuring.delays:
            _tell_delays(now, task, request, report)
            return
        from covey.advise.choose import advise
        from covey.advise.finalists import race as race_finalists
        from covey.advise.real_steps import RealSteps
        from covey.advise.trials.trial import SimulatedTrials
        from covey.cli.tables.advice import print_advice

        epochs = measuring.epochs
        trials = None if measuring.quick else SimulatedTrials(
            loaded, now, pace, seed, epochs=epochs, until=wanted.limited
        )
        real = RealSteps(
            task=short, engine=wanted.name, workers=now.workers, seed=seed, until=wanted.limited
        ) if wanted.real else None  # fmt: skip
        found = advise(
            loaded, task, now, until=until, trials=trials, real=real, told=told, command=wanted.flags, epochs=epochs
        )
        if not found.interrupted:
            _add_wishes(found, loaded, task, now, wishes, seed, told)
        if measuring.race and not found.interrupted:
            within = measuring.within
            race_finalists(
                found, task, wanted.name, within=within, seed=seed, epochs=epochs, told=told, command=request.command
            )
        with json_file.written(json, found.to_json):
            if manner != "quiet":
                usual = len(found.choices) if manner == "verbose" else SHOWN
                print_advice(json_file.console(json), found, now, top or usual)
        if found.interrupted:
            raise typer.Exit(INTERRUPTED)


def _add_wishes(
    found: Advice, loaded: Task, task: str, now: Situation, wishes: WishFlags, seed: int, told: Callable[[str], None]
) -> None:  # fmt: skip
    """Weigh spot machines, and look for layouts, where that was asked for; say where no model fits."""
    from covey.advise.rules import decentral_fits

    if wishes.spot_trace:
        from covey.advise.trials.spot import weigh

        weigh(found, loaded, now, wishes.spot_trace, told)
    fits = decentral_fits(now.model, now.state, now.memory)
    if not fits.ok and not wishes.model_parallel:
        found.findings.insert(0, f"Nothing here fits: {fits.reason}. --model-parallel looks for layouts that do.")
    if wishes.model_parallel:
        from covey.advise.trials.layouts import add_layouts

        add_layouts(found, loaded, task, now, seed, told, wishes.limit)


def _refuse_unread(context: typer.Context, given: MeasureFlags, wishes: WishFlags, report: Path | None) -> None:
    """Refuse flags that would not be read."""
    if not given.delays and report is not None:
        raise PlanError(f"--report {report} is the page of --delays: add --delays, or omit it")
    ranking = {*names_of(MeasureFlags, WishFlags), "plugin", "until", "seed", "top"} - {"delays"}
    if given.delays and (unread := typed(context, sorted(ranking))):
        raise PlanError(f"--delays are formulas of one exchange, for every pattern: omit it, or {unread}")
    if given.quick and not given.race and not wishes.model_parallel and typed(context, ["seed"]):
        raise PlanError("--quick estimates with formulas, which have no seed: omit it, or --seed")


class AskedEngine:
    """On which engine is the advice measured? Refuses, before anything runs, what does not go together."""

    def __init__(self, given: MeasureFlags, described: bool, until: str | None, plugins: list[Path]) -> None:
        engine, race, within = given.engine, given.race, given.within
        if described and (engine or race):
            flag, use = ("--engine", "measures") if engine else ("--race", "runs on")
            raise PlanError(f"{flag} {use} real machines: omit the flags that describe a cluster, or {flag}")
        if given.quick and engine:
            raise PlanError("--quick measures nothing: omit it, or --engine")
        if race and until is None:
            raise PlanError("--race needs a target that strategies can reach first: give --until, such as accuracy:0.9")
        if within is not None and given.quick and not race:
            raise PlanError(f"--within {within} limits trials, and formulas need no time: omit it")
        self.name = engine or "local"
        self.local = not described and self.name == "local"
        self.real = not described and not given.quick and not given.delays
        own = [word for file in plugins for word in ("--plugin", str(file))]
        self.flags = shlex.join([*([] if self.local or described else ["--engine", self.name]), *own])
        self.seconds = self._read_time(within)  # of the search; with a race, that of the race is another
        self.limited = None if race or within is None else time.monotonic() + self.seconds
        from covey.spec import parse_call

        if engine and parse_call(engine).name not in ("local", "lab"):
            raise PlanError(f"--engine {engine}: advice is measured on local, or 'lab(hosts=3, rate=100mbit, cpu=0.5)'")

    def _read_time(self, within: str | None) -> float:
        from covey.simulate.units import parse_duration

        seconds = parse_duration("60s" if within is None else within)
        if seconds <= 0:
            raise PlanError(f"--within {within}: trials and races take time; write for example 60s or 5m")
        return seconds

    def measured(self, task: Task | str, told: Callable[[str], None]) -> Cluster:
        """The engine's machines, as calibration finds them."""
        from covey.calibrate import calibrate
        from covey.calibrate.rehearsal import BRIEF

        told(f"measuring {self.name}")
        return calibrate(task, self.name, told=told, batches=BATCHES, rehearsal=BRIEF)


def _situation(
    task: Task, workers: int | None, imagined: Cluster | None, *, measure: bool, here: bool, wishes: dict[str, bool]
) -> tuple[Situation, float]:  # fmt: skip
    """What is known, with this machine's own time for a batch where the cluster says nothing of it."""
    from covey.advise.situation import look, time_batch
    from covey.advise.world import sized, this_machine

    pace = time_batch(task)
    if imagined is None:
        count = workers or len(os.sched_getaffinity(0))
        return look(task, count, this_machine(pace), one_machine=True, measured=True, **wishes), pace
    many = len(imagined.machines) if len(imagined.machines) > 1 else 0
    count = workers or imagined.workers or (len(os.sched_getaffinity(0)) if here else many) or 2
    world = sized(imagined, count)
    world.check(count)
    if measure:
        world = replace(world, compute=pace)
    here = here or len(world.machines) == 1
    return look(task, count, world, one_machine=here, measured=measure or bool(world.machines), **wishes), pace


def _tell_delays(now: Situation, task: str, request: ShownRequest, report: Path | None) -> None:
    from covey.advise.delay import ExchangeCosts
    from covey.cli.tables.advice import delays_json, print_delays

    net = ExchangeCosts(bytes=now.model, bandwidth=now.narrowest)

    def drawn() -> str:
        from covey.advise.pages import delays_page
        from covey.report import render

        return render(delays_page(net, now.compute, task, request.command))

    with (
        json_file.written(request.output.json, lambda: delays_json(net, now.compute)),
        json_file.written(report, drawn, "--report") as there,
    ):
        if request.voice != "quiet":
            print_delays(json_file.console(request.output.json), net, now.compute, there)

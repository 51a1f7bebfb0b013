"""covey compare: several strategies on one task, side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options, simulate
from covey.cli.errors import INTERRUPTED, explained
from covey.cli.options import Voice, flag, teller, voice
from covey.cli.progress.page import Beside, page_beside
from covey.cli.training import ShownRequest, load_plugins, runs_of
from covey.errors import PlanError
from covey.target import parse_target

if TYPE_CHECKING:
    from covey.compare import Case, Comparison
    from covey.observe.progress import Watcher

SHORT = 10.0  # seconds of a run that need not be shown as it goes
USUAL = "bsp,asynchronous,allreduce,local_sgd,easgd"

Strategies = Annotated[
    str, flag("--strategies", "SPEC,…", "SPECs, or all, central, decentral; 'ssp(bound=1|3)' is two.", options.RUN)
]
Simulate = Annotated[bool, flag("--simulate", "", "In virtual time, with the flags of simulate.", options.RUN)]
Repeat = Annotated[
    int | None, flag("--repeat", "N", "Run each with so many seeds. (usual: 5 to 15, until one is first)", options.RUN)
]
Within = Annotated[
    str | None, flag("--within", "TIME", "Begin no further round after it. (usual: 60s)", options.BUDGET)
]
Rates = Annotated[str, flag("--rates", "A|B|…", "Factors on the learning rate to try; the best counts.", options.RUN)]
Report = Annotated[Path | None, flag("--report", "FILE", "Write a report to open in a browser.", options.KEEP)]
Continue = Annotated[
    Path | None, flag("--continue", "DIR", "Keep finished runs here, and do not repeat those.", options.KEEP)
]


def command(
    task: options.Task,
    strategies: Strategies = USUAL,
    plugin: options.Plugins = None,
    workers: options.Workers = 2,
    servers: options.Servers = None,
    engine: options.Engine = "local",
    simulated: Simulate = False,
    repeat: Repeat = None,
    within: Within = None,
    rates: Rates = "1",
    seed: options.Seed = 0,
    threads: options.Threads = None,
    link_rate: options.LinkRate = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    until: options.Until = None,
    scores: options.Scores = 8,
    report: Report = None,
    interactive: options.Interactive = False,
    folder: Continue = None,
    cluster: simulate.ClusterFile = None,
    bandwidth: simulate.Bandwidth = None,
    latency: simulate.Latency = None,
    compute: simulate.Compute = None,
    jitter: simulate.Jitter = None,
    slow: simulate.Slow = None,
    kill: simulate.Kill = None,
    runs: options.Runs = None,
    no_record: options.NoRecord = False,
    page: Beside = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train one task with several strategies, and tell which reached the target first.

    covey compare examples/digits.py --strategies 'bsp,ssp(bound=1|3),easgd' --workers 4 --until accuracy:0.9 --simulate
    """
    manner = voice(quiet, verbose)
    with explained(manner):
        imagined = simulate.described(
            cluster, bandwidth=bandwidth, latency=latency, compute=compute, jitter=jitter, slow=slow, kill=kill
        )
        simulated = simulated or engine == "simulated"
        _refuse_early(simulated, engine, imagined is not None, until, report, json)
        if interactive and report is None:
            raise PlanError("--interactive says how a report is drawn: say where it goes with --report FILE")
        load_plugins(plugin, manner)
        from covey.compare import compare
        from covey.compare.cases import entrants, parse_rates
        from covey.compare.race import rounds
        from covey.compare.running import time_limit

        kept_in = runs_of(runs, no_record)
        factors = parse_rates(rates)
        entrants(strategies, workers, factors)  # refuses what cannot be resolved, before anything runs
        rounds(repeat, racing=True)
        time_limit(repeat, within)
        engine = "simulated" if simulated else engine
        if engine == "local":
            _warn_of_cores(workers, manner)
        request = ShownRequest(
            strategy=strategies, workers=workers, engine=engine, until=until, json=json, voice=manner
        )
        with page_beside(page, kept_in, teller(manner)):
            whole = compare(
                task, strategies, workers, until=until, rates=factors, repeat=repeat, within=within, folder=folder,
                seed=seed, command=request.command, shown=_shown(workers, engine, until, manner), told=teller(manner),
                servers=servers, engine=engine, epochs=epochs, steps=steps, scores=scores, threads=threads,
                link_rate=link_rate, cluster=imagined, runs=kept_in,
            )  # fmt: skip
        _tell(whole, request, report, folder, interactive)


def _refuse_early(
    simulated: bool, engine: str, imagined: bool, until: str | None, report: Path | None, json: Path | None
) -> None:
    if until is not None:
        parse_target(until)
    json_file.check(json)
    json_file.check(report, "--report", "report.html")
    if imagined and not simulated:
        raise PlanError(f"--engine {engine} runs on real machines: flags of a simulated cluster need --simulate")


def _warn_of_cores(workers: int, manner: Voice) -> None:
    cores = len(os.sched_getaffinity(0))
    if workers > cores and manner != "quiet":
        typer.echo(
            f"{workers} workers share {cores} cores: times say as much about the sharing as about the strategies "
            "(--simulate, or --engine lab, gives each its own)",
            err=True,
        )


def _shown(workers: int, engine: str, until: str | None, manner: Voice):  # type: ignore[no-untyped-def]  # see compare
    from covey.cli.progress.display import shown

    longest = 0.0

    @contextmanager
    def show(case: Case, number: int) -> Iterator[Watcher | None]:
        """The first round as it goes, and long runs; of the others it is told how each went."""
        nonlocal longest
        title, began = f"run {number + 1} · {case} · {workers} workers · {engine}", time.monotonic()
        brief = case.repeat and manner == "normal" and longest < SHORT
        with shown(title, until, "quiet" if brief else manner) as watcher:
            yield watcher
        longest = max(longest, time.monotonic() - began)

    return show


def _tell(
    whole: Comparison, request: ShownRequest, report: Path | None, folder: Path | None, interactive: bool
) -> None:
    from covey.cli.tables.comparison import print_comparison
    from covey.compare.page import page
    from covey.report import render

    drawn = report if whole.outcomes else None
    with (
        json_file.written(request.json, whole.to_json),
        json_file.written(drawn, lambda: render(page(whole), interactive), "--report") as there,
    ):
        if request.voice != "quiet":
            console = json_file.console(request.json)
            print_comparison(console, whole)
            if there is not None:
                console.print(f"\nreport  {there}", soft_wrap=True)
    if whole.interrupted:
        if folder is not None:
            typer.echo(f"Interrupted; go on with --continue {folder}.", err=True)
        raise typer.Exit(INTERRUPTED)
    if not any(outcome.result for outcome in whole.outcomes):
        raise typer.Exit(1)

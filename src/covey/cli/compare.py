"""covey compare: several strategies on one task, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import json_file, options, simulate
from covey.cli.errors import INTERRUPTED, explained
from covey.cli.options import Voice, flag, teller
from covey.cli.progress.page import Beside, page_beside
from covey.cli.training import ShownRequest, import_ahead, load_plugins
from covey.cli.typed_flags import one_number
from covey.engines import machine
from covey.errors import PlanError
from covey.target import parse_target

if TYPE_CHECKING:
    from covey.compare import Case, Comparison
    from covey.observe.progress import Watcher

SHORT = 10.0  # seconds of a run that need not be shown as it goes
USUAL = "bsp,asynchronous,allreduce,local_sgd,easgd"


@dataclass(frozen=True, kw_only=True)
class ContestFlags(options.FlagGroup):
    """Who competes, and where."""

    strategies: Annotated[
        str, flag("--strategies", "SPEC,…", "SPECs, or all, central, decentral; 'ssp(bound=1|3)' is two.", options.RUN)
    ] = USUAL
    plugin: options.Plugins = None
    workers: Annotated[
        int | None,
        flag("--workers", "N", "How many train. (default: those of --cluster, else 2)", options.RUN, parser=one_number),
    ] = None  # fmt: skip
    servers: options.Servers = None
    preparers: options.Preparers = None
    engine: options.Engine = "local"
    simulated: Annotated[
        bool, flag("--simulate", "", "In virtual time, with the flags of simulate.", options.RUN)
    ] = False

    @property
    def place(self) -> str:
        """The engine that is meant."""
        return "simulated" if self.simulated else self.engine


@dataclass(frozen=True, kw_only=True)
class RoundFlags(options.FlagGroup):
    """How often each runs, and with which rates."""

    repeat: Annotated[
        int | None,
        flag("--repeat", "N", "Run each with this many seeds. (default: 5 to 15, until one is first)", options.RUN),
    ] = None
    within: Annotated[
        str | None, flag("--within", "TIME", "Start no new round after this time. (default: 60s)", options.BUDGET)
    ] = None
    rates: Annotated[
        str, flag("--rates", "A|B|…", "Factors on the learning rate to try; the best counts.", options.RUN)
    ] = "1"


@dataclass(frozen=True, kw_only=True)
class ManyScoresFlags(options.OneRunFlags):
    """As of one run; the moment in which a target is reached must be known well."""

    scores: Annotated[
        int | None,
        flag("--scores", "N", "How often to score the model in a pass. (default: 8)", options.BUDGET, least=1),
    ] = None  # type: ignore[assignment]  # what nobody gives is left to the comparison
    best: Annotated[
        str | None, flag("--best", "METRIC", "Also show the best score of this metric in each run.", options.KEEP)
    ] = None

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ReportFlags(options.FlagGroup):
    """What is kept of a comparison."""

    report: Annotated[
        Path | None, flag("--report", "FILE", "Write a report to open in a browser.", options.KEEP)
    ] = None
    interactive: options.Interactive = False
    folder: Annotated[
        Path | None, flag("--continue", "DIR", "Keep finished runs here, and do not repeat those.", options.KEEP)
    ] = None


@options.grouped
def command(
    *,
    task: options.Task,
    contest: ContestFlags,
    rounds: RoundFlags,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    link_rate: options.LinkRate = None,
    budget: ManyScoresFlags,
    kept: ReportFlags,
    cluster: simulate.FailingClusterFlags,
    record: options.RecordFlags,
    page: Beside = False,
    output: options.OutputFlags,
) -> None:
    """Train one task with several strategies, and tell which reached the target first.

    covey compare examples/digits.py --strategies 'bsp,ssp(bound=1|3),easgd' --workers 4 --until accuracy:0.9 --simulate
    """
    manner, engine, until = output.voice, contest.place, budget.until
    with explained(manner):
        imagined = cluster.described()
        workers = contest.workers or (imagined.workers if imagined else None) or 2
        _refuse_early(contest, imagined is not None, until, kept, output)
        import_ahead(engine, workers, threads)
        load_plugins(contest.plugin, manner)
        from covey.compare import compare
        from covey.compare.cases import entrants, parse_rates
        from covey.compare.race import rounds as number_of_rounds
        from covey.compare.running import time_limit

        kept_in = record.folder
        factors = parse_rates(rounds.rates)
        entrants(contest.strategies, workers, factors)  # refuses what cannot be resolved, before anything runs
        number_of_rounds(rounds.repeat, racing=True)
        time_limit(rounds.repeat, rounds.within)
        if engine == "local":
            _warn_of_cores(workers, manner)
        request = ShownRequest(
            strategy=contest.strategies, workers=workers, engine=engine, until=until, output=output
        )
        with page_beside(page, kept_in, teller(manner)):
            whole = compare(
                task, contest.strategies, workers, rates=factors, repeat=rounds.repeat, within=rounds.within,
                folder=kept.folder, seed=seed, command=request.command, shown=_shown(workers, engine, until, manner),
                told=teller(manner), servers=contest.servers, preparers=contest.preparers, engine=engine,
                threads=threads, link_rate=link_rate,
                cluster=imagined, runs=kept_in, **budget.arguments(),
            )  # fmt: skip
        _tell(whole, request, kept)


def _refuse_early(
    contest: ContestFlags, imagined: bool, until: str | None, kept: ReportFlags, output: options.OutputFlags
) -> None:
    engine = contest.place
    if until is not None:
        parse_target(until)
    json_file.check(output.json)
    json_file.check(kept.report, "--report", "report.html")
    if engine != "simulated":
        machine.check_processes()
    if contest.simulated and contest.engine not in ("local", "simulated"):
        raise PlanError(f"--simulate is in virtual time, and --engine {contest.engine} on real machines: omit either")
    if imagined and engine != "simulated":
        raise PlanError(f"--engine {engine} runs on real machines: flags of a simulated cluster need --simulate")
    if kept.interactive and kept.report is None:
        raise PlanError("--interactive says how a report is drawn: say where it goes with --report FILE")


def _warn_of_cores(workers: int, manner: Voice) -> None:
    cores = machine.cores()
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


def _tell(whole: Comparison, request: ShownRequest, kept: ReportFlags) -> None:
    from covey.cli.tables.comparison import print_comparison
    from covey.compare.page import page
    from covey.report import render

    drawn = kept.report if whole.outcomes else None
    with (
        json_file.written(request.output.json, whole.to_json),
        json_file.written(drawn, lambda: render(page(whole), kept.interactive), "--report") as there,
    ):
        if request.voice != "quiet":
            console = json_file.console(request.output.json)
            print_comparison(console, whole)
            if there is not None:
                console.print(f"\nreport  {there}", soft_wrap=True)
    if whole.interrupted:
        if kept.folder is not None:
            typer.echo(f"Interrupted; go on with --continue {kept.folder}.", err=True)
        raise typer.Exit(INTERRUPTED)
    if not any(outcome.result for outcome in whole.outcomes):
        raise typer.Exit(1)

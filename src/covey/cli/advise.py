"""covey advise: which strategy should I use, and why?"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from covey.cli import json_file, options, simulate
from covey.cli.errors import explained
from covey.cli.options import flag, teller, voice
from covey.cli.training import ShownRequest, load_plugins
from covey.target import parse_target

if TYPE_CHECKING:
    from covey.advise.situation import Situation
    from covey.simulate import Cluster
    from covey.task import Task

WISHES = "What matters"

Quick = Annotated[bool, flag("--quick", "", "By formulas alone, in a moment.", options.RUN)]
Delays = Annotated[bool, flag("--delays", "", "The least delay of every pattern of exchange instead.", options.RUN)]
Report = Annotated[Path | None, flag("--report", "FILE", "The delays as a page to open in a browser.", options.KEEP)]
Workers = Annotated[
    int | None, flag("--workers", "N", "How many there are. (usual: those of --cluster, else cores)", options.RUN, 1)
]
Repeatable = Annotated[bool, flag("--repeatable", "", "Two runs must give the same model.", WISHES)]
Once = Annotated[bool, flag("--exactly-once", "", "Every sample must count once in each epoch.", WISHES)]
Spot = Annotated[bool, flag("--spot", "", "Machines may vanish.", WISHES)]
Top = Annotated[int, flag("--top", "N", "How many to show.", options.OUTPUT, least=1)]


def command(
    task: options.Task,
    workers: Workers = None,
    plugin: options.Plugins = None,
    until: options.Until = None,
    quick: Quick = False,
    delays: Delays = False,
    seed: options.Seed = 0,
    cluster: simulate.ClusterFile = None,
    bandwidth: simulate.Bandwidth = None,
    latency: simulate.Latency = None,
    compute: simulate.Compute = None,
    jitter: simulate.Jitter = None,
    slow: simulate.Slow = None,
    repeatable: Repeatable = False,
    once: Once = False,
    spot: Spot = False,
    report: Report = None,
    top: Top = 5,
    json: options.Json = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Rank the strategies for a task and a cluster: times, costs, reasons, risks, and the command to run.

    covey advise examples/digits.py --workers 8 --bandwidth 100mbit --slow 3:4x --until accuracy:0.95
    """
    manner = voice(quiet, verbose)
    with explained(manner):
        imagined = simulate.described(
            cluster, bandwidth=bandwidth, latency=latency, compute=compute, jitter=jitter, slow=slow
        )
        if until is not None:
            parse_target(until)
        json_file.check(json)
        json_file.check(report, "--report", "delays.html")
        load_plugins(plugin, manner)
        from covey.task import load_task

        told = teller(manner)
        loaded = load_task(task, told)
        told("measuring a batch on this machine")
        now, pace = _situation(
            loaded, workers, imagined, measure=cluster is None and compute is None,
            wishes={"reproducible": repeatable, "once": once, "spot": spot},
        )  # fmt: skip
        request = ShownRequest(strategy="", workers=now.workers, engine="", until=until, json=json, voice=manner)
        if delays:
            _tell_delays(now, task, request, report)
            return
        from covey.advise.choose import advise
        from covey.advise.trial import SimulatedTrials
        from covey.cli.tables.advice import print_advice

        trials = None if quick else SimulatedTrials(task, now, pace, seed)
        found = advise(loaded, task, now, until=until, trials=trials, told=told)
        with json_file.written(json, found.to_json):
            if manner != "quiet":
                print_advice(json_file.console(json), found, now, len(found.choices) if manner == "verbose" else top)


def _situation(
    task: Task, workers: int | None, imagined: Cluster | None, *, measure: bool, wishes: dict[str, bool]
) -> tuple[Situation, float]:  # fmt: skip
    """What is known, with this machine's own time for a batch where the cluster says nothing of it."""
    from covey.advise.situation import look, time_batch
    from covey.advise.world import sized, this_machine

    pace = time_batch(task)
    if imagined is None:
        count = workers or len(os.sched_getaffinity(0))
        return look(task, count, this_machine(pace), one_machine=True, measured=True, **wishes), pace
    count = workers or imagined.workers or 2
    world = sized(imagined, count)
    world.check(count)
    if measure:
        world = replace(world, compute=pace)
    here = len(world.machines) == 1
    return look(task, count, world, one_machine=here, measured=measure or here, **wishes), pace


def _tell_delays(now: Situation, task: str, request: ShownRequest, report: Path | None) -> None:
    from covey.advise.delay import ExchangeCosts
    from covey.cli.tables.advice import delays_json, print_delays

    net = ExchangeCosts(bytes=now.model, bandwidth=now.narrowest)

    def drawn() -> str:
        from covey.advise.pages import delays_page
        from covey.report import render

        return render(delays_page(net, now.compute, task, request.command))

    with (
        json_file.written(request.json, lambda: delays_json(net, now.compute)),
        json_file.written(report, drawn, "--report") as there,
    ):
        if request.voice != "quiet":
            print_delays(json_file.console(request.json), net, now.compute, there)

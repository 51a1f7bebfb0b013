"""covey scale: what if there were a hundred times as many workers?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options, simulate
from covey.cli.errors import explained
from covey.cli.options import flag, teller
from covey.cli.training import ShownRequest

if TYPE_CHECKING:
    from rich.console import Console

    from covey.advise.scale import Scaling

ASSUMED = ("compute", "bandwidth", "latency")
USUAL = "allreduce,bsp,local_sgd(period=8),easgd(period=8),gosgd over torus"

Strategies = Annotated[str, flag("--strategies", "SPEC,…", "SPECs; 'ssp(bound=1|3)' is two.", options.RUN)]
Workers = Annotated[str, flag("--workers", "A|B|…", "How many workers, each in its turn.", options.RUN)]
Report = Annotated[Path | None, flag("--report", "FILE", "Write charts to open in a browser.", options.KEEP)]


@options.grouped
def command(
    *,
    task: options.Task,
    strategies: Strategies = USUAL,
    workers: Workers = "1|2|4|8|16|32|64",
    servers: options.Servers = None,
    seed: options.Seed = 0,
    cluster: simulate.ClusterFlags,
    report: Report = None,
    output: options.OutputFlags,
) -> None:
    """Time strategies on more and more workers, in virtual time: speed-up, time per sample and cost.

    Nothing is trained. The groups of a cluster file keep their proportions at every size.

    covey scale examples/digits.py --strategies allreduce,easgd --workers '1|10|100|1000' --bandwidth 10gbit
    """
    manner, json = output.voice, output.json
    with explained(manner):
        imagined = cluster.described()
        json_file.check(json)
        json_file.check(report, "--report", "scale.html")
        from covey.advise.scale import parse_sizes, scale
        from covey.compare.cases import specs
        from covey.simulate import Cluster
        from covey.task import load_task

        sizes = parse_sizes(workers)
        chosen = specs(strategies, *sizes)
        request = ShownRequest(strategy=strategies, workers=max(sizes), engine="", until=None, output=output)
        told = teller(manner)
        whole = scale(
            task, chosen, sizes, imagined or Cluster(), batch=load_task(task, told).step_size, servers=servers,
            seed=seed, told=told, command=request.command, sources=_sources(cluster),
        )  # fmt: skip
        with (
            json_file.written(json, whole.to_json),
            json_file.written(report, lambda: _drawn(whole), "--report") as there,
        ):
            if manner != "quiet":
                _print(json_file.console(json), whole, there)
        if all(point.failure for point in whole.points):
            raise typer.Exit(1)


def _sources(given: simulate.ClusterFlags) -> dict[str, str]:
    """Who said what of the cluster."""
    if given.cluster is not None:
        return dict.fromkeys(ASSUMED, str(given.cluster))
    return {name: f"--{name}" for name in ASSUMED if getattr(given, name) is not None}


def _drawn(whole: Scaling) -> str:
    from covey.advise.pages import scaling_page
    from covey.report import render

    return render(scaling_page(whole))


def _print(console: Console, whole: Scaling, report: Path | None) -> None:
    from rich.table import Table

    priced = any(point.money is not None for point in whole.points)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("speed-up" + (" (money)" if priced else ""), overflow="fold", min_width=12)
    for size in whole.sizes:
        table.add_column(f"{size:,}", justify="right", no_wrap=True)
    for spec in whole.specs:
        cells = []
        for size in whole.sizes:
            point = whole.at(spec, size)
            cell = "-" if point is None or point.failure else f"{point.speed_up:,.3g}x"
            cells.append(cell + (f" ({point.money:.3g})" if point is not None and point.money is not None else ""))
        table.add_row(spec, *cells)
    console.print(table)
    for line in whole.assumed.lines(whole.task):
        console.print(line, style="dim", markup=False, highlight=False)
    for point in whole.points:
        if point.failure:
            console.print(f"{point.spec} on {point.workers:,}: {point.failure}", style="yellow", markup=False)
    if report is not None:
        console.print(f"\nreport  {report}", soft_wrap=True)

"""covey calibrate: measure this machine and a task, so that simulate can predict."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag, teller

if TYPE_CHECKING:
    from rich.console import Console

    from covey.simulate import Cluster

USUAL = Path("cluster.toml")

Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FILE", help="The cluster file to write.", rich_help_panel=options.KEEP),
]
Engine = Annotated[str, flag("--engine", "ENGINE", "local, or 'lab(hosts=3, rate=100mbit, cpu=0.5)'.", options.RUN)]
Batches = Annotated[int, flag("--batches", "N", "How many batches each worker computes.", options.RUN, least=5)]


@options.grouped
def command(
    *,
    task: options.Task,
    output: Output = USUAL,
    engine: Engine = "local",
    batches: Batches = 40,
    threads: options.Threads = None,
    given: options.OutputFlags,
) -> None:
    """Measure this machine and a task with real processes, and write what simulate has to know.

    covey calibrate examples/digits.py -o cluster.toml; covey simulate examples/digits.py --cluster cluster.toml
    """
    manner, json = given.voice, given.json
    with explained(manner):
        json_file.check(json)
        json_file.check(output, "--output", "cluster.toml")
        from covey.calibrate import calibrate
        from covey.simulate import written

        found = calibrate(task, engine, batches=batches, threads=threads, told=teller(manner))
        text = written(found, f"Measured by: {shlex.join(['covey', *sys.argv[1:]])}")
        with (
            json_file.written(json, lambda: _told(found)),
            json_file.written(output, lambda: text, "--output") as there,
        ):
            if manner != "quiet":
                _show(found, there, json_file.console(json))


def _told(cluster: Cluster) -> str:
    from dataclasses import asdict
    from json import dumps

    return dumps(asdict(cluster), indent=1) + "\n"


def _show(cluster: Cluster, output: Path | None, console: Console) -> None:
    from rich.table import Table

    from covey.simulate import format_duration as shown

    handling, local = cluster.handling, cluster.local
    rows = {
        "batch": f"{shown(cluster.compute)}, give or take {cluster.jitter:.0%}",
        "optimizer step": f"{shown(handling.step)} and {shown(cluster.update * 1e6)} for a megabyte",
        "message": f"{shown(handling.send.each)} to send, {shown(handling.receive.each)} to receive",
        "megabyte between machines": f"{shown(cluster.link.cpu.byte * 1e6)} of CPU time at either end",
    }
    if local is not None:
        rows["megabyte on one machine"] = f"{shown(local.cpu.byte * 1e6)} of CPU time at either end"
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows.items():
        grid.add_row(f"[dim]{name}[/]", value)
    console.print(grid)
    if output is not None:
        console.print(
            f"\nwritten to {output}, for --cluster {output} of covey simulate and covey compare", soft_wrap=True
        )

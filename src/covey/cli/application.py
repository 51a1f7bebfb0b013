"""Which commands are there? Importing this takes 0.3 s, so `main` does without it where it can."""

from __future__ import annotations

from typing import Annotated

import typer

from covey.cli import (
    advise,
    calibrate,
    check_strategy,
    compare,
    data,
    demo,
    doctor,
    federate,
    jobs,
    lab,
    launch,
    models,
    run,
    runs,
    scale,
    simulate,
    strategies,
    trace,
)  # fmt: skip
from covey.cli.layouts import cut, search
from covey.cli.models import serving
from covey.cli.models.versions import lineage
from covey.cli.progress import page
from covey.cli.tables.overview import PURPOSE
from covey.cli.tuning import tune
from covey.version import __version__

app = typer.Typer(
    name="covey",
    help=PURPOSE,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # cli/errors.py says what went wrong
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.command)
app.command("run")(run.command)
app.command("simulate")(simulate.command)
app.command("calibrate")(calibrate.command)
app.command("compare")(compare.command)
app.command("advise")(advise.command)
app.command("scale")(scale.command)
app.command("tune")(tune.command)
app.command("cut")(cut.command)
app.command("search")(search.command)
app.command("trace")(trace.command)
app.command("launch", cls=launch.ScriptFirst, context_settings={"allow_interspersed_args": False})(launch.command)
app.command("strategies")(strategies.command)
app.command("check-strategy")(check_strategy.command)
app.command("doctor")(doctor.command)
app.command("page")(page.command)
app.command("serve")(serving.command)
app.command("lineage")(lineage)
app.add_typer(federate.app, name="federate")
app.add_typer(runs.app, name="runs")
app.add_typer(data.app, name="data")
app.add_typer(jobs.app, name="jobs")
app.add_typer(models.app, name="models")
app.add_typer(lab.app, name="lab")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"covey {__version__}")
        raise typer.Exit


@app.callback()
def _covey(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass

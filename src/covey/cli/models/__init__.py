"""How does a person ask for versions of models? covey models, and covey lineage."""

from __future__ import annotations

import typer

from covey.cli.models import exporting, versions

app = typer.Typer(help="List, show, compare, promote, export and remove registered models.", no_args_is_help=True)
app.command("list")(versions.list_models)
app.command("show")(versions.show)
app.command("diff")(versions.diff)
app.command("promote")(versions.promote)
app.command("export")(exporting.command)
app.command("rm")(versions.rm)

"""How does a person look after data that is far away?"""

from __future__ import annotations

import typer

from covey.cli.data import cache

app = typer.Typer(help="Look after data that is far away.", no_args_is_help=True)
app.add_typer(cache.app, name="cache")

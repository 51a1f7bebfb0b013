"""How does a person look after data sets, near and far?"""

from __future__ import annotations

import typer

from covey.cli.data import cache, shards

app = typer.Typer(
    help="Pack, check and show data sets in shards; look after the cache of far ones.", no_args_is_help=True
)
app.command("pack")(shards.pack)
app.command("verify")(shards.verify)
app.command("show")(shards.show)
app.add_typer(cache.app, name="cache")

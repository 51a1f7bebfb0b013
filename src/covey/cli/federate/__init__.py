"""How does a person ask for a federated run?"""

from __future__ import annotations

import typer

from covey.cli.federate import join, keys, serve, simulate

app = typer.Typer(help="Train with clients that keep their data, and come and go.", no_args_is_help=True)


@app.callback()
def _federate() -> None:
    """Train with clients that keep their data, and come and go."""


app.command("simulate")(simulate.command)
app.command("serve")(serve.command)
app.command("join")(join.command)
app.add_typer(keys.app, name="keys")

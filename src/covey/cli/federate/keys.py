"""covey federate keys: who may take part in a federated run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.options import flag

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of keys of a service.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What the client is called.")]

app = typer.Typer(help="Enrol clients of a service, and revoke them.", no_args_is_help=True)


@app.command("add")
def add(
    folder: Folder,
    name: Name,
    samples: Annotated[
        int, flag("--samples", "N", "The most samples that a report of it may count.", options.RUN, least=1)
    ],
    out: Annotated[
        Path | None, flag("--out", "FILE", "Where to write its key. (default: NAME.key)", options.KEEP)
    ] = None,
) -> None:
    """Enrol a client, and write the key that it needs to take part.

    covey federate keys add keys alice --samples 500
    """
    with explained("normal"):
        from covey.engines.service.guest_keys import KeyFolder

        to = out or Path(f"{name}.key")
        guest = KeyFolder(folder).add(name, samples, to)
        typer.echo(f"client {guest.number} is {name}; hand {to} to it in secret: whoever has it is {name}")


@app.command("list")
def show(folder: Folder) -> None:
    """Show who is enrolled.

    covey federate keys list keys
    """
    with explained("normal"):
        from covey.engines.service.guest_keys import KeyFolder

        KeyFolder(folder).service()  # refuses a folder without keys
        for guest in KeyFolder(folder).guests().guests:
            state = "revoked" if guest.revoked else f"up to {guest.samples} samples"
            typer.echo(f"client {guest.number}  {guest.name}  {state}")


@app.command("identity")
def identity(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="The key of this client.")],
) -> None:
    """Show this client's line in the list of identities; its key gets an identity if it has none.

    The other clients need the line for secure sums: hand it to them in a way that the service cannot change.

    covey federate keys identity alice.key
    """
    with explained("normal"):
        from covey.run.federated.client_identities import identified

        typer.echo(identified(key))


@app.command("revoke")
def revoke(folder: Folder, name: Name) -> None:
    """Let a client take part no more; a service that runs cuts it off within a second or two.

    covey federate keys revoke keys alice
    """
    with explained("normal"):
        from covey.engines.service.guest_keys import KeyFolder

        KeyFolder(folder).revoke(name)
        typer.echo(f"{name} is revoked")

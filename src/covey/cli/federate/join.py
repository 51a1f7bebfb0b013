"""covey federate join: take part in a federated run with the data of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.cli import options
from covey.cli.errors import FAILED, explained
from covey.cli.options import flag
from covey.cli.training import importing


def command(
    service: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the service listens.")],
    task: Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="The task, the same file as the service's.")],
    key: Annotated[Path, flag("--key", "FILE", "This client's key, from whoever runs the service.", options.RUN)],
    data: Annotated[
        str | None, flag("--data", "FILE:NAME", "This client's data. (default: the data of the task)", options.RUN)
    ] = None,
    patience: Annotated[
        str, flag("--patience", "TIME", "How long to dial again while nobody answers.", options.BUDGET)
    ] = "10m",
    identities: Annotated[
        Path | None,
        flag("--identities", "FILE", "By which the clients of secure sums know each other.", options.RUN),
    ] = None,
    fewest: Annotated[
        int, flag("--fewest", "N", "Take no part in secure sums that fewer clients can open.", options.RUN, least=2)
    ] = 2,
    workers: Annotated[
        int, flag("--workers", "N", "Processes here that train together as this client.", options.RUN, least=1)
    ] = 1,
    quiet: options.Quiet = False,
) -> None:
    """Take part in a federated run with the data of this machine, until it is over or Ctrl-C.

    covey federate join service.example:7070 digits.py --data mine.py:data --key alice.key
    """
    with explained("quiet" if quiet else "normal"):
        with importing("quiet" if quiet else "normal"):
            from covey.run.federated.joining import join

        def say(line: str) -> None:
            if not quiet:
                typer.echo(line)

        done = join(
            service, task, key=key, data=data, patience=patience, identities=identities, fewest=fewest,
            workers=workers, say=say,
        )  # fmt: skip
        smallest = f"; smallest sum: {done.smallest} clients" if done.smallest else ""
        say(f"came {done.visits} times, trained {done.reports} times, {done.refused} reports were refused{smallest}")
        if done.withdrew and not done.reports:
            typer.echo(f"this client took part in no round: {done.withdrew}", err=True)
            raise typer.Exit(FAILED)

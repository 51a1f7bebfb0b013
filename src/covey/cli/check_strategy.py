"""covey check-strategy: do the strategies and codecs of a file keep the promises of covey's own?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import REFUSED, explained
from covey.cli.training import importing

File = Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that registers strategies or codecs.")]
Engine = Annotated[
    str | None, options.flag("--engine", "ENGINE", "Also train each on it, such as local or torchrun.", options.RUN)
]


@options.grouped
def command(*, file: File, engine: Engine = None, output: options.OutputFlags) -> None:
    """Check the strategies and codecs of a file, in virtual time and on an engine; exit 2 where a promise is broken.

    covey check-strategy examples/plugins/own_strategies.py
    """
    manner, json = output.voice, output.json
    with explained(manner):
        json_file.check(json)
        with importing(manner):
            import msgspec

            from covey.check.checking import check
        console, found = json_file.console(json), []
        for one in check(file, engine):
            found.append(one)
            if manner != "quiet":
                console.print(f"{'no ' if one.why else 'ok '} {one.name}: {one.law}", highlight=False, soft_wrap=True)
            if one.why:
                typer.echo(f"{one.name}: {one.law}: {one.why}", err=True)
        json_file.write(json, msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n")
        if any(one.why for one in found):
            raise typer.Exit(REFUSED)

"""How does a person ask?"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.cli.application import app as app

COMPLETING = "_COVEY_COMPLETE"  # set by the shell while the Tab key is pressed
WIDEST = 4  # digits of the columns of a terminal


def main() -> None:
    """The `covey` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar or an arrow gets a question mark, not a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    for name in ("COLUMNS", "LINES"):  # rich would fail to read it, or draw boxes as wide
        if len(os.environ.get(name, "")) > WIDEST:
            del os.environ[name]
    asked = sys.argv[1:]
    if COMPLETING not in os.environ and (not asked or asked in (["-h"], ["--help"])):
        _print_overview()
        sys.exit(0 if asked else 2)  # without arguments, as typer does
    from covey.cli.application import app

    app(prog_name="covey")


def _print_overview() -> None:
    from covey.cli.tables.overview import overview

    try:
        print(overview(), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # a reader that has enough, such as `head`
            print(f"Error: the output could not be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def __getattr__(name: str) -> Any:
    """The commands, imported when they are asked for: the overview needs neither typer nor rich."""
    if name == "app":
        from covey.cli.application import app

        return app
    raise AttributeError(f"module 'covey.cli' has no attribute {name!r}")

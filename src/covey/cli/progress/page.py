"""covey page: recorded runs in a browser, while they go; and the same beside a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from covey.cli.errors import explained
from covey.cli.options import OUTPUT, flag
from covey.errors import PlanError

Folder = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="The records, or a queue of jobs. (default: COVEY_RUNS, or runs)")
]
Host = Annotated[str, flag("--host", "ADDRESS", "Where to listen; not on 127.0.0.1, a token is needed.", OUTPUT)]
Port = Annotated[int, flag("--port", "PORT", "Which port; 0 takes a free one.", OUTPUT, least=0)]
Beside = Annotated[bool, flag("--page", "", "Show the run in a browser while it goes.", OUTPUT)]


def command(folder: Folder = None, host: Host = "127.0.0.1", port: Port = 8470) -> None:
    """Show recorded runs in a browser, while they go.

    covey page runs
    """
    with explained("normal"):
        from covey.page.serving import serve

        place = folder or Path(os.environ.get("COVEY_RUNS") or "runs")
        if folder is not None and not folder.is_dir():
            raise PlanError(f"there is no folder {folder}; covey run records into `runs`, or where --runs DIR says")
        if port > 65535:
            raise PlanError(f"--port {port}: the highest port is 65535")
        serve(place, host, port, lambda line: print(line, flush=True))


@contextmanager
def page_beside(wanted: bool, runs: Path | bool | None, say: Callable[[str], None]) -> Iterator[None]:
    """A page over the folder of records, as a process of its own that ends with this block."""
    place = os.environ.get("COVEY_RUNS", "runs") if runs is None else str(runs or "")
    if not wanted:
        yield
        return
    if not place:
        raise PlanError("--page shows the record of a run, and --no-record keeps none: give one of them")
    from covey.engines.process.forking.die_with_parent import leashed

    Path(place).mkdir(parents=True, exist_ok=True)
    words = leashed([sys.executable, "-m", "covey", "page", place, "--port", "0"], signal.SIGTERM)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as page:
        try:
            assert page.stdout is not None
            if not (address := page.stdout.readline().strip()):
                raise PlanError(
                    "the page could not be started, for the reason above: run without --page, or start `covey page` "
                    "by itself"
                )
            say(f"page: {address}")
            yield
        finally:
            page.terminate()

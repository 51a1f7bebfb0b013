"""covey demo: what does it look like, without a file of one's own?"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated

import typer

from covey.cli import compare, options
from covey.cli.progress.page import Beside

TARGET = "accuracy>=0.95"


@options.grouped
def command(
    *,
    report: Annotated[
        Path, options.flag("--report", "FILE", "Write a report to open in a browser.", options.KEEP)
    ] = Path("report.html"),
    page: Beside = False,
    output: options.OutputFlags,
) -> None:
    """Compare five strategies on handwritten digits, with two workers, in about a minute.

    covey demo
    """
    usual = {name: flag.default for name, flag in signature(compare.command).parameters.items()}
    asked = {"task": str(task_file()), "until": TARGET, "report": report, "page": page, **output.arguments()}
    compare.command(**{**usual, **asked})
    if output.voice == "normal" and output.json is None:
        typer.echo(f"task    {task_file()}  (copy it, and put in your own model and data)")


def task_file() -> Path:
    """The file that is trained, which is part of the package."""
    return Path(__file__).parent / "task.py"

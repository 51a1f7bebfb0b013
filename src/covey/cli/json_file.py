"""Where `--json` goes: a file, or the output for `-`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import PlanError

if TYPE_CHECKING:
    from rich.console import Console

OUTPUT = Path("-")


def check(path: Path | None, flag: str = "--json", usual: str = "result.json") -> None:
    """Refuse a place that cannot be written, before hours of training are spent on it."""
    if path is None or path == OUTPUT:
        return
    if path.is_dir():
        raise PlanError(f"{flag} {path} is a folder; name a file in it, such as {path / usual}")
    if not path.absolute().parent.is_dir():
        raise PlanError(f"{flag} {path}: there is no folder {path.parent}; make it first (mkdir -p {path.parent})")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise PlanError(f"{flag} {path} may not be written; choose a folder of your own")


def console(path: Path | None) -> Console:
    """Where people read: not on the output, where that is the JSON's."""
    from rich.console import Console

    return Console(stderr=path == OUTPUT, highlight=False)


def write(path: Path | None, text: str) -> None:
    """Write the text whole or not at all."""
    if path is None:
        return
    if path == OUTPUT:
        sys.stdout.write(text)
    elif path.exists() and not path.is_file():  # a pipe, /dev/stdout: must not be replaced by a file
        path.write_text(text, encoding="utf-8")
    else:
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

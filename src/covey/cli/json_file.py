"""Where `--json` goes: a file, or the output for `-`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from covey import atomic_file
from covey.errors import CoveyError

if TYPE_CHECKING:
    from rich.console import Console

OUTPUT = Path("-")


def check(path: Path | None, flag: str = "--json", usual: str = "result.json") -> None:
    """Refuse a place that cannot be written, before hours of training are spent on it."""
    if path is not None and path != OUTPUT:
        atomic_file.check(path, f"{flag} {path}", usual)


def console(path: Path | None) -> Console:
    """Where people read: not on the output, where that is the JSON's."""
    from covey.cli.tables.console import SafeConsole

    return SafeConsole(stderr=path == OUTPUT, highlight=False)


def write(path: Path | None, text: str, flag: str = "--json") -> None:
    """Write the text whole or not at all."""
    try:
        if path == OUTPUT:
            sys.stdout.write(text)
            sys.stdout.flush()
        elif path is not None:
            atomic_file.write(atomic_file.meant(path), text)
    except OSError as error:
        raise CoveyError(f"{flag} {path} could not be written: {error.strerror or error}") from None


@contextmanager
def written(path: Path | None, text: Callable[[], str], flag: str = "--json") -> Iterator[Path | None]:
    """Write the text, and where it lies now; if that fails, what is inside is done all the same, and then it is told.

    So a disk that has become full takes neither the table nor another file away from the person.
    """
    failure: CoveyError | None = None
    try:
        if path is not None:
            write(path, text(), flag)
    except CoveyError as error:
        failure = error
    try:
        yield None if failure else path
    except CoveyError as error:
        if failure:
            error.add_note(str(failure))
        raise
    if failure:
        raise failure

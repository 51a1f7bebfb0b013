"""How is a name called that somebody typed? Suggestions for misspelt ones, and options as flags or as keywords."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

_CALLED = re.compile(r"(.+?):([A-Za-z_][A-Za-z0-9_]*)\((.*)\)", re.DOTALL)
FEW = 8  # names that are all shown
NEAREST = 3
TYPED = "COVEY_TYPED"  # in the environment, which roles inherit: a command line has asked for this
FLAGS: Mapping[str, str] = {"folder": "continue"}  # keywords of Python whose flags are called otherwise


@contextmanager
def typed() -> Iterator[None]:
    """Inside, and in processes that start meanwhile, options are called by their flags."""
    before = os.environ.get(TYPED)
    os.environ[TYPED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TYPED]


def option(name: str, value: object = None) -> str:
    """An option as the person who asked writes it: `--resume DIR` on a command line, `resume="DIR"` in Python."""
    if os.environ.get(TYPED):
        flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
        return flag if value is None or value is True else f"{flag} {value}"
    if value is None:
        return f"{name}=…"
    return f"{name}={value}" if isinstance(value, int | float) else f'{name}="{value}"'


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what may have been meant, or all there is where that is little."""
    names = list(known)
    close = nearest(name, names)
    if len(names) <= FEW:
        return f"{f'; did you mean {close[0]!r}?' if close else '.'} There are: {', '.join(names)}"
    if close:
        return f"; did you mean {_either(close)}?"
    return f"; the nearest are {_either(get_close_matches(name, names, n=NEAREST, cutoff=0.0))}."


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names that are spelt much alike, the most alike first; else those that begin so."""
    names = list(known)
    longer = [one for one in names if name and one.startswith(name)]
    return get_close_matches(name, names, n=NEAREST) or longer[:NEAREST]


def _either(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return " or ".join([*([", ".join(quoted[:-1])] if quoted[1:] else []), quoted[-1]])


class TaskName(NamedTuple):
    """`path/file.py`, `path/file.py:NAME` or `path/file.py:NAME(key=value, …)`, in its parts."""

    file: Path
    name: str  # empty where none is given
    arguments: str | None = None  # what stands in the parentheses

    def absolute(self) -> str:
        """The same, for processes that are in another folder."""
        called = "" if self.arguments is None else f"({self.arguments})"
        return os.path.abspath(self.file) + (f":{self.name}{called}" if self.name else "")


def task_name(where: str) -> TaskName:
    """Take the name of a task apart, on a host that may not have its file; a path may hold colons."""
    if Path(where).is_file():
        return TaskName(Path(where), "")
    if called := _CALLED.fullmatch(where):
        return TaskName(Path(called[1]), called[2], called[3])
    path, colon, name = where.rpartition(":")
    return TaskName(Path(path), name) if colon else TaskName(Path(where), "")


def task_file(where: str) -> Path:
    """The file of a task."""
    found = task_name(where)
    return found.file if found.name.isidentifier() else Path(where)

"""One row of the page's table, and what makes text and numbers of files fit for it."""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path

import msgspec


class RunRow(msgspec.Struct, kw_only=True):
    """A run in one line. Numbers are those of its last score and moment."""

    id: str
    parent: str = ""  # the comparison, search or job that it is a run of
    kind: str = "run"
    status: str = "running"
    why: str = ""  # it ended: an error, or the verdict of a comparison
    strategy: str = ""
    task: str = ""
    engine: str = ""
    workers: int = 0
    began: str = ""
    seconds: float = 0.0
    samples: int = 0
    bytes: int = 0
    loss: float | None = None
    rate: float | None = None  # samples per second of training
    metrics: dict[str, float | None] = {}


def encodable(text: str) -> str:
    """Names of files may be bytes that are no text; these become escapes, as JSON cannot hold them."""
    return text.encode("utf-8", "backslashreplace").decode()


def changed_since(path: Path) -> tuple[int, ...]:
    """Which file this is, and when it or its permissions changed last: another value if anything has."""
    try:
        state = os.lstat(path)
    except OSError:
        return ()
    return state.st_ino, state.st_ctime_ns, state.st_size


def finite(value: float | None) -> float | None:
    """There is no NaN in JSON."""
    return float(value) if value is not None and isfinite(value) else None

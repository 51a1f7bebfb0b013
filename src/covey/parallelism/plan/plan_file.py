"""The layout that `covey search --save` has written, for `mesh(plan=FILE)`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from covey.errors import PlanError

SCHEMA = "covey.plan/1"


class SavedLayout(msgspec.Struct, frozen=True):
    """What a run needs of such a file."""

    schema: str
    strategy: str
    workers: int
    task: str = ""


def read_layout(path: str, workers: int) -> SavedLayout:
    """A saved layout, if it is one for so many workers."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=SavedLayout)
    except OSError as error:
        raise PlanError(f"mesh(plan={path}): {error.strerror or error}: write it with covey search --save") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PlanError(f"mesh(plan={path}): this is no {SCHEMA}: write it with covey search --save") from None
    if found.schema != SCHEMA:
        raise PlanError(f"mesh(plan={path}): this is {found.schema!r}, not {SCHEMA}: write it with covey search --save")
    if found.workers != workers:
        raise PlanError(f"mesh(plan={path}) is a layout for {found.workers} workers, not {workers}: use as many")
    return found

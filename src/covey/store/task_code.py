"""Which code builds a version's model? The file that a person names, else the one that the index of the store names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from covey.errors import PlanError
from covey.names import task_name
from covey.store.model_store import ModelStore
from covey.store.versions import ModelVersion

INSTEAD = "name the task's file yourself, with --task FILE"


def task_of(store: ModelStore, version: ModelVersion, given: str | None = None) -> str:
    """The task that a person has given, or that of the index, if nobody else can have written it."""
    if given:
        return given
    named = version.origin.task
    if not named:
        raise PlanError(f"{version.text} was trained by a task without a file: name one with --task FILE:NAME")
    if not named.isprintable() or not os.path.isabs(named):
        raise PlanError(f"{store.index} was changed: {named[:99]!r} is no task that covey has written there; {INSTEAD}")
    for place in (store.folder, store.index):
        if why := _of_others(place):
            raise PlanError(f"{place} {why}, and the index names the code that is imported ({named}): {INSTEAD}")
    file, folder = os.path.realpath(task_name(named).file), os.path.realpath(store.folder)
    if Path(file).is_relative_to(folder):
        raise PlanError(
            f"{named} is inside the store {store.folder}, and code of a store is not imported: {INSTEAD}, outside of it"
        )
    return named


def _of_others(place: Path) -> str:
    """Why other users may have decided what is there; empty where they cannot have."""
    known = place.stat()
    if known.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written by other users (chmod go-w)" if stat.S_IMODE(known.st_mode) & 0o022 else ""

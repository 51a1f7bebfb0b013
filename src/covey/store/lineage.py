"""Where did a version come from, and what was made of it? From data and source to exports and endpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from covey.checkpoint.files import opened
from covey.errors import CheckpointError, PlanError
from covey.names import task_file
from covey.observe.facts import RunOrigin
from covey.store.model_store import ModelStore
from covey.store.versions import ModelVersion

ANCESTORS = 1000  # versions that a lineage follows back at most


class Ancestor(msgspec.Struct, frozen=True):
    """An earlier version that a lineage names; without one in the store, it was removed."""

    text: str
    version: ModelVersion | None


def sought(store: ModelStore, text: str) -> ModelVersion:
    """The version that is meant: by its name, by a file or endpoint that was made of it, or by a run that made it."""
    everything = store.versions()
    digest = _file_hash(Path(text))
    address = text.rstrip("/") if "://" in text else text  # browsers write one behind an endpoint
    for version in reversed(everything):
        if any(use.place == address or (digest and use.hash == digest) for use in version.uses):
            return version
    of_run = [one for one in everything if any(text and run.record == text for run in one.origin.runs)]
    if of_run:
        return of_run[-1]
    if digest:
        raise PlanError(f"{text} is a file that was not exported from {store.folder}")
    return store.named(text)


def ancestors(store: ModelStore, version: ModelVersion) -> list[Ancestor]:
    """The versions that this one goes back to, the nearest first."""
    known = {one.text: one for one in store.versions()}
    found: list[Ancestor] = []
    parent = version.origin.parent
    while parent and len(found) < ANCESTORS and parent not in (one.text for one in found):
        found.append(Ancestor(parent, known.get(parent)))
        parent = known[parent].origin.parent if parent in known else ""
    return found


def parent_of(store: ModelStore, runs: list[RunOrigin]) -> str:
    """The newest version that an earlier one of these runs has made."""
    earlier = {run.key for run in runs[:-1]}
    known = [version for version in store.versions() if version.origin.runs]
    made = [version for version in known if version.origin.runs[-1].key in earlier]
    return max(made, key=lambda version: (version.made, version.number)).text if made else ""


def source_now(version: ModelVersion) -> str:
    """What became of the task's file since: nothing (an empty text), changed, or gone."""
    origin = version.origin
    if not origin.task or not origin.source:
        return ""
    try:
        with opened(task_file(origin.task)) as file:
            return "" if hashlib.file_digest(file, "sha256").hexdigest() == origin.source else "changed since"
    except (OSError, CheckpointError):
        return "gone"


def as_json(store: ModelStore, version: ModelVersion) -> dict[str, Any]:
    """The whole lineage, for other programs."""
    found: dict[str, Any] = msgspec.to_builtins(version)
    parents = [one.text for one in ancestors(store, version)]
    children = [one.text for one in store.versions() if one.origin.parent == version.text]
    return found | {"version": version.text, "ancestors": parents, "children": children}


def lines(store: ModelStore, version: ModelVersion) -> Iterator[tuple[str, str]]:
    """The lineage in words: what, and which, from the data to what was made of the model."""
    origin = version.origin
    known = f"sha256 {origin.data[:16]}, of {origin.data_from}"
    yield "data", known if origin.data else f"not known: {origin.data_from}"
    changed = f" ({found})" if (found := source_now(version)) else ""
    yield "task", f"{origin.task or origin.run.task}{changed}"
    if origin.source:
        yield "source", f"sha256 {origin.source[:16]}" + (f", commit {origin.commit[:12]}" if origin.commit else "")
    workers = f"{origin.run.workers} worker{'s' * (origin.run.workers != 1)}"
    yield "strategy", f"{origin.run.strategy}, {workers}, seed {origin.run.seed}"
    yield "engine", origin.run.engine
    if origin.cluster:
        yield "cluster", origin.cluster
    for number, run in enumerate(origin.runs):
        how = "resumed by " if number else ""
        yield "run", f"{how}{run.record or run.key}, began {run.began}" + (f": {run.command}" if run.command else "")
    for ancestor in ancestors(store, version):
        yield "parent", ancestor.text + ("" if ancestor.version else " (removed)")
    scores = "  ".join(f"{name} {value:.6g}" for name, value in version.metrics.items())
    yield "version", f"{version.text}, made {version.made}" + (", promoted" if version.promoted else "")
    if scores:
        yield "scores", f"{scores}" + (f" (the best {origin.best})" if origin.best else "")
    ended = {use.place: use.at for use in version.uses if use.kind == "endpoint ended"}
    for use in version.uses:
        digest = f", sha256 {use.hash[:16]}" if use.hash else ""
        end = f", ended {ended[use.place]}" if use.kind == "endpoint" and use.place in ended else ""
        if use.kind != "endpoint ended":
            yield use.kind, f"{use.place}{digest}, {'began ' if use.kind == 'endpoint' else ''}{use.at}{end}"


def _file_hash(path: Path) -> str:
    """Of a plain file of this name, if there is one."""
    try:
        with opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, CheckpointError, ValueError):
        return ""

"""The store of a folder: versions are registered, found, promoted and removed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from covey import atomic_file
from covey.errors import PlanError
from covey.names import meant
from covey.store.conditions import Condition, Fact
from covey.store.index import StoreIndex, open_index
from covey.store.versions import (
    NEWEST,
    ModelOrigin,
    ModelUse,
    ModelVersion,
    UseKind,
    check_name,
    parse_reference,
)  # fmt: skip

if TYPE_CHECKING:
    from torch import Tensor

    from covey.store.tensors import TensorFiles

USUAL, VARIABLE = "model_store", "COVEY_STORE"
INDEX, TENSORS = "index.sqlite", "tensors"


def folder_of_store(wanted: str | os.PathLike[str] | None, runs: Path | None) -> Path:
    """Where models are kept: where a person says, or in COVEY_STORE, or beside the folder of records."""
    given = wanted or os.environ.get(VARIABLE)
    return Path(given) if given else (runs or Path("runs")).parent / USUAL


class ModelStore:
    """Versions of models in a folder.

    Every change is whole or not at all: tensors are files before a transaction of the index names them, and are removed
    after one has forgotten them. Several processes may use a store at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tensors(self) -> TensorFiles:
        """The files of tensors."""
        from covey.store.tensors import TensorFiles  # it imports torch, which takes seconds: names need none of it

        return TensorFiles(self.folder / TENSORS)

    @property
    def index(self) -> Path:
        return self.folder / INDEX

    def check(self, asked: str) -> None:
        """Refuse, before anything runs, a folder that can be no store; `asked` is how it was given."""
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise PlanError(f"{asked} is a file: name a folder")
        if self.folder.is_dir() and not os.path.lexists(self.index) and any(self.folder.iterdir()):
            raise PlanError(f"{asked} has files in it, and is no store of models: name another folder, or a new one")
        if os.path.lexists(self.index):
            with open_index(self.index, change=False):
                pass
        atomic_file.check(self.index, asked, INDEX, makes_folders=True)

    def register(
        self, name: str, weights: Mapping[str, Tensor], origin: ModelOrigin, metrics: Mapping[str, float | None]
    ) -> ModelVersion:
        """Keep a model as the next version of this name."""
        check_name(name, repr(name))
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # its index names code: see task_code.py
        stored = {key: self.tensors.add(tensor) for key, tensor in weights.items()}
        numbers = {key: float(value) for key, value in metrics.items() if value is not None and _is_finite(value)}
        with open_index(self.index, change=True) as index:
            for key, tensor in stored.items():  # whoever removed a version meanwhile may have taken a file with it
                if not self.tensors.path(tensor.hash).exists():
                    self.tensors.add(weights[key])
            number = index.add(name, now(), origin, numbers, stored)
        return self.named(f"{name}:{number}")

    def versions(self, condition: Condition | None = None) -> list[ModelVersion]:
        """All versions, or those that meet a condition, by name and number."""
        if not os.path.lexists(self.index) or not self.index.lstat().st_size:  # or it is just being made
            return []
        with open_index(self.index, change=False) as index:
            found = index.versions()
        if condition is None or not found:
            return found
        facts = [facts_of(version) for version in found]
        condition.check({name for one in facts for name in one})
        return [version for version, one in zip(found, facts, strict=True) if condition.fits(one)]

    def named(self, text: str) -> ModelVersion:
        """`digits` is the promoted version of that name, else the newest; `digits:3` and `digits:newest` are exact."""
        name, which = parse_reference(text)
        everything = self.versions()
        found = [version for version in everything if version.name == name]
        if not found:
            known = list(dict.fromkeys(version.name for version in everything))
            if not known:
                raise PlanError(f"there are no models in {self.folder}: covey run … --register NAME adds one")
            raise PlanError(f"there is no model {name!r} in {self.folder}{meant(name, known)}")
        if isinstance(which, int):
            exact = [version for version in found if version.number == which]
            if not exact:
                numbers = ", ".join(str(version.number) for version in found[-8:])
                raise PlanError(f"{name} has no version {which}; there are {numbers}")
            return exact[0]
        promoted = [version for version in found if version.promoted and which != NEWEST]
        return promoted[0] if promoted else found[-1]

    def weights(self, version: ModelVersion) -> dict[str, Tensor]:
        """The model as a state dict; every tensor is checked against its hash."""
        read = {stored: self.tensors.read(stored) for stored in set(version.tensors.values())}
        return {name: read[stored].clone() for name, stored in version.tensors.items()}

    def promote(self, version: ModelVersion) -> None:
        """Make it the version that its name means; refused if a tensor of it is missing or damaged."""
        for name, stored in version.tensors.items():
            if not self.tensors.intact(stored):
                raise PlanError(f"{version.text} is not promoted: the file of its tensor {name} is missing or damaged")
        with open_index(self.index, change=True) as index:
            index.promote(version)

    def remove(self, *versions: ModelVersion) -> int:
        """Remove versions, then the tensors that no other version uses; how many bytes that freed."""
        with open_index(self.index, change=True) as index:
            for version in versions:
                index.remove(version)
        with open_index(self.index, change=True) as index:  # nobody registers while files go
            return self.collect(index)

    def collect(self, index: StoreIndex) -> int:
        return self.tensors.collect(index.hashes())

    def note_use(self, version: ModelVersion, kind: UseKind, place: str, digest: str = "") -> None:
        """Write down what was made of a version, for its lineage."""
        with open_index(self.index, change=True) as index:
            index.note_use(version, ModelUse(kind, place, digest, now()))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float has room for
        return False


def facts_of(version: ModelVersion) -> dict[str, Fact]:
    """What conditions may ask of a version."""
    run, origin = version.origin.run, version.origin
    settings = {name: value for name, value in run.settings.items() if isinstance(value, str | int | float)}
    known: dict[str, Fact] = {
        "name": version.name, "number": version.number, "made": version.made, "promoted": version.promoted,
        "strategy": run.strategy, "engine": run.engine, "workers": run.workers, "servers": run.servers,
        "seed": run.seed, "task": run.task, "data": origin.data, "source": origin.source, "commit": origin.commit,
        "cluster": origin.cluster, "parent": origin.parent, "stopped": origin.stopped, "seconds": origin.seconds,
        "samples": origin.samples,
    }  # fmt: skip
    return settings | version.metrics | known


def now() -> str:
    """This moment, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

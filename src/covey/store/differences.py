"""In what do two versions differ? In what was asked for, in scores, and in tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from covey.store.conditions import Fact
from covey.store.model_store import ModelStore, facts_of
from covey.store.versions import ModelVersion, StoredTensor


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that differs."""

    name: str
    how: str  # "only in digits:1", "another shape: (3, 2), (3, 4)", or by how much it moved
    distance: float | None = None  # |b - a| / |a|, of tensors of one shape


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """Two versions, and what is not the same in them."""

    one: str
    other: str
    facts: dict[str, tuple[Fact | None, Fact | None]]
    equal: int  # tensors
    changes: list[TensorChange]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compared_versions(store: ModelStore, one: ModelVersion, other: ModelVersion) -> VersionDifference:
    """What differs between two versions; tensors that differ are read, to say by how much."""
    before, after = facts_of(one), facts_of(other)
    names = [name for name in {**before, **after} if name not in ("name", "number", "made", "promoted")]
    facts = {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
    changes = []
    for name in {**one.tensors, **other.tensors}:
        mine, theirs = one.tensors.get(name), other.tensors.get(name)
        if mine is None or theirs is None:
            changes.append(TensorChange(name, f"only in {(one if theirs is None else other).text}"))
        elif mine.hash != theirs.hash:
            changes.append(_change(store, name, mine, theirs))
    both = len(one.tensors.keys() & other.tensors.keys())
    equal = both - sum(change.name in one.tensors and change.name in other.tensors for change in changes)
    return VersionDifference(one.text, other.text, facts, equal, changes)


def _change(store: ModelStore, name: str, mine: StoredTensor, theirs: StoredTensor) -> TensorChange:
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return TensorChange(name, f"{mine.dtype} {list(mine.shape)} became {theirs.dtype} {list(theirs.shape)}")
    a, b = (store.tensors.read(stored).double() for stored in (mine, theirs))
    size, moved = float(a.norm()), float((b - a).norm())
    share = moved / (size or 1.0)
    return TensorChange(name, f"moved by {share:.3g}" + (" of its norm" if size else ""), share)

"""What every format of shards can do: list its shards, and open one for samples by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from covey.data.storage.index import ShardEntry
from covey.data.storage.source import ShardSource
from covey.errors import PlanError

Sample = dict[str, Any]


class OpenShard(ABC):
    """One shard, of which it is known where each sample lies."""

    samples: int
    columns: tuple[str, ...]

    @abstractmethod
    def sample(self, number: int) -> Sample:
        """A value for each column; anything may be raised over bytes that are wrong."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Args:
        suffix: How the names of its shards end.
        open: Opens a shard, with the columns that are wanted (all if there are none).
        entries: Lists the shards of a place without an index of covey's, with their samples where that is cheap.
    """

    suffix: str
    open: Callable[[ShardSource, ShardEntry, tuple[str, ...]], OpenShard]
    entries: Callable[[ShardSource], tuple[ShardEntry, ...]]


def listed(source: ShardSource, suffix: str) -> tuple[ShardEntry, ...]:
    """All shards that are there, by their names."""
    names = [name for name in source.names() if name.endswith(suffix)]
    if not names:
        raise PlanError(f"{source.place} has no shards: no name ends with {suffix}")
    return tuple(ShardEntry(name=name, size=source.size(name)) for name in names)


def wanted_columns(
    source: ShardSource, name: str, there: Mapping[str, Any], wanted: tuple[str, ...]
) -> tuple[str, ...]:
    """The columns to read: those that are asked for, each of which must be there, or all."""
    if missing := [column for column in wanted if column not in there]:
        raise source.error(name, f"has no column {missing[0]!r}; it has {', '.join(there)}")
    return wanted or tuple(there)

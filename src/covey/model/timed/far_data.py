"""What reading the data of a task takes, where a cluster says what its store gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from covey.data.shards import Shards
from covey.data.storage.stored import StoredData
from covey.data.streams import StreamShards
from covey.data.stripe_cache.virtual_reads import VirtualReads
from covey.errors import PlanError
from covey.model.replica import Replica
from covey.simulate import Backend, Bytes
from covey.task import Task
from covey.vector import chunk


def sized(backend: Backend, task: Task) -> Backend:
    """The backend with the size of a sample: as it says, else as the shards of the task's data have it."""
    if backend.sample is not None:
        return backend
    if not isinstance(data := task.dataset, StoredData):
        raise PlanError(
            '[backend] needs the size of a sample, such as sample = "110kB": only data of covey.data.remote says it'
        )
    return replace(backend, sample=Bytes(-(-sum(entry.size for entry in data.index.shards) // len(data))))


def virtual_reads(backend: Backend, task: Task, deal: Shards) -> VirtualReads:
    """What counts and times reading."""
    if isinstance(deal, StreamShards):
        raise PlanError("[backend]: the data is a stream, of which nobody knows what is read when: omit [backend]")
    return VirtualReads(sized(backend, task), deal.samples)


def reading(replica: Replica, deal: Shards) -> Replica:
    """The replica of a role that reads samples, which now says which ones."""
    replica.batch_source = replace(replica.batch_source, reads=partial(_numbers, deal))
    return replica


def _numbers(deal: Shards, rank: int, step: int, part: int = 0, parts: int = 1) -> Sequence[int]:
    found = deal.indices(rank, step)
    start, stop = chunk(len(found), parts, part)
    return found[start:stop].tolist()

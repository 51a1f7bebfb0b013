"""How does a task become replicas and a scored model? The same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from covey.data.dealing import dealt
from covey.data.feed import Feed
from covey.data.partitions import Partitions, RowInfo
from covey.data.sampled import SampledShards
from covey.data.shards import Shards, StretchedShards
from covey.data.streams import StreamShards, stream_length
from covey.errors import PlanError
from covey.faults import in_task
from covey.message import Address
from covey.model.batches import BatchSource, OwnBatches
from covey.model.private.private_batches import PrivateBatches
from covey.model.randomness import seed_torch
from covey.model.replica import Replica
from covey.model.replica_spec import ReplicaSpec, pace_of
from covey.model.slots import buffers_of
from covey.model.timed.stand_in import Shapes, TimedData
from covey.names import option
from covey.task import Task
from covey.task.data import Data, check_data
from covey.task.device import device_of
from covey.vector import Vector, fingerprint


def shards(
    task: Task, workers: int, seed: int, rows: RowInfo | None = None, stretch: bool = False, taken: int | None = None
) -> Shards:
    """How the task's data is dealt out; with `rows` every worker keeps its own.

    What is only timed may `stretch` it: as if every worker had whole batches, and one at least. Of a stream without a
    length this many samples are `taken` in the run.
    """
    if rows:
        if task.sampler is not None or task.drop_last:
            raise PlanError("Task: rows of a DataFrame are always shuffled, all of them: omit sampler and drop_last")
        return Partitions.of(rows.counts, task.step_size, seed)
    if isinstance(data := data_of(task), IterableDataset):
        return _stream_shards(data, workers, task.step_size, seed, taken)
    samples = check_data(data)
    whole = workers * task.step_size
    if stretch:
        return StretchedShards(-(-samples // whole) * whole, workers, task.step_size, seed, samples)
    if task.sampler is None and not task.drop_last:
        return dealt(data, samples, workers, task.step_size, seed)
    return SampledShards.of(samples, task.sampler, task.drop_last, workers, task.step_size, seed)


def _stream_shards(
    data: IterableDataset[Any], workers: int, batch_size: int, seed: int, taken: int | None
) -> StreamShards:  # fmt: skip
    length = stream_length(data)
    if length is None and taken is None:
        raise PlanError(
            f"the data is a stream without a length: say how long to train with {option('steps')}, or give the stream "
            "a __len__"
        )
    samples = length if length is not None else taken
    assert samples is not None
    return StreamShards(samples, workers, batch_size, seed, endless=length is None)


def data_of(task: Task) -> Data:
    """The task's data, which a run must have."""
    if task.dataset is None:
        raise PlanError(
            "the task has no data: give data=…, or train it on the rows of a DataFrame with covey.spark.fit"
        )
    return task.dataset


def with_rows(task: Task, rows: RowInfo, file: str = "") -> Task:
    """The task with the rows of this host's worker as its data; without a file, with what only looks like them."""
    if not file:
        return replace(task, data=rows.stand_in())
    columns = load_file(file)
    return replace(task, data=tuple(columns[str(number)] for number in range(len(columns))))


def device(task: Task, rank: int) -> torch.device | None:
    """Where the roles of this rank compute; None: wherever the task's own functions say."""
    return None if task.device is None else device_of(task.device, rank)


def model(task: Task, seed: int, rank: int = 0) -> nn.Module:
    """The task's model with the weights of this seed, the same on every role, on the device of this rank."""
    seed_torch(seed)
    with in_task("model()"):
        module = task.model()
    if not isinstance(module, nn.Module):
        raise PlanError(f"task.model must return an nn.Module; it returned a {type(module).__name__}")
    there = device(task, rank)
    if there is not None:
        module = module.to(there)
    if any(
        isinstance(p, UninitializedParameter | UninitializedBuffer) for p in [*module.parameters(), *module.buffers()]
    ):
        _materialize(task, module, seed, there)
    return module


def _materialize(task: Task, module: nn.Module, seed: int, there: torch.device | None) -> None:
    """Let lazy modules take their shapes, and their weights of this seed, from the first two samples."""
    data = data_of(task)
    alone: Shards = StreamShards(2, 1, 2, seed, endless=True)
    if not isinstance(data, IterableDataset):
        alone = Shards(check_data(data), 1, min(2, check_data(data)), seed)
    batch = next(Feed(data, alone, 0, task.loading, device=there).start(0))
    seed_torch(seed)
    with torch.no_grad():
        module.eval()
        task.forward(module, batch)
        module.train()


def check_batches(task: Task, deal: Shards, limits: Sequence[int], parts: int) -> None:
    """Refuse a batch-norm that would be given one sample: by batches of one, or by parts of batches."""
    lone = next((found for rank, limit in enumerate(limits) if (found := _lone(deal, rank, limit, parts))), None)
    if lone is None or not refuses_one(task, deal):
        return
    divided = f", as batches are computed in {parts} parts" if parts > 1 else ""
    raise PlanError(
        f"batch-norm needs 2 samples, and worker {lone[0]} would get 1 at step {lone[1]}{divided}: choose another "
        "batch_size, fewer parts, nn.GroupNorm, or in strategies whose workers step together nn.SyncBatchNorm"
    )


def refuses_one(task: Task, deal: Shards, sample: Tensor | None = None) -> bool:
    """Whether the model has a batch-norm that cannot compute on this one sample, or on the first; found by trying."""
    try:
        module = model(task, deal.seed)
        layers = [layer for layer in module.modules() if not isinstance(layer, nn.SyncBatchNorm)]
        if not any(isinstance(layer, _BatchNorm) for layer in layers):
            return False
        with torch.no_grad():
            feed = Feed(data_of(task), deal, 0, task.loading, device=device(task, 0))
            task.forward(module, feed.take(deal.indices(0, 0)[:1] if sample is None else sample))
    except Exception as error:
        return "more than 1 value per channel" in str(error)  # whatever else is wrong, the run tells better
    return False


def _lone(deal: Shards, rank: int, limit: int, parts: int) -> tuple[int, int] | None:
    """The first batch of a worker that has a part of one sample: the first of all, or the last of an epoch."""
    for step in sorted({0, deal.steps(rank) - 1}):
        if step < limit and deal.batch(rank, step) < 2 * parts:
            return rank, step
    return None


def replica(
    task: Task, who: Address, trains: bool, deal: Shards, budget: int | None,
    part: Callable[[ReplicaSpec], Replica] | None = None,
) -> Replica:  # fmt: skip
    """One role's copy of the model, or its `part` of one, with its share of the data if it trains."""
    module = model(task, deal.seed, who.rank)
    if part and task.precision != "fp32":
        raise PlanError(
            f"Task(precision={task.precision!r}) and a model that is cut: its parts are computed in fp32; omit either"
        )
    if part and task.compile:
        raise PlanError("Task(compile=…) and a model that is cut: its parts are computed as they are; omit either")
    if part and task.ema is not None:
        raise PlanError("Task(ema=…) and a model that is cut: no role has all of what would be averaged; omit either")
    if part and task.private:
        raise PlanError("Task(private=…) and a model that is cut: no role has a sample's whole gradient; omit either")
    if part:
        first = fingerprint(Vector(p.detach().reshape(-1) for p in module.parameters() if p.requires_grad))
        found = part(ReplicaSpec(task=task, module=module, deal=deal, who=who, trains=trains, budget=budget))
        found.initial = first
        return found
    samples = BatchSource(samples=deal.batch, steps=deal.steps)
    if trains:
        feed = Feed(data_of(task), deal, who.rank, task.loading, task.batch_size, device(task, who.rank))
        source = PrivateBatches(task, module, feed) if task.private else OwnBatches(task, module, feed)
        samples = replace(
            samples, own=source, chosen=source.part, leased=source.of, begin=source.begin, scale=source.scale,
            last=lambda: source.last, whole=task.private is not None, arrived=source.arrived,
            prepares=lambda step: float(task.transform is not None and step not in source.arrived),
        )  # fmt: skip
    if task.preparers:
        samples = preparing(task, deal, samples)
    return Replica(
        module, task.optimizer, samples,
        rate=task.rate, budget=budget, clip_norm=task.clip_norm, pace=pace_of(task, deal, budget),
        ema=task.ema,
    )  # fmt: skip


def preparing(task: Task, deal: Shards, source: BatchSource) -> BatchSource:
    """What workers and preparers know of batches that travel between them."""

    def prepare(rank: int, step: int) -> list[Any]:
        feed = Feed(data_of(task), deal, rank, task.loading, task.batch_size)
        return list(islice(feed.start(step), pieces(rank, step)))

    def pieces(rank: int, step: int) -> int:
        return -(-deal.batch(rank, step) // task.batch_size)

    return replace(source, prepare=prepare, pieces=pieces, batch_bytes=sample_bytes(task, deal) * task.batch_size)


def sample_bytes(task: Task, deal: Shards) -> int:
    """Of the tensors of one sample, transformed."""
    one = Feed(data_of(task), deal, 0, task.loading).take(torch.arange(1))
    return sum(part.nbytes for part in (one if isinstance(one, tuple | list) else [one]) if isinstance(part, Tensor))


def timed_data(task: Task, deal: Shards) -> TimedData:
    """What a run that is only timed knows of the task's data."""
    size = sample_bytes(task, deal) if task.preparers else 0
    return TimedData(task.batch_size, task.transform is not None, task.preparers > 0, size)


def shapes(task: Task) -> Shapes:
    """Of what is trained of the task's model, without taking memory for it where possible."""
    module = _looked_at(task)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {name: torch.empty(p.shape, dtype=p.dtype, device="meta") for name, p in trained.items()}


def has_float_buffers(task: Task) -> bool:
    """Whether the task's model has buffers of floats, such as those of batch normalization, which travel with it."""
    return any(buffer.is_floating_point() for _, _, buffer in buffers_of([_looked_at(task)]).values())


def _looked_at(task: Task) -> nn.Module:
    try:
        with torch.device("meta"):
            return task.model()
    except Exception:  # models that insist on real numbers while they are built
        return model(task, 0)


def optimizer(task: Task) -> Optimizer:
    """The task's optimizer, to be looked at; over a model that takes no memory where possible."""
    try:
        with torch.device("meta"):
            module = task.model()
        return task.optimizer(iter(list(module.named_parameters())))
    except Exception:  # models or optimizers that insist on real numbers
        return task.optimizer(iter(list(model(task, 0).named_parameters())))

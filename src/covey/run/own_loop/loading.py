"""A DataLoader's batches, dealt out to the workers of a run: each gets its share, and all get equally many."""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from covey.data.seeded_draws import SeededDraws, mixed
from covey.errors import PlanError
from covey.run.own_loop.position import Pass

REPEATED = (
    "two passes over a loader began with the same samples: its sampler has a method set_epoch, which covey does not "
    "call in a loop of your own; call sampler.set_epoch(epoch) before each pass, as in a plain loop"
)
AT_ONCE = 4096  # sample numbers that are drawn in one go, because changing generators takes its time


class Sizes(NamedTuple):
    """How many samples a batch has, and those of all workers together; None: not known here."""

    mine: int | None
    everybody: int | None
    each: tuple[int, ...] = ()  # of every worker, where that is known


class LoaderWorker(Protocol):
    """One worker, as its loaders see it."""

    rank: int
    workers: int
    seed: int

    def _begin_pass(self) -> Pass | None:
        """Another pass over data; None if it was over when the run was kept from which this one goes on."""
        ...

    def _reads(self, order: int, fingerprint: str, loader: DataLoader[Any] | None = None) -> None:
        """This is how the samples of a pass begin, where they come from a loader of its."""
        ...

    def _pulled(self, sizes: Sizes) -> bool:
        """A batch is about to be given to the loop; False when the run has ended and no more are wanted."""
        ...


class SampleShare:
    """The sample numbers of one worker's batches, drawn by the user's own sampler; the same draw on all workers."""

    def __init__(self, loader: DataLoader[Any], reader: LoaderWorker) -> None:
        self.loader, self.reader = loader, reader
        self.sizes: deque[Sizes] = deque()
        self.drawing = SeededDraws(0)
        self.epoch = self.skip = 0

    def begin(self, epoch: int, skip: int = 0) -> None:
        """Another pass over the data begins, of which this many batches were given before the checkpoint."""
        self.epoch, self.skip = epoch, skip
        self.sizes.clear()
        inside = (self.loader.sampler, self.loader.batch_sampler, getattr(self.loader.batch_sampler, "sampler", None))
        own = {id(found): found for one in inside if (found := getattr(one, "generator", None)) is not None}
        self.drawing = SeededDraws(mixed(self.reader.seed, epoch), own.values())

    def __iter__(self) -> Iterator[Any]:
        for number, batches in enumerate(self.rounds()):
            if number == 0:
                self.reader._reads(self.epoch, fingerprint(batches), self.loader)
            if number < self.skip:
                continue
            counts = [len(batch) if isinstance(batch, Sequence) else None for batch in batches]
            known = [count for count in counts if count is not None]
            in_order = getattr(self.loader, "in_order", True) and self.loader.batch_sampler is not None
            each = tuple(known) if len(known) == len(counts) and in_order else ()
            self.sizes.append(Sizes(counts[self.reader.rank] if in_order else None, sum(each) if each else None, each))
            yield batches[self.reader.rank]

    def rounds(self) -> Iterator[list[Any]]:
        """For each step one batch for every worker; an end that does not give each of them something is left out."""
        workers, plain = self.reader.workers, self.plain
        if plain is None:
            drawn = self.drawn(self.source)
            while len(batches := list(islice(drawn, workers))) == workers:
                yield batches
            return
        drawn, together = self.drawn(plain.sampler), plain.batch_size * workers
        while len(numbers := list(islice(drawn, together))) >= (together if plain.drop_last else workers):
            # Dealt one by one, n workers with batches of b see together what one worker sees with batches of n * b.
            yield [numbers[rank::workers] for rank in range(workers)]

    @property
    def plain(self) -> BatchSampler | None:
        """What makes batches of samples, unless the loader has a batch sampler of its own."""
        sampler = self.loader.batch_sampler
        return sampler if type(sampler) is BatchSampler else None

    @property
    def source(self) -> Iterable[Any]:
        """What else says which samples make a batch."""
        return self.loader.sampler if self.loader.batch_sampler is None else self.loader.batch_sampler

    def drawn(self, sampler: Iterable[Any]) -> Iterator[Any]:
        """What the sampler gives, with chance of its own."""
        with self.drawing:
            source = iter(sampler)
        while True:
            with self.drawing:
                numbers = list(islice(source, AT_ONCE if self.plain is not None else self.reader.workers))
            if not numbers:
                return
            yield from numbers

    def __len__(self) -> int:
        plain, workers = self.plain, self.reader.workers
        if plain is None:
            return len(self.source) // workers  # type: ignore[arg-type]
        whole, rest = divmod(len(plain.sampler), plain.batch_size * workers)  # type: ignore[arg-type]
        return whole + (not plain.drop_last and rest >= workers)


class DealtStream(IterableDataset[Any]):
    """Every n-th sample of a stream that all workers read; otherwise the user's data set, attributes and all."""

    def __init__(self, whole: IterableDataset[Any], rank: int, workers: int) -> None:
        self.__dict__.update(whole=whole, rank=rank, workers=workers)

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.whole)
        while len(group := list(islice(samples, self.workers))) == self.workers:
            yield group[self.rank]

    def __getattr__(self, name: str) -> Any:
        if name == "whole":  # before there is one, while a copy is made
            raise AttributeError(name)
        return getattr(self.whole, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.whole, name, value)


class Loader:
    """A DataLoader's share of one worker; each time it is iterated, the next pass over the data."""

    def __init__(self, reader: LoaderWorker, loader: DataLoader[Any]) -> None:
        check(loader, reader.workers)
        self.reader, self.whole = reader, loader
        stream = loader.dataset if isinstance(loader.dataset, IterableDataset) else None
        self.streamed = stream is not None
        self.share = SampleShare(loader, reader)
        self.mine = copy.copy(loader)  # a subclass, its collate_fn, its processes: all as the user made it
        changed: dict[str, Any] = {"_iterator": None}
        if stream is not None:
            changed["dataset"] = DealtStream(stream, reader.rank, reader.workers)
        else:
            changed["batch_sampler" if loader.batch_sampler is not None else "sampler"] = self.share
        self.mine.__dict__.update(changed)  # torch refuses to set these on a loader that is made

    def __iter__(self) -> Iterator[Any]:
        begun = self.reader._begin_pass()
        if begun is None:
            return
        with begun:
            for batch in islice(self._batches(begun), begun.skip if self.streamed else 0, None):
                if not self.reader._pulled(self._sizes(batch)):
                    return
                begun.give()
                yield batch

    def _batches(self, begun: Pass) -> Iterator[Any]:
        """What the pass has; of a stream also what was given before the run was kept."""
        epoch, reader = begun.order, self.reader
        self.share.begin(epoch, begun.skip)
        common = SeededDraws(mixed(reader.seed, epoch), [self.whole.generator])
        own = SeededDraws(mixed(reader.seed, epoch, reader.rank + 1), [self.whole.generator])
        # The processes that load have seeds of their own on each worker, unless what they draw is the stream itself.
        with common if self.streamed else own:
            batches = iter(self.mine)
        return self._drawn(batches, common) if self.streamed and not self.whole.num_workers else batches

    def _sizes(self, batch: Any) -> Sizes:
        if not self.streamed:
            told = self.share.sizes.popleft()
            return told if told.mine is not None else Sizes(samples_in(batch), None)
        count = samples_in(batch)
        if self.whole.batch_size is None or count is None:
            return Sizes(count, None)
        return Sizes(count, count * self.reader.workers, (count,) * self.reader.workers)

    @staticmethod
    def _drawn(batches: Iterator[Any], drawing: SeededDraws) -> Iterator[Any]:
        """A stream that is read in this process draws from a seed that all workers have."""
        while True:
            with drawing:
                batch = next(batches, batches)
            if batch is batches:
                return
            yield batch

    def __len__(self) -> int:
        if not self.streamed:
            return len(self.share)
        samples = len(self.whole.dataset) // self.reader.workers  # type: ignore[arg-type]
        size = self.whole.batch_size or 1
        return samples // size if self.whole.drop_last else -(-samples // size)

    def __getattr__(self, name: str) -> Any:
        if name == "whole":
            raise AttributeError(name)
        return getattr(self.whole, name)


def check(loader: object, workers: int) -> None:
    """Refuse what cannot be dealt out, or has been already."""
    if not isinstance(loader, DataLoader):
        raise PlanError(
            f"member.loader takes a torch.utils.data.DataLoader, not a {type(loader).__name__}: give it one, or use "
            "member.shard(data, batch_size) for a data set; where your loop divides the data itself, say how many "
            "samples each step has, member.step(loss, samples=n)"
        )
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    if workers > 1 and any(isinstance(one, DistributedSampler) for one in samplers):
        raise PlanError(
            "the loader has a DistributedSampler, which divides the data already: omit it, member.loader gives each "
            "worker its share of the plain loader (shuffle=True, or the sampler that you want)"
        )


class PassBeginnings:
    """How the last pass over each loader began: a sampler that nobody tells the epoch gives the same order again."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[DataLoader[Any], str] = WeakKeyDictionary()

    def repeats(self, loader: DataLoader[Any], fingerprint: str) -> bool:
        """Whether this pass begins like the last one, over a sampler that should have been told."""
        inside = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
        counts = any(hasattr(one, "set_epoch") and getattr(one, "shuffle", True) for one in inside)
        before, self._last[loader] = self._last.get(loader), fingerprint
        return counts and bool(fingerprint) and before == fingerprint


def fingerprint(batches: Sequence[Any]) -> str:
    """By which others can see that they draw the same; nothing where it does not show."""
    plain = [one.tolist() if isinstance(one, Tensor) else one for one in batches]
    drawn = [number for one in plain for number in (one if isinstance(one, list | tuple) else [one])]
    if not all(isinstance(number, int | str | tuple) for number in drawn):
        return ""  # what cannot be written down the same way everywhere
    return hashlib.blake2b(repr(plain).encode(), digest_size=8).hexdigest()


def samples_in(batch: Any) -> int | None:
    """How many samples a batch has, where it shows: the first dimension of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return next((count for one in batch if (count := samples_in(one)) is not None), None)
    return None


def watch(modules: Iterable[torch.nn.Module], found: Callable[[int], None]) -> list[Any]:
    """See how many samples the models are given while gradients are on; hooks that can be removed."""

    def look(module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        count = samples_in([*given, *named.values()]) if module.training and torch.is_grad_enabled() else None
        if count is not None:
            found(count)

    return [module.register_forward_pre_hook(look, with_kwargs=True) for module in modules]

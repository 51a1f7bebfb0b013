"""When an epoch ends for all workers: after a share of the replicas, or of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

Unit = Literal["replicas", "samples"]


@dataclass(frozen=True, slots=True)
class Ending:
    """An epoch ends when this share of its replicas have finished it, or of its samples were processed.

    Chilimbi et al. 2014 measured 75 % of the replicas; Langer et al. 2020 tell of 75 % of the samples.
    """

    share: float
    unit: Unit = "replicas"


@dataclass(slots=True)
class Epochs:
    """What a server knows of the epochs of its workers; it survives a restart."""

    lengths: list[int]  # batches of each worker's epoch
    samples: int  # of an epoch, over all workers
    over: int = 0  # epochs that have ended
    through: dict[int, int] = field(default_factory=dict)  # epochs that each worker is through with
    done: dict[int, int] = field(default_factory=dict)  # samples of each epoch that has not ended

    @staticmethod
    def of(sizes: Sequence[Sequence[int]]) -> Epochs:
        """Given the samples of each batch of an epoch of each worker."""
        return Epochs([len(batches) for batches in sizes], sum(map(sum, sizes)))

    def came(self, rank: int, step: int, samples: int) -> None:
        """A worker has done the batch of its own step number."""
        self.through[rank] = (step + 1) // self.lengths[rank]
        epoch = step // self.lengths[rank]
        if epoch >= self.over:
            self.done[epoch] = self.done.get(epoch, 0) + samples

    def end(self, ending: Ending) -> bool:
        """End the epochs of which enough is done; whether there was one."""
        before = self.over
        while self._is_enough(ending):
            self.done.pop(self.over, None)
            self.over += 1
        return self.over > before

    def _is_enough(self, ending: Ending) -> bool:
        if ending.unit == "samples":
            return self.done.get(self.over, 0) >= ending.share * self.samples
        finished = sum(epochs > self.over for epochs in self.through.values())
        return finished >= ceil(ending.share * len(self.lengths) - 1e-9)

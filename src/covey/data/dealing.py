"""How a data set is dealt out, by its kind."""

from __future__ import annotations

from covey.data.arithmetic_order import ArithmeticShards
from covey.data.shards import Shards
from covey.data.storage.stored import StoredData


def dealt(data: object, samples: int, workers: int, batch_size: int, seed: int) -> Shards:
    """Shuffled in memory; by arithmetic where samples lie in shards, of which there may be any number."""
    kind = ArithmeticShards if isinstance(data, StoredData) else Shards
    return kind(samples, workers, batch_size, seed)

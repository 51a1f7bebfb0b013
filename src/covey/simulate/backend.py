"""What does the store give that far data is read from?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError
from covey.simulate.units import AT_ONCE, Bytes, BytesPerSecond, Seconds

Caching = Literal["none", "host", "hosts"]
MOST_REQUESTS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The store of a data set, and where what was read from it is kept.

    Args:
        rate: Of all requests together; None: without a limit.
        per_request: Of one request; None: without a limit.
        latency: Until the first byte of a request comes.
        requests: How many a reader has under way at once.
        sample: The size of a sample; None: as the task's data says.
        cache: Whether each host keeps what it has read, all hosts together do, or nobody.
        filled: Whether an earlier job has read the whole set into the cache.
    """

    rate: BytesPerSecond | None = None
    per_request: BytesPerSecond | None = None
    latency: Seconds = AT_ONCE
    requests: int = MOST_REQUESTS
    sample: Bytes | None = None
    cache: Caching = "host"
    filled: bool = False

    @property
    def most(self) -> float:
        """Bytes per second of all requests."""
        return math.inf if self.rate is None else self.rate

    @property
    def most_each(self) -> float:
        """Bytes per second of one request."""
        return math.inf if self.per_request is None else self.per_request

    def __post_init__(self) -> None:
        if self.filled and self.cache == "none":
            raise PlanError('[backend] filled = true and cache = "none": without a cache nothing is kept; omit either')
        if self.sample is not None and self.sample < 1:
            raise PlanError('[backend] sample must be at least one byte, such as sample = "110kB"')
        if not 1 <= self.requests <= MOST_REQUESTS:
            raise PlanError(f"[backend] requests = {self.requests}: a reader has 1 to {MOST_REQUESTS} of them at once")

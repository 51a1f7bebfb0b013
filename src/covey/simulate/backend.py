"""What does the store give that far data is read from?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError
from covey.simulate.units import AT_ONCE, Bytes, BytesPerSecond, Seconds

Caching = Literal["none", "host", "hosts"]
UNLIMITED = BytesPerSecond(math.inf)
MOST_REQUESTS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The store of a data set, and where what was read from it is kept.

    Args:
        rate: Of all requests together.
        per_request: Of one request.
        latency: Until the first byte of a request comes.
        requests: How many a reader has under way at once.
        sample: The size of a sample; None: as the task's data says.
        cache: Whether each host keeps what it has read, all hosts together do, or nobody.
        filled: Whether an earlier job has read the whole set into the cache.
    """

    rate: BytesPerSecond = UNLIMITED
    per_request: BytesPerSecond = UNLIMITED
    latency: Seconds = AT_ONCE
    requests: int = MOST_REQUESTS
    sample: Bytes | None = None
    cache: Caching = "host"
    filled: bool = False

    def __post_init__(self) -> None:
        if self.filled and self.cache == "none":
            raise PlanError('[backend] filled = true and cache = "none": without a cache nothing is kept; omit either')
        if self.sample is not None and self.sample < 1:
            raise PlanError('[backend] sample must be at least one byte, such as sample = "110kB"')
        if not 1 <= self.requests <= MOST_REQUESTS:
            raise PlanError(f"[backend] requests = {self.requests}: a reader has 1 to {MOST_REQUESTS} of them at once")

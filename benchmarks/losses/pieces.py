"""Measures that several short commands make one after the other."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.kept import Kept


class Pieces:
    """Values that are measured one after the other, in several commands: as many as are wanted, or as time allows."""

    def __init__(self, kept: Kept, seconds: float, count: int | None) -> None:
        self.kept, self.count = kept, count
        self.until = time.monotonic() + seconds

    def of(self, key: str) -> list[Any]:
        """What was measured so far."""
        return list(self.kept.found.get(key, {}).get("values", []))

    def lacks(self, key: str, count: int) -> bool:
        """Whether another value is to be measured now."""
        return len(self.of(key)) < (self.count or count) and time.monotonic() < self.until

    def add(self, key: str, value: Any) -> None:
        self.kept.keep(key, {"values": [*self.of(key), value]})
        print(f"{key} {len(self.of(key))}: {value}", file=sys.stderr, flush=True)

"""When was that, by a clock that nobody sets?"""

from __future__ import annotations

import time

JUMP = 1.0  # seconds: less is how the two clocks drift


class SteadyClock:
    """Moments of the wall clock as `time.monotonic` has them; each is translated once, when it is new."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._known: dict[str, tuple[float, float]] = {}

    def moment(self, name: str, at: float) -> float:
        """When this was, the newest moment of this name; now, where the wall clock has not come to it."""
        known = self._known.get(name)
        if known is None or known[0] != at:
            offset = time.time() - time.monotonic()
            if abs(offset - self._offset) > JUMP:
                self._offset = offset
            known = self._known[name] = at, min(at - self._offset, time.monotonic())
        return known[1]

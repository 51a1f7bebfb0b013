"""How fast do workers go? Their steady rate, without the beginning and the end of a run."""

from __future__ import annotations

from covey.message import Address
from covey.observe.instruments import Instrument


class BatchPace(Instrument):
    """Notes when each worker was through with its first and with its last batch."""

    def __init__(self) -> None:
        self.first: dict[Address, float] = {}
        self.last: dict[Address, float] = {}
        self.batches: dict[Address, int] = {}  # after the first
        self.samples: dict[Address, float] = {}

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if kind == "samples":
            if who in self.first:
                self.batches[who] = self.batches.get(who, 0) + 1
                self.samples[who] = self.samples.get(who, 0.0) + value
            self.first.setdefault(who, at)
            self.last[who] = at

    def step(self) -> float:
        """Seconds of a step of the mean worker: fast ones do more of them."""
        rates = [self.batches[who] / seconds for who, seconds in self._moving()]
        return len(rates) / sum(rates) if rates else 0.0

    def per_second(self) -> float:
        """Samples per second of all workers together."""
        return sum(self.samples[who] / seconds for who, seconds in self._moving())

    def _moving(self) -> list[tuple[Address, float]]:
        """How long each worker that did a second batch was at all but the first."""
        times = ((who, self.last[who] - self.first[who]) for who in self.batches)
        return [(who, seconds) for who, seconds in times if seconds > 0]

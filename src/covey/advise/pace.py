"""How fast do workers go? Their steady rate, without the beginning and the end of a run."""

from __future__ import annotations

from covey.message import Address
from covey.observe.instruments import Instrument


class Pace(Instrument):
    """Notes when each worker was through with its first and with its last batch."""

    def __init__(self) -> None:
        self.first: dict[Address, float] = {}
        self.last: dict[Address, float] = {}
        self.batches: dict[Address, int] = {}
        self.samples: dict[Address, float] = {}

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if kind == "samples":
            self.first.setdefault(who, at)
            self.last[who] = at
            self.batches[who] = self.batches.get(who, 0) + 1
            self.samples[who] = value

    def step(self) -> float:
        """Seconds of a step of the mean worker: fast ones do more of them."""
        rates = [(count - 1) / (self.last[who] - self.first[who]) for who, count in self._moving()]
        return len(rates) / sum(rates) if rates else 0.0

    def per_second(self) -> float:
        """Samples per second of all workers together."""
        return sum(
            self.samples[who] * (count - 1) / (self.last[who] - self.first[who]) for who, count in self._moving()
        )

    def _moving(self) -> list[tuple[Address, int]]:
        return [(who, count) for who, count in self.batches.items() if self.last[who] > self.first[who]]

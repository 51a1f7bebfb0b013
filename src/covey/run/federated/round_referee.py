"""When is the model of a federated run scored? After every few committed rounds, whatever their samples."""

from __future__ import annotations

from covey.observe.referee import Referee
from covey.target import Target


class RoundReferee(Referee):
    """Asks for a score after every `rounds` updates; it is asked once for each."""

    def __init__(self, rounds: int, target: Target | None) -> None:
        super().__init__(every=1, target=target)
        self._rounds, self.updates = rounds, 0

    def due(self, samples: int, seconds: float = 0.0) -> bool:
        self.updates += 1
        return self.updates % self._rounds == 0

"""A worker that is told to go soon: it finishes its batch, and goes before the next one."""

from __future__ import annotations

import os
import signal
from types import FrameType

NOTICE = signal.SIGUSR2


class DepartureNotice:
    """Whether this process was told that it will go."""

    def __init__(self) -> None:
        self.given = self._told = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.given = True

    def listen(self, wanted: bool) -> None:
        """Hear the signal from now on, where workers come and go; only a process's main thread may ask for that."""
        if wanted:
            signal.signal(NOTICE, self)

    @property
    def news(self) -> bool:
        """Whether it was told so, and nobody has asked since."""
        fresh, self._told = self.given and not self._told, self.given
        return fresh

    def heed(self, busy: bool = False) -> None:
        """Before a batch: go now, if told so, unless the role is `busy` with what its program must bring away first.

        What was made of the batches before is sent, where each is sent alone. Where several go into one message or
        average, others do again those of the one that is not complete.
        """
        if self.given and not busy:
            os.kill(os.getpid(), signal.SIGTERM)

"""A worker that is told to go soon: it finishes its batch, and goes before the next one."""

from __future__ import annotations

import os
import signal
from types import FrameType

NOTICE = signal.SIGUSR2


class DepartureNotice:
    """Whether this process was told that it will go."""

    def __init__(self) -> None:
        self.given = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.given = True

    def listen(self, wanted: bool) -> None:
        """Hear the signal from now on, where workers come and go; only a process's main thread may ask for that."""
        if wanted:
            signal.signal(NOTICE, self)

    def heed(self) -> None:
        """Before a batch: go now, if told so. All that was made of the batches before has arrived."""
        if self.given:
            os.kill(os.getpid(), signal.SIGTERM)

"""How long has a run trained, how long did it stand still, and who else used its machine?"""

from __future__ import annotations

import time

from covey.engines.process.clock import LostAttempt, Stopwatch
from covey.engines.process.launcher.contention_meter import ContentionMeter
from covey.engines.process.launcher.run_processes import RunProcesses
from covey.observe.contention import Contention


class RunClock:
    """Counts the seconds of training; what a lost attempt has cost counts too."""

    def __init__(self, processes: RunProcesses) -> None:
        self.processes = processes
        self.watch = Stopwatch()
        self.stood_still = 0.0  # seconds between the failure of the attempt before and the first step of this one
        self._paused = processes.paused
        self._contention: ContentionMeter | None = None

    def measure_contention(self) -> None:
        """From now on."""
        self._contention = ContentionMeter(self.processes.pids)

    def contention(self) -> Contention | None:
        return self._contention.result(self.processes.pids) if self._contention else None

    def begin(self, lost: LostAttempt | None) -> None:
        """All roles train."""
        if lost:
            self.stood_still = time.monotonic() - lost.moment
            self.watch = Stopwatch(lost.clock + self.stood_still)
        self.watch.start()

    def skip_pause(self) -> float:
        """Skip the seconds for which a person has stopped all processes; the number of those since the last call."""
        pause, self._paused = self.processes.paused - self._paused, self.processes.paused
        if pause > 0:
            self.watch.skip(pause)
        return pause

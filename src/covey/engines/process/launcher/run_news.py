"""What does a run tell the person who watches it? Lines at once, its progress at limited intervals."""

from __future__ import annotations

import time

from covey.engines.process.launcher.roster import Roster
from covey.observe.progress import Phase, Watcher

SHOW_EVERY = 0.1


class RunNews:
    """Tells the watcher, if there is one; usage is measured as often as progress would be shown."""

    def __init__(self, watcher: Watcher | None, budget: int | None, roster: Roster) -> None:
        self.watcher, self.budget, self.roster = watcher, budget, roster
        self._shown = time.monotonic()

    def say(self, line: str) -> None:
        if self.watcher:
            self.watcher.say(line)

    def due(self) -> bool:
        """Whether progress was last shown long enough ago."""
        return time.monotonic() - self._shown >= SHOW_EVERY

    def show(self, phase: Phase, seconds: float, metrics: dict[str, float]) -> None:
        self._shown = time.monotonic()
        if phase == "training":
            self.roster.meter.read(seconds, self.roster.bytes, len(self.roster.roles))
        if self.watcher:
            self.watcher.update(self.roster.progress(phase, seconds, self.budget, metrics))

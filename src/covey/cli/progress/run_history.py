"""What can be seen in a run as it goes: rates, scores and waits, from one `Progress` after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite, nan

from covey.observe.progress import Progress, RoleProgress
from covey.simulate.units import format_bytes, format_duration

WINDOW = 24  # reports, about three seconds
NOTABLE = 0.1  # seconds: every synchronous worker waits for some milliseconds in each step

_BLOCKS = "▁▂▃▄▅▆▇█"


class RunHistory:
    """The last reports of a run, and all its scores."""

    def __init__(self) -> None:
        self.now = Progress(phase="starting")
        self.scores: list[Mapping[str, float]] = []
        self._seen: deque[Progress] = deque(maxlen=WINDOW)

    def add(self, progress: Progress) -> bool:
        """Take the next report; True when it brings a new score."""
        self.now = progress
        if self._seen and progress.seconds < self._seen[-1].seconds:
            self._seen.clear()  # another run
            self.scores.clear()
        if not self._seen or progress.seconds > self._seen[-1].seconds:
            self._seen.append(progress)
        # As text, because nan is not equal to itself.
        scored = bool(progress.metrics) and str(progress.metrics) != str(self.scores[-1] if self.scores else None)
        if scored:
            self.scores.append(progress.metrics)
        return scored

    @property
    def speed(self) -> float | None:
        """Samples per second of training, over the last reports."""
        return self._rate(lambda progress: progress.samples)

    @property
    def traffic(self) -> float | None:
        """Bytes per second of training, over the last reports."""
        return self._rate(lambda progress: progress.bytes)

    @property
    def share(self) -> float | None:
        """How much of the budget is used, from 0 to 1."""
        return min(1.0, self.now.samples / self.now.budget) if self.now.budget else None

    @property
    def left(self) -> float | None:
        """Seconds of training until the budget is used, at this speed."""
        if not self.speed or self.now.budget is None:
            return None
        return max(0, self.now.budget - self.now.samples) / self.speed

    def longest_waits(self, count: int) -> list[tuple[str, RoleProgress]]:
        """The roles that wait notably long, the longest first."""
        waits = [(name, role) for name, role in self.now.roles.items() if role.waiting and role.waited >= NOTABLE]
        return sorted(waits, key=lambda wait: -wait[1].waited)[:count]

    def spark(self, metric: str, width: int) -> str:
        """The last scores of a metric as a row of blocks."""
        values = [scores[metric] for scores in self.scores if isfinite(scores.get(metric, nan))][-width:]
        if len(values) < 2:
            return ""
        low, high = min(values), max(values)
        return "".join(_BLOCKS[round((value - low) / ((high - low) or 1) * 7)] for value in values)

    def _rate(self, count: Callable[[Progress], int]) -> float | None:
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        return (count(last) - count(first)) / (last.seconds - first.seconds)


def number(value: float) -> str:
    """A loss or a metric, in four digits."""
    return f"{value:.4g}"


def step(role: RoleProgress) -> str:
    """A role's own step; one that only serves has none."""
    return f"{role.step:,}" if role.step >= 0 else "-"


def wait(name: str, role: RoleProgress) -> str:
    """Who waits for what, and how long already."""
    return f"{name} for {role.waiting} ({format_duration(role.waited)})"


def rates(moments: RunHistory) -> list[str]:
    """Speed, traffic and staleness, as far as they are known."""
    found = []
    if moments.speed is not None:
        found.append(f"{moments.speed:,.0f} samples/s")
    if moments.traffic is not None:
        found.append(f"{format_bytes(moments.traffic)}/s")
    if moments.now.staleness is not None:
        found.append(f"staleness {moments.now.staleness:.2g}")
    return found

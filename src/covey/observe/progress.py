"""Progress of a run: what an engine reports to the displays."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

Phase = Literal["starting", "warming", "training", "scoring", "saving", "stopping", "ended"]

Row = dict[str, int | float | None]
"""One line of the history: seconds, samples, bytes, the metrics, and the training loss since the line before."""

MEASURED = "covey:"  # begins the name of what covey measures of a model beside the user's metrics


class RoleProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One role now: its own step, its samples, the bytes it sent, and what it has waited for since how many seconds.

    `staleness` is the mean of its gradients, where it is measured.
    """

    step: int
    samples: int
    bytes: int
    waiting: str = ""
    waited: float = 0.0
    staleness: float | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A run now. Rates are for whoever shows them to derive: seconds are seconds of training."""

    phase: Phase
    seconds: float = 0.0
    samples: int = 0
    budget: int | None = None  # samples at which the run ends
    updates: int = 0
    bytes: int = 0
    loss: float | None = None
    metrics: dict[str, float] = {}
    staleness: float | None = None
    roles: dict[str, RoleProgress] = {}
    links: dict[str, dict[str, int]] = {}  # bytes that each role has sent to each other so far


@runtime_checkable
class Watcher(Protocol):
    """Shows a run to a person; called from the launcher's own thread, several times a second."""

    def update(self, progress: Progress) -> None:
        """The run as it is now."""
        ...

    def say(self, line: str) -> None:
        """Something a person should know: a warning, a long wait, a checkpoint."""
        ...

"""Shows a watcher the progress of a run in virtual time, a few times per second of real time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy

from covey.message import Address
from covey.observe.progress import Phase, Progress, RoleProgress, Watcher
from covey.observe.referee import Referee
from covey.observe.tally import Tally, Teller, mean_ages

SHOW_EVERY = 0.1
RARELY = 20  # times as long as showing takes, which ten thousand roles make long: a twentieth of the time at most


class ProgressWatch(Teller):
    """Tallies on its own, and shows what it has tallied: of a worker, the longest wait of its last step."""

    explains = True

    def __init__(
        self, watcher: Watcher, referee: Referee, budget: int | None, kept: Sequence[Tally] = ()
    ) -> None:  # fmt: skip
        super().__init__(deepcopy(kept))  # the engine goes on with the same tallies
        self.watcher, self.referee, self.budget = watcher, referee, budget
        self.shown, self.pause = 0.0, SHOW_EVERY
        self.loss: float | None = None
        self.waits: dict[Address, tuple[str, float]] = {}  # for what, and for how many seconds of the run
        self.since: dict[Address, tuple[str, float]] = {}  # a worker's longest since its last batch

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        super().noted(at, who, kind, value)
        if kind == "loss":
            self.loss = value if self.loss is None else 0.95 * self.loss + 0.05 * value
        elif kind == "samples":  # a batch, also of a run that is only timed
            self.waits[who] = self.since.pop(who, ("", 0.0))
            begin = time.monotonic()
            if begin - self.shown > self.pause:
                self.watcher.update(self.progress(at, "training"))
                self.shown = time.monotonic()
                self.pause = max(SHOW_EVERY, (self.shown - begin) * RARELY)

    def conclude(self, at: float) -> None:
        """Show the end."""
        self.watcher.update(self.progress(at, "ended"))

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        super().waited(begin, end, who, what, wire)
        if not self.tallies[who].batches:  # who does not train has no steps, and its last one is shown
            self.waits[who] = what, end - begin
        elif end - begin > self.since.get(who, ("", 0.0))[1]:
            self.since[who] = what, end - begin

    def progress(self, at: float, phase: Phase) -> Progress:
        tallies = self.tallies.values()
        ages = [(age, count) for tally in tallies for age, count in tally.staleness.items()]
        applied, stale = sum(count for _, count in ages), mean_ages(tallies)
        return Progress(
            phase=phase, seconds=at, samples=self.samples, budget=self.budget,
            updates=sum(tally.updates for tally in tallies), bytes=self.bytes, loss=self.loss,
            metrics=self.referee.metrics(),
            staleness=sum(age * count for age, count in ages) / applied if applied else None,
            roles={
                str(who): RoleProgress(
                    step=tally.batches, samples=tally.samples, bytes=sum(tally.bytes.values()),
                    waiting=waiting, waited=waited, staleness=stale.get(str(who)),
                )
                for who, tally in sorted(self.tallies.items())
                for waiting, waited in [self.waits.get(who, ("", 0.0))]
            },
            links={str(who): dict(tally.bytes) for who, tally in self.tallies.items() if tally.bytes},
        )  # fmt: skip

"""How does a launcher have the model scored? Workers in step pause after a certain one, others wherever they are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.launcher.monitor import Monitor
from covey.engines.process.launcher.quiescence import Quiescence
from covey.engines.process.snapshot_parts import SCORER
from covey.message import Address
from covey.observe.referee import Referee
from covey.observe.result import Stopped
from covey.observe.tally import read_measured


class StepPauses:
    """Where workers take their steps together, each is told in advance the step before whose gradient it pauses.

    A worker that was restarted is told so, too: all of them come to that step before the model is scored.
    """

    def __init__(self, monitor: Monitor, referee: Referee) -> None:
        self.monitor, self.board, self.roster, self.referee = monitor, monitor.board, monitor.roster, referee
        self.step: int | None = None
        self.first = 0.0  # the moment in which the first worker paused; 0: none has
        self.last = 0.0  # in which the last one did

    def tell_next(self, over: bool = False) -> None:
        """Tell all workers where they pause next; nowhere where the run is about to be stopped."""
        self.step, self.first = None if over else self.referee.next_step, 0.0
        if self.step is not None:
            self.board.tell(self.monitor.restarts.present(self.roster.trainers), control.Freeze(self.step))

    def cancel(self) -> None:
        """The run ends: who pauses goes on when it hears of that."""
        self.step = None
        self.forget_words()

    def forget_words(self) -> None:
        """All have come there, and what they said of it means nothing more."""
        self._paused.clear()

    def orders(self, last_step: int | None) -> list[control.Downward]:
        """What a worker that is restarted has to know: its last step, or where it pauses next."""
        if last_step is not None:
            return [control.Stop(last_step)]
        return [] if self.step is None else [control.Freeze(self.step)]

    @property
    def begun(self) -> bool:
        """Whether a worker has come to its step, and waits for the others."""
        if self._paused and not self.first:
            self.first = time.monotonic()
        return self.step is not None and bool(self._paused)

    def missing(self) -> list[Address]:
        """The workers that have not come there yet; one that has ended will not."""
        there = self._paused
        return [who for who in self.roster.trainers if who not in there and not self.roster.seen[who].ended]

    @property
    def _paused(self) -> dict[Address, control.Frozen]:
        return self.monitor.inbox.setdefault(control.Frozen, {})


class ModelScoring:
    """Has all roles stand still, and asks the scorer what their parts of the model are worth together."""

    def __init__(self, scored: Sequence[Address], monitor: Monitor, quiescence: Quiescence, referee: Referee) -> None:
        self.scored, self.quiescence, self.referee = scored, quiescence, referee
        self.monitor, self.board, self.roster = monitor, monitor.board, monitor.roster
        self.pauses = StepPauses(monitor, referee)

    def score_first(self) -> bool:
        """Score the initial weights, which the scorer has built, too; whether they meet the target already."""
        self.monitor.phase = "scoring"
        self.board.tell([SCORER], control.Score(0, True))
        metrics = self.monitor.collect(control.Scored, [SCORER])[SCORER].metrics
        return self.referee.judge(0.0, 0, 0, metrics, math.nan)

    def judge(self, metrics: dict[str, float], seconds: float) -> bool:
        """Whether a model with these metrics, after this many seconds of training, ends the run."""
        roster, found = self.roster, {**metrics, **read_measured(self.roster.tallies.values())}
        return self.referee.judge(seconds, roster.samples, roster.bytes, found, roster.read_loss())

    def write_last(self, file: Path | None) -> None:
        """Write what was scored last: the model that reached the target is the run's model."""
        self.board.tell([SCORER], control.Score(0, False, str(file or "")))
        self.monitor.collect(control.Scored, [SCORER])

    def at_rest(self, watch: Stopwatch) -> bool:
        """All workers pause at their step: stop the clock, and let all that they sent arrive.

        False if one of them was lost meanwhile; the others pause until it is back.
        """
        watch.stop()
        self.pauses.last = time.monotonic()
        if self.quiescence.drain(given_up=lambda: self.monitor.restarts.awaited):
            return True
        watch.start()
        return False

    @contextmanager
    def standing_still(self, watch: Stopwatch) -> Iterator[None]:
        """Inside, no compute runs and no training time passes; afterwards all roles have paused equally long."""
        before, self.monitor.phase = self.monitor.phase, "scoring"
        first, last = self._stopped(watch)
        yield
        present = self.monitor.restarts.present(self.roster.roles)
        self.board.tell(present, control.Thaw(pause=time.monotonic() - first))
        watch.start(later=last - first)
        self.monitor.phase = before

    def _stopped(self, watch: Stopwatch) -> tuple[float, float]:
        """Stop all roles; the moments in which the first and the last worker stopped computing."""
        pauses, roles = self.pauses, self.roster.roles
        if pauses.step is not None:
            pauses.forget_words()
        self.board.tell(self.monitor.restarts.present(roles), control.Freeze())
        first = self.monitor.first(control.Frozen, self.roster.trainers)
        self.monitor.collect(control.Frozen, roles)
        if pauses.step is not None:
            return pauses.first, pauses.last
        watch.stop()
        return first, time.monotonic()

    def spread(self, stopped: Stopped | None) -> Stopped | None:
        """Let all roles know the last score, where a scheduler follows it, before anybody goes on; why it stops."""
        score = self.referee.followed
        if score is not None:
            present = self.monitor.restarts.present(self.roster.roles)
            self.board.tell(present, control.Freeze(score=score))
            self.monitor.collect(control.Frozen, present)
        return stopped or ("patience" if self.referee.exhausted else "paused" if self.referee.paused else None)

    def ask(self, evaluate: bool, file: Path | None = None) -> dict[str, float]:
        """Have the scored roles send their parts of the model; the metrics of what they make together.

        The model is written to the file, if there is one.
        """
        board, monitor, order = self.board, self.monitor, control.Score(0, evaluate, str(file or ""))
        shown = monitor.restarts.showing(self.scored)
        board.tell(shown, control.TakeSnapshot())
        board.tell([SCORER], msgspec.structs.replace(order, parts=len(shown)))
        box = monitor.inbox.setdefault(control.Scored, {})

        def missing() -> list[Address]:
            """The scorer, until it has answered; it waits for nobody who is lost meanwhile."""
            if lost := [who for who in shown if who not in monitor.restarts.present(shown)]:
                shown[:] = [who for who in shown if who not in lost]
                instead = [who for who in monitor.restarts.showing(self.scored) if who not in shown]
                board.tell(instead, control.TakeSnapshot())
                shown.extend(instead)
                board.tell([SCORER], msgspec.structs.replace(order, parts=len(shown), absent=lost))
            return [] if SCORER in box else [SCORER]

        monitor.wait_for(missing)
        metrics: dict[str, float] = box.pop(SCORER).metrics
        return metrics

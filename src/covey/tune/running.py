"""A search while it goes: which slots are free, which trials run, and what each outcome means."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Literal

from covey.engines.interrupt import Interrupt, interruptible
from covey.observe.facts import INSIDE
from covey.observe.progress import Row
from covey.policy.search import TrialMove
from covey.run.record import RecordFolder
from covey.tune.outcomes import StudyResult, TrialRow, best_of
from covey.tune.segment import KEPT, Segment, SegmentOutcome, told_epochs
from covey.tune.space import Point
from covey.tune.storage import OptunaBook, StudyFolder
from covey.tune.study_request import StudyRequest
from covey.tune.trial_pool import TrialPool

FUSED = 16  # trials at most in one pass
WORTH = 1.05  # times faster: below this, trials are no longer fused
LOOK = 0.5  # seconds between two looks at the clock
End = Literal["trials", "time", "target", "interrupted"]


class RunningStudy:
    """Asks the policy, starts trials, and takes what becomes of them."""

    def __init__(
        self, asked: StudyRequest, whole: StudyResult, store: StudyFolder, book: OptunaBook, pool: TrialPool,
        recorded: RecordFolder | None, told: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.asked, self.whole, self.store, self.book, self.pool = asked, whole, store, book, pool
        self.recorded, self.told = recorded, told
        self.records = str(recorded.path / INSIDE) if recorded else ""  # of the trials; none
        self.interrupt = Interrupt()
        self.began = time.monotonic()
        self.busy: list[set[int]] = []  # the trials of each process
        self.slower = False  # whether fusing trials was found to be slower
        whole.trials = store.rows()
        whole.earlier = sum(row.samples for row in whole.trials)
        book.forget_others({row.asked for row in whole.trials})

    @property
    def rows(self) -> list[TrialRow]:
        return self.whole.trials

    def run(self) -> End:
        """Search until nothing is left to try; Ctrl-C, SIGTERM and SIGHUP end it with what was found."""
        with interruptible(self.interrupt):
            self.resume()
            while not (end := self._over()):
                self._fill()
                if not self.busy:
                    return "trials"
                for outcome in self.pool.finished(LOOK):
                    self.take(outcome)
            return end

    def resume(self) -> None:
        """Start again what an earlier process was at."""
        for row in [row for row in self.rows if row.status == "running"]:
            self._start([row])

    def begin(self, point: Point) -> TrialRow:
        """Train a new trial with these settings to its end."""
        row = self._new(None, point)
        row.until = self.asked.limits.epochs
        self._start([row])
        return row

    @property
    def reached(self) -> bool:
        """Whether the best trial has come to the target, where there is one."""
        best = best_of(self.rows, self.whole.better)
        value = best.curve[-1][1] if best else None
        return bool(self.asked.target and value is not None and self.asked.target.reached(value))

    def _over(self) -> End | None:
        if self.interrupt.asked:
            return "interrupted"
        if self.asked.within is not None and time.monotonic() - self.began > self.asked.within:
            return "time"
        return "target" if self.reached else None

    def _fill(self) -> None:
        """Give every free slot something to do, as the policy decides: one trial, or several that may be fused."""
        width = self._width()
        while len(self.busy) < self.asked.limits.slots:
            together: list[TrialRow] = []
            while len(together) < width and (move := self._decided(width)):
                together.append(self._moved(move))
                together[-1].status = "running"
            if not together:
                return
            self._start(together)

    def _width(self) -> int:
        """How many trials one process is given: more than one where they may be fused, but some for every slot."""
        asked = self.asked
        if asked.fuse == "never" or asked.engine != "simulated" or asked.workers > 1 or self.slower:
            return 1
        left = asked.limits.trials - len(self.rows)
        return max(1, min(FUSED, -(-left // asked.limits.slots)))

    def _decided(self, width: int) -> TrialMove | None:
        """What the policy wants next: with passes of this many trials, as many go at a time as in so many slots."""
        states = [row.state(self.whole.better) for row in self.rows]
        limits = replace(self.asked.limits, slots=self.asked.limits.slots * width)
        decision = self.asked.policy.next(states, limits)
        for number in decision.ends:
            self._settle(self.rows[number], "ended")
        return decision.move

    def _moved(self, move: TrialMove) -> TrialRow:
        row = self.rows[move.trial] if move.trial is not None else self._new(move.parent)
        row.until = move.until
        return row

    def _new(self, parent: int | None, fixed: Point | None = None) -> TrialRow:
        """A trial with this point, one that Optuna suggests, or that of its parent a little changed."""
        space = self.asked.space
        if parent is not None:
            random = Random(f"{self.asked.limits.seed}/{len(self.rows)}")
            fixed = space.perturbed(self.rows[parent].point, random)
        number, point = self.book.ask(len(self.rows), fixed)
        setup = space.setup(point, self.asked.strategy)
        row = TrialRow(
            number=len(self.rows), asked=number, point=point, task=setup.task(self.asked.task), strategy=setup.strategy,
            parent=parent,
        )  # fmt: skip
        if parent is not None:
            theirs = self.rows[parent]
            self._forget(row)  # where a search was interrupted, a copy may be there that no file tells of
            shutil.copytree(
                self.store.folder(parent) / KEPT, self.store.folder(row.number) / KEPT,
                ignore=shutil.ignore_patterns(".lock", ".id"),
            )  # fmt: skip
            row.curve = list(theirs.curve)
        self.rows.append(row)
        return row

    def _start(self, rows: Sequence[TrialRow]) -> None:
        """Have one process train these."""
        for row in rows:
            row.status = "running"
            self.store.write(row)
            if not row.curve:
                self._forget(row)  # of a trial that was interrupted before its first score was written down
        self.busy.append({row.number for row in rows})
        self.pool.start([self._segment(row) for row in rows])

    def _segment(self, row: TrialRow) -> Segment:
        asked, measured = self.asked, self.whole.fused is not None
        setup = asked.space.setup(row.point, asked.strategy)  # a folder may come from others: its files name no code
        return Segment(
            trial=row.number, task=setup.task(asked.task), strategy=setup.strategy, metric=asked.metric,
            folder=str(self.store.folder(row.number)), epochs=asked.limits.epochs, until=row.until,
            workers=asked.workers, engine=asked.engine, seed=asked.limits.seed, resumes=bool(row.curve),
            own_settings=row.parent is not None, runs=self.records,
            fuse="always" if asked.fuse == "auto" and measured and not self.slower else asked.fuse,
            begun=row.reached, seconds=row.seconds, curve=row.curve,
        )  # fmt: skip

    def take(self, outcome: SegmentOutcome) -> TrialRow:
        """What a trial has become: it pauses, has trained to its end, or failed."""
        row = self.rows[outcome.trial]
        for process in self.busy:
            process.discard(outcome.trial)
        self.busy = [process for process in self.busy if process]
        if outcome.fused is not None and self.whole.fused is None:
            self.whole.fused = outcome.fused
            self.slower = outcome.fused < WORTH
        row.curve, row.samples = outcome.curve or row.curve, outcome.samples or row.samples
        row.seconds, row.why = outcome.seconds or row.seconds, outcome.failure
        if row.curve and row.curve[-1][1] is None and not row.why:
            row.why = f"{self.whole.metric} is not finite after {told_epochs(row.reached)}"
        over = row.reached >= self.asked.limits.epochs
        self._settle(row, "failed" if row.why else "finished" if over else "paused")
        self._tell(row)
        return row

    def _settle(self, row: TrialRow, status: Literal["paused", "finished", "ended", "failed"]) -> None:
        row.status = status
        self.store.write(row)
        self.book.tell(row)
        if status in ("finished", "ended", "failed"):
            self._forget(row)

    def _forget(self, row: TrialRow) -> None:
        """Remove the checkpoint of a trial."""
        shutil.rmtree(self.store.folder(row.number) / KEPT, ignore_errors=True)

    def _tell(self, row: TrialRow) -> None:
        """Say how a trial went, and let the record have the best so far."""
        score = row.curve[-1][1] if row.curve else None
        what = f"failed: {row.why.splitlines()[0]}" if row.why else "no score"
        if score is not None and not row.why:
            what = f"{self.whole.metric} {score:.4g} after {told_epochs(row.reached)}, {row.status}"
        self.told(f"trial {row.number}: {what}")
        best = best_of(self.rows, self.whole.better)
        if self.recorded and best is not None:
            line: Row = {
                "seconds": time.monotonic() - self.began, "samples": sum(one.samples for one in self.rows), "bytes": 0,
                "loss": None, self.whole.metric: best.curve[-1][1], "trials": len(self.rows),
            }  # fmt: skip
            self.recorded.journal.score(line)

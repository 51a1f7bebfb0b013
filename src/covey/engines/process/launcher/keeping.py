"""How does a checkpoint come about while training goes on? Roles copy, then write; a thread of the launcher commits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.decoding import UNREADABLE
from covey.engines.process import control
from covey.engines.process.launcher.interval import Interval
from covey.engines.process.launcher.monitor import Monitor
from covey.engines.process.launcher.roster import Roster
from covey.errors import CheckpointError
from covey.message import Address
from covey.observe.referee import Referee


class CheckpointKeeper:
    """The checkpoints of one run, one at a time: the next one waits until the one before is written."""

    def __init__(
        self, checkpoints: CheckpointDirectory, interval: Interval, monitor: Monitor, say: Callable[[str], None]
    ) -> None:
        self.checkpoints, self.interval, self.monitor, self.say = checkpoints, interval, monitor, say
        self.last = False  # no other checkpoint follows
        self._run: RunRecord | None = None  # of the one that is being written
        self._incarnations: dict[Address, int] = {}  # of the roles that copied their state for it
        self._folder: AbstractContextManager[Path] | None = None
        self._place = Path()
        self._commit: Thread | None = None
        self._told, self._why, self._told_over = "", "", False
        self._final: Path | None = None  # where the newest is, if it could be written

    @property
    def roles(self) -> Sequence[Address]:
        return self.monitor.roster.roles

    @property
    def writing(self) -> bool:
        return self._run is not None

    def due(self) -> bool:
        return not self.writing and not self._over() and self.interval.due(time.monotonic())

    def _over(self) -> bool:
        """Whether nothing can be kept any more, as a worker was lost after its last step, with its state."""
        lost = self.monitor.restarts.finished - self.monitor.restarts.empty
        if lost and not self._told_over:
            self._told_over = True
            names = ", ".join(map(str, sorted(lost)))
            self.say(f"{names} was lost after its last step: training goes on, and no other checkpoint is taken")
        return bool(lost)

    def _gone(self) -> list[Address]:
        """The roles that were lost before they had written what they had copied."""
        restarts, saved = self.monitor.restarts, self.monitor.inbox.setdefault(control.Saved, {})
        lost = [
            who
            for who, incarnation in self._incarnations.items()
            if who in restarts.finished or restarts.incarnation(who) != incarnation
        ]
        return [who for who in lost if who not in saved]

    def copy(self, record: Callable[[], RunRecord]) -> None:
        """Have every role copy its state, and begin to write the copy. Nothing may move until this returns."""
        why = ""
        try:
            self._folder = self.checkpoints.writing()
            self._place = self._folder.__enter__()
        except OSError as error:
            self._folder, why = None, str(error)
        if self._folder:
            restarts = self.monitor.restarts
            self._incarnations = {who: restarts.incarnation(who) for who in self.roles if who not in restarts.empty}
            self.monitor.board.tell(list(self._incarnations), control.Save(str(self._place)))
            self.monitor.collect(control.Copied, self._incarnations)
            self._run = record()
        else:
            self.say(self._failed(why))

    def stood_still(self, seconds: float) -> None:
        """All roles go on after a pause of this many seconds."""
        self.interval.stood_still(seconds, time.monotonic())

    def look(self) -> None:
        """Commit when all roles have written; report when that is done. Never waits."""
        if self._run and not self._commit and not self._awaited():
            lost, box = self._gone(), self.monitor.inbox[control.Saved]
            words = {who: box.pop(who) for who in self._incarnations if who in box}
            whys = [f"{who}: {word.why}" for who, word in words.items() if word.why]
            self._why = next(iter(whys + [f"{who} was lost before it had written its state" for who in lost]), "")
            self.interval.wrote(sum(word.seconds for word in words.values()))
            self._commit = Thread(target=self._finish, args=(self._run,), name="checkpoint", daemon=True)
            self._commit.start()
        elif self._commit and not self._commit.is_alive():
            self._end()
            self.say(self._told)
            if self._final:
                self.checkpoints.told(self._final)  # on this thread, like all that the run tells its callbacks
            if line := self.interval.news():
                self.say(line)

    def complete(self) -> None:
        """Wait until what was copied is written."""
        while self.writing:
            if not self._commit:
                self.monitor.wait_for(self._awaited)
            self.look()
            if self._commit:
                self._commit.join(0.02)
                self.monitor.pump(0)

    def _awaited(self) -> list[Address]:
        """Who is still writing."""
        saved, gone = self.monitor.inbox.setdefault(control.Saved, {}), self._gone()
        return [who for who in self._incarnations if who not in saved and who not in gone]

    def close(self) -> None:
        """The run is over, however: what is written but for the commit is committed, what is not is removed."""
        if self._commit:
            self._commit.join()
        self._end()

    def _end(self) -> None:
        self._run = self._commit = None
        if self._folder:
            self._folder.__exit__(None, None, None)
        self._folder = None

    def _finish(self, run: RunRecord) -> None:
        """(On a thread) Sync, hash and rename."""
        begun, self._final = time.thread_time(), None
        try:
            if self._why:
                raise OSError(self._why)
            self._final = self.checkpoints.commit(self._place, run)
            self._told = f"wrote checkpoint {self._final}"
        except OSError as error:
            self._told = self._failed(str(error))
        self.interval.wrote(time.thread_time() - begun)

    def _failed(self, why: str) -> str:
        again = "" if self.last else f"; training goes on, and the next attempt is {self.interval}"
        return f"could not write a checkpoint to {self.checkpoints.directory}: {why}{again}"


class RunRecorder:
    """Writes down how far a run is: `run` is what does not change while it goes."""

    def __init__(self, run: RunRecord | None, limits: Sequence[int | None], roster: Roster, referee: Referee) -> None:
        self.run, self.limits, self.roster, self.referee = run, limits, roster, referee

    def record(self, seconds: float) -> RunRecord:
        """What a checkpoint says of the run after this much training."""
        assert self.run is not None
        ended = [address.rank for address in self.roster.trainers if self._through(address)]
        return msgspec.structs.replace(self.run, ended=ended, progress=self.progress(seconds))

    def progress(self, seconds: float) -> dict[str, Any]:
        """What a resumed run must know of the past."""
        return {"seconds": seconds, "history": list(self.referee.history), "tallies": self.roster.kept()}

    def _through(self, worker: Address) -> bool:
        """Whether the worker has done all its steps, though it may still wait for the others' goodbye."""
        limit, seen = self.limits[worker.rank], self.roster.seen[worker]
        if self.run and self.run.ranged:  # servers know what is left
            return False
        return seen.ended or (limit is not None and seen.step >= limit)


def take_over(run: RunRecord, roster: Roster, referee: Referee) -> float:
    """Go on with the tallies and the history of a kept run; the seconds that it has trained."""
    try:
        seconds = msgspec.convert(run.progress["seconds"], float)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds} seconds cannot have passed")
        roster.resume(run.progress["tallies"])
        referee.resume(run.progress["history"])
    except UNREADABLE as error:
        raise CheckpointError(f"the checkpoint does not say how far the run came: {error}") from None
    return seconds

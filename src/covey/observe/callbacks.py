"""Who else hears of a run? Callbacks, each on its own thread: neither its mistakes nor its waits stop the run."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from covey import faults
from covey.errors import PlanError
from covey.observe.facts import RunFacts
from covey.observe.membership import MembershipEvent
from covey.observe.progress import Progress, Row
from covey.observe.result import Result

MOST = 1000  # calls that wait


class Callback:
    """Hears of a run in the launcher's process; override what you need.

    Calls come one at a time, in their order, on a thread of the callback's own. One that raises, or takes longer than
    its `patience` (10 seconds), is dropped with one line, and the run goes on.

    >>> class Best(covey.Callback):
    ...     top = 0.0
    ...     def scored(self, row):
    ...         self.top = max(self.top, row["accuracy"])
    >>> best = Best()
    >>> result = covey.fit("examples/digits.py", "bsp", workers=2, engine="simulated", epochs=1, callbacks=[best])
    >>> best.top == max(row["accuracy"] for row in result.history)
    True
    """

    patience = 10.0  # seconds that one call may take, and the end of the run waits

    def started(self, facts: RunFacts) -> None:
        """The run is about to start: strategy, workers, settings, machine."""

    def reported(self, progress: Sequence[Progress]) -> None:
        """How far the run is: all reports since the last call, the newest last."""

    def scored(self, row: Row) -> None:
        """The model was scored: a line of the result's history."""

    def kept(self, checkpoint: Path) -> None:
        """A checkpoint is complete."""

    def member_left(self, change: MembershipEvent) -> None:
        """A process was lost, and the run goes on."""

    def ended(self, result: Result | None, why: str) -> None:
        """The run is over; without a result it failed, and `why` says how."""


METHODS = ("started", "reported", "scored", "kept", "member_left", "ended")


def check_methods(callback: Callback) -> None:
    """Refuse a callback that would hear nothing, because its methods have other names than those that are called."""
    if any(getattr(callback, name) != getattr(Callback, name).__get__(callback) for name in METHODS):
        return
    own = [name for name in dir(callback) if not name.startswith("_") and not hasattr(Callback, name)]
    close = {name: found[0] for name in own if (found := get_close_matches(name, METHODS, n=1, cutoff=0.4))}
    meant = f"; did you mean {', '.join(f'{right} (not {wrong})' for wrong, right in close.items())}?" if close else ""
    raise PlanError(
        f"callbacks: {type(callback).__name__} has none of the methods that are called ({', '.join(METHODS)}){meant}"
    )


class CallbackThread:
    """A callback on its own thread; what goes wrong there is told by the next call, on the thread of the run."""

    def __init__(self, callback: Callback, say: Callable[[str], None]) -> None:
        self.callback, self._say, self._patience = callback, say, callback.patience
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._changed = Condition()
        self._since: float | None = None  # when the call under way began
        self._trouble, self._dropped, self._over = "", False, False
        self._thread = Thread(target=self._work, name=f"callback {self.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return str(getattr(self.callback, "name", type(self.callback).__name__))

    def call(self, method: str, *args: Any) -> None:
        """Have this method called; never waits."""
        with self._changed:
            if self._since is not None and time.monotonic() - self._since > self._patience:
                self._drop(f"has not returned for {self._patience:g} s")
            elif len(self._calls) >= MOST:
                self._drop(f"is {MOST} calls behind")
            if not self._dropped:
                self._calls.append((method, args))
                self._changed.notify_all()
        self._tell()

    def close(self) -> None:
        """Wait until it has heard everything, as long as that is bearable."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._dropped or not (self._calls or self._since), self._patience):
                self._drop(f"has not returned for {self._patience:g} s")
        self._tell()

    def _drop(self, why: str) -> None:
        if not self._dropped:
            self._dropped, self._trouble = True, f"{self.name} {why}: it is told no more of this run"
            self._calls.clear()
            self._changed.notify_all()

    def _tell(self) -> None:
        with self._changed:
            line, self._trouble = self._trouble, ""
        if line:
            self._say(line)

    def _work(self) -> None:
        process = os.getpid()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._dropped or self._over)
                if self._dropped or not self._calls:
                    return
                method, args = self._next()
                self._since = time.monotonic()
            try:
                getattr(self.callback, method)(*args)
            except BaseException as error:
                why = faults.words(error) if isinstance(error, Exception) else repr(error)
                with self._changed:
                    self._drop(f"failed in {method}: {why}")
            if os.getpid() != process:  # a child that the callback has forked: it must not go on as the launcher
                os._exit(0)
            with self._changed:
                self._since = None
                self._changed.notify_all()

    def _next(self) -> tuple[str, tuple[Any, ...]]:
        """The next call; reports that follow each other are one."""
        method, args = self._calls.popleft()
        if method != "reported":
            return method, args
        many = [*args]
        while self._calls and self._calls[0][0] == "reported":
            many += self._calls.popleft()[1]
        return method, (many,)

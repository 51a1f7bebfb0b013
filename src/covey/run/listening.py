"""Who hears of a run: its record, and callbacks; and whoever watches it, as before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey import faults
from covey.errors import PlanError
from covey.names import option
from covey.observe.callbacks import Callback, CallbackThread, check_methods
from covey.observe.facts import RunFacts
from covey.observe.loggers import CsvLogger, logger
from covey.observe.membership import MembershipEvent
from covey.observe.progress import Progress, Row, Watcher
from covey.observe.result import Result
from covey.run.options import Options
from covey.run.record import RecordFolder, folder_of_runs, recording


class RunListeners:
    """All that hear of one run; it is also the watcher, which passes on what it is shown."""

    def __init__(self, record: RecordFolder | None, callbacks: Sequence[CallbackThread], shown: Watcher | None) -> None:
        self.record, self.callbacks, self.shown = record, callbacks, shown

    def update(self, progress: Progress) -> None:
        if self.record:
            self.record.journal.moment(progress)
        self.call("reported", progress)
        if self.shown:
            self.shown.update(progress)

    def say(self, line: str) -> None:
        if self.record:
            self.record.journal.say(line)
        if self.shown:
            self.shown.say(line)

    def scored(self, row: Row, measured: dict[str, float]) -> None:
        if self.record:
            self.record.journal.score(row, measured)
        self.call("scored", dict(row))

    def kept(self, checkpoint: Path) -> None:
        self.call("kept", checkpoint)

    def left(self, change: MembershipEvent) -> None:
        if self.record:
            self.record.journal.change(change)
        self.call("member_left", change)

    def concluded(self, result: Result) -> None:
        if self.record:
            self.record.conclude(result)
        self.end(result, "")

    def end(self, result: Result | None, why: str) -> None:
        self.call("ended", result, why)
        for callback in self.callbacks:
            callback.close()

    def call(self, method: str, *args: Any) -> None:
        for callback in self.callbacks:
            callback.call(method, *(dict(one) if isinstance(one, dict) else one for one in args))

    def heard(self, given: Options) -> Options:
        """The options, with these as the watcher."""
        return replace(given, output=replace(given.output, watcher=self))


def _loggers(texts: Sequence[str]) -> list[Callback]:
    """All of them; if one is refused, those before it are closed."""
    made: list[Callback] = []
    tables: set[Path] = set()
    try:
        for text in texts:
            one = logger(text)
            made.append(one)
            if isinstance(one, CsvLogger):
                if one.path in tables:
                    raise PlanError(f"{option('log', text)}: another logger writes this file; name two files")
                tables.add(one.path)
    except PlanError as error:
        for open_one in made:
            open_one.ended(None, str(error))
        raise
    return made


def _warning(watcher: Watcher | None) -> Callable[[str], None]:
    """Who is told what failed: also a watcher that shows nothing else."""
    return getattr(watcher, "warn", watcher.say) if watcher else _warn


def _warn(line: str) -> None:
    """Say it where nobody watches."""
    warnings.warn(line, stacklevel=2)


@contextmanager
def listening(
    given: Options, known: Callable[[], RunFacts], task: str, callbacks: Sequence[Callback] = (), cluster: str = ""
) -> Iterator[RunListeners | None]:
    """Those who hear of a run, from its start to its end; None if nobody does."""
    runs = folder_of_runs(given.output.runs)
    hear = [*callbacks, *given.output.callbacks, *_loggers(given.output.log)]
    for callback in hear:
        if not isinstance(callback, Callback):  # of a task
            raise PlanError(f"callbacks: {callback!r} is not a covey.Callback; derive its class from covey.Callback")
        check_methods(callback)
    if runs is None and not hear:
        yield None
        return
    facts, say = known(), _warning(given.output.watcher)
    told: list[Callable[[str], None]] = []

    def tell(line: str) -> None:
        for one in [*told, say]:
            one(line)

    threads = [CallbackThread(callback, tell) for callback in hear]
    try:
        if runs is None:
            found = RunListeners(None, threads, given.output.watcher)
            found.call("started", facts)
            yield found
        else:
            with recording(runs, facts, task, say, cluster) as record:
                found = RunListeners(record, threads, given.output.watcher)
                told += [record.journal.say] if record else []
                found.call("started", facts)
                yield found
    except BaseException as error:
        why = faults.words(error) if isinstance(error, Exception) else type(error).__name__
        RunListeners(None, threads, None).end(None, why)
        raise

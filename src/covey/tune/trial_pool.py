"""Who trains the trials: processes that a warm server forks, or covey runs of this process."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol, Self

import msgspec

from covey.engines.process.child_process import read, write
from covey.engines.process.forking import fork_server_client
from covey.engines.process.forking.role_processes import describe
from covey.errors import CoveyError, WireError
from covey.model.threads import limited_to
from covey.tune.segment import OUTCOME, Segment, SegmentOutcome, outcomes, train_segment
from covey.tune.trial_messages import Prepare, endings

SERVER = "covey.tune.trial_server"  # the program; imported here, it could not be run as one


class TrialPool(Protocol):
    """Trains trials, several at a time."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def prepare(self, task: str) -> None:
        """Import the file of all tasks, which can be imported."""
        ...

    def start(self, segments: Sequence[Segment]) -> None:
        """Train these in one process; never waits."""
        ...

    def finished(self, patience: float) -> list[SegmentOutcome]:
        """Those that have ended since; waits for one at most this many seconds."""
        ...


class ForkedTrials:
    """Trials in virtual time: each is one process, forked from a server that has imported torch and the task."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair()
        command = [sys.executable, "-m", SERVER, str(theirs.fileno()), str(os.getpid()), " " * 32]
        with theirs:  # a group of its own, which Ctrl-C does not reach; what tasks print is not the answer
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2, process_group=0,
                env={**os.environ, **limited_to(1)},
            )  # fmt: skip
        self.folders: dict[int, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()
        self.process.kill()  # all trials end with it
        self.process.wait()

    def prepare(self, task: str) -> None:
        write(self.line, msgspec.msgpack.encode(Prepare(task)))

    def start(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.folders[segment.trial] = Path(segment.folder)
            (Path(segment.folder) / OUTCOME).unlink(missing_ok=True)
        try:
            write(self.line, msgspec.msgpack.encode(list(segments)))
        except OSError:
            raise self._ended() from None

    def finished(self, patience: float) -> list[SegmentOutcome]:
        if not select.select([self.line], [], [], patience)[0]:
            return []
        try:
            ended = endings.read(read(self.line), "the trial server")
        except SystemExit:
            raise self._ended() from None
        return [self._outcome(trial, ended.code) for trial in ended.trials]

    def _ended(self) -> CoveyError:
        return CoveyError(f"the trial server {describe(self.process.wait())}")

    def _outcome(self, trial: int, code: int) -> SegmentOutcome:
        with suppress(FileNotFoundError, WireError):
            return outcomes.read_file(self.folders.pop(trial) / OUTCOME)
        return SegmentOutcome(trial=trial, failure=f"its process {describe(code)}")


class ThreadedTrials:
    """Trials on real processes, whose roles the shared fork server of this process forks."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[SegmentOutcome] = SimpleQueue()
        self.threads: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if any(thread.is_alive() for thread in self.threads):
            fork_server_client.close()  # their roles end with it, and so do their runs
        for thread in self.threads:
            thread.join(5.0)

    def prepare(self, task: str) -> None:
        pass

    def start(self, segments: Sequence[Segment]) -> None:
        def work() -> None:
            for segment in segments:
                self.ended.put(train_segment(segment))

        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.threads.append(Thread(target=work, name=f"trial {segments[0].trial}", daemon=True))
        self.threads[-1].start()

    def finished(self, patience: float) -> list[SegmentOutcome]:
        try:
            return [self.ended.get(timeout=patience)]
        except Empty:
            return []

"""A head whose jobs are pretended."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from covey.jobs import head as heads
from covey.jobs.head import Head
from covey.jobs.job_folder import JobFolder, ServedCluster
from covey.jobs.job_log import KnownJob, known_jobs


class PretendedProcesses:
    """Stands for `Attempts`: jobs that run until somebody says how they ended."""

    def __init__(self, folder: Path) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.codes: dict[str, int | None] = {}
        self.alive: set[str] = set()
        self.asked: list[str] = []
        self.resized: list[tuple[str, int]] = []

    def start(self, job: KnownJob, number: int, workers: int) -> None:
        assert job.name not in self.alive, "it runs already"
        self.started.append((job.name, number, workers))
        self.alive.add(job.name)

    def reserved(self, job: KnownJob, number: int, workers: int) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self, name: str, code: int | None = 0) -> None:
        self.alive.remove(name)
        self.codes[name] = code

    def end(self, job: KnownJob) -> None:
        self.asked += [job.name] if job.name not in self.asked else []

    def is_halted(self, job: KnownJob) -> bool:
        return False

    def resize(self, job: KnownJob, workers: int) -> None:
        self.resized.append((job.name, workers))

    def lives(self, job: KnownJob) -> bool:
        return job.name in self.alive

    def code(self, job: KnownJob) -> int | None:
        return self.codes.get(job.name)

    def ended(self, job: KnownJob) -> float:
        return time.time()

    def last_line(self, job: KnownJob) -> str:
        return "the last line"


def head_of(
    folder: JobFolder,
    slots: int = 2,
    policy: str = "fair",
    processes: PretendedProcesses | None = None,
    trains: bool = True,
) -> Head:
    head = Head(folder.made(), ServedCluster(slots, policy, 10.0), lambda line: None)
    head.attempts = processes or PretendedProcesses(folder.path)  # type: ignore[assignment]
    head._measure = lambda job: measured(head, job, trains)  # type: ignore[method-assign]
    return head


def measured(head: Head, job: KnownJob, trains: bool) -> None:
    """As if it had trained since it was started."""
    head.progress.setdefault(job.name, heads.JobProgress()).trains_since = job.since if trains else None


def statuses(folder: JobFolder) -> dict[str, str]:
    return {name: job.status for name, job in known_jobs(folder).items()}

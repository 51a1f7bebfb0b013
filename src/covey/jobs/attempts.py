"""How is a job started, and how does the head hear of its end, also of one that another head has started?"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from covey import atomic_file
from covey.errors import PlanError
from covey.jobs import keeper
from covey.jobs.full_disk import write_in_place
from covey.jobs.job_command import attempt_words
from covey.jobs.job_folder import OUTPUT, JobFolder, is_own_folder, sync_folder
from covey.jobs.job_log import JobEntry, KnownJob, Status, known_jobs

_FRAME = "".join(map(chr, range(0x2500, 0x2580))) + "| \t"  # what boxes around errors are drawn with
SUSPENDING = "is being suspended"  # written down before it is done: the next head must know why a job ended
KILLED = "its processes were killed"
TAIL = 1 << 14  # bytes of what a job printed, in which its last line is looked for


class Attempts:
    """The starts of all jobs of a folder. The keeper of a start holds the lock of its file while it lives."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.folder, self.threads = folder, threads  # of each worker
        self._children: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def reserved(self, job: KnownJob, number: int, workers: int) -> Iterator[None]:
        """Room on the disk for a start and for how it ends; where the block fails there was no such start."""
        place, lock = self.folder / job.name, self._lock(job, number)
        if not is_own_folder(place):
            raise PlanError(f"{place} is not a folder: links are not followed")
        end = lock.with_suffix(".end")
        try:
            write_in_place(end)
            self.resize(job, workers)
            os.close(self._output(job))
            write_in_place(lock)  # the last one: whoever finds it takes the job for started
            sync_folder(place)
            yield
        except BaseException:
            for path in (lock, end):
                path.unlink(missing_ok=True)
            raise

    def start(self, job: KnownJob, number: int, workers: int) -> None:
        """Start a job, or continue it, for which room is reserved."""
        place = self.folder / job.name
        lock, output = os.open(self._lock(job, number), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), self._output(job)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            words = attempt_words(job.request, place, workers, self.threads)
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", keeper.__name__, str(place), str(number), str(lock), *words],
                cwd=job.request.cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                pass_fds=[lock],
            )  # fmt: skip
            self._children.append(child)
        finally:
            os.close(lock)  # the started process has it
            os.close(output)

    def resize(self, job: KnownJob, workers: int) -> None:
        """The workers of a job come or go until there are so many."""
        if job.request.ranged:
            write_in_place(self.folder / job.name / keeper.WANTED, str(workers).encode())

    def end(self, job: KnownJob) -> None:
        """Ask the run of a job to keep a checkpoint and end; asking twice does no harm."""
        if pid := self._keeper(job):
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def is_halted(self, job: KnownJob) -> bool:
        """Whether its keeper was halted (SIGSTOP), so that it hears nothing."""
        with suppress(OSError, IndexError):
            stat = Path(f"/proc/{self._keeper(job)}/stat").read_bytes()
            return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")
        return False

    def kill(self, job: KnownJob) -> None:
        """End its processes at once, without a checkpoint."""
        if pid := self._keeper(job):
            with suppress(OSError):
                keeper.end_session(pid)

    def _keeper(self, job: KnownJob) -> int:
        """The process that keeps its last start; 0 if there is none."""
        with suppress(OSError, ValueError):
            pid = int(self._lock(job, job.attempt).read_text() or "0")
            title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if keeper.__name__.encode() in title and str(self.folder / job.name).encode() in title:
                return pid
        return 0

    def lives(self, job: KnownJob) -> bool:
        """Whether the keeper of its last start lives."""
        self._children = [child for child in self._children if child.poll() is None]
        return atomic_file.is_locked(self._lock(job, job.attempt))

    def code(self, job: KnownJob) -> int | None:
        """The exit code of its last start; None where nobody has written it down."""
        return keeper.exit_code(self.folder / job.name, job.attempt)

    def ended(self, job: KnownJob) -> float:
        """When its last start ended, as seconds since 1970; now, where nobody has written it down."""
        with suppress(OSError):
            if self.code(job) is not None:
                return self._lock(job, job.attempt).with_suffix(".end").lstat().st_mtime
        return time.time()

    def last_line(self, job: KnownJob) -> str:
        """What it printed last: the reason, where it failed."""
        with suppress(OSError), open(self.folder / job.name / OUTPUT, "rb", opener=_plainly) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return last_sentence(file.read(TAIL).decode(errors="replace"))[:500]
        return ""

    def _lock(self, job: KnownJob, number: int) -> Path:
        return self.folder / job.name / f"attempt-{number}"

    def _output(self, job: KnownJob) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.folder / job.name / OUTPUT, flags, 0o600)


def how_it_ended(code: int | None, asked: Status | None, last_line: Callable[[], str]) -> tuple[Status, str]:
    """The status of a job whose processes have ended, and why; `asked` is what it was asked to become."""
    if code == 0:
        return "done", ""
    if asked is not None and (code is None or code == 130 or code < 0):
        return asked, ""
    if code is None or code == -9:
        return "suspended", KILLED
    if code in (130, -15):
        return "stopped", "somebody else ended its process"
    return "failed", last_line()


def jobs_now(folder: JobFolder) -> dict[str, KnownJob]:
    """All jobs of a folder; where no head serves it, the files of a job tell that it has ended."""
    found, attempts = known_jobs(folder), Attempts(folder.path)
    for job in () if folder.is_served() else found.values():
        if job.status != "running" or attempts.lives(job):
            continue
        asked: Status | None = "suspended" if job.why == SUSPENDING else None
        asked = "stopped" if folder.is_asked_to_stop(job.name) else asked
        status, why = how_it_ended(attempts.code(job), asked, partial(attempts.last_line, job))
        job.take(JobEntry(at=attempts.ended(job), job=job.name, status=status, attempt=job.attempt, why=why))
    return found


def last_sentence(text: str) -> str:
    """The last line of a text that has letters or digits; of a box all of its lines, without the frame."""
    found: list[str] = []
    for line in reversed(text.splitlines()):
        plain = line.strip(_FRAME)
        boxed = line.lstrip().startswith(("│", "|", "┃"))
        if found and not boxed:
            break
        if any(char.isalnum() for char in plain):
            found.append(plain)
            if not boxed:
                break
    return " ".join(reversed(found))


def _plainly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

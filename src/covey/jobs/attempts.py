"""How is a job started, and how does the head hear of its end, also of one that another head has started?"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from covey import atomic_file
from covey.errors import PlanError
from covey.jobs import keeper
from covey.jobs.job_command import attempt_words
from covey.jobs.job_folder import OUTPUT, is_own_folder, write_whole
from covey.jobs.job_log import KnownJob

_FRAME = "".join(map(chr, range(0x2500, 0x2580))) + "| \t"  # what boxes around errors are drawn with
TAIL = 1 << 14  # bytes of what a job printed, in which its last line is looked for


class Attempts:
    """The starts of all jobs of a folder. The keeper of a start holds the lock of its file while it lives."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.folder, self.threads = folder, threads  # of each worker
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, job: KnownJob, number: int, workers: int) -> None:
        """Start a job, or continue it."""
        place = self.folder / job.name
        if not is_own_folder(place):
            raise PlanError(f"{place} is not a folder: links are not followed")
        self.resize(job, workers)
        lock = os.open(self._lock(job, number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        output = os.open(place / OUTPUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
            write_whole(self.folder / job.name / keeper.WANTED, str(workers).encode())

    def end(self, job: KnownJob) -> None:
        """Ask the run of a job to keep a checkpoint and end; asking twice does no harm."""
        with suppress(OSError, ValueError):
            pid = int(self._lock(job, job.attempt).read_text() or "0")
            title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if pid and keeper.__name__.encode() in title and str(self.folder / job.name).encode() in title:
                os.kill(pid, signal.SIGTERM)

    def lives(self, job: KnownJob) -> bool:
        """Whether the keeper of its last start lives."""
        self._children = [child for child in self._children if child.poll() is None]
        return atomic_file.is_locked(self._lock(job, job.attempt))

    def code(self, job: KnownJob) -> int | None:
        """The exit code of its last start; None where nobody has written it down."""
        return keeper.exit_code(self.folder / job.name, job.attempt)

    def last_line(self, job: KnownJob) -> str:
        """What it printed last: the reason, where it failed."""
        with suppress(OSError), open(self.folder / job.name / OUTPUT, "rb", opener=_plainly) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return last_sentence(file.read(TAIL).decode(errors="replace"))[:500]
        return ""

    def _lock(self, job: KnownJob, number: int) -> Path:
        return self.folder / job.name / f"attempt-{number}"


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

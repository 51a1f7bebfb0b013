"""A full disk: no job fails of it or runs twice, and a person reads that it is full."""

from __future__ import annotations

import errno
import inspect
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.errors import PlanError
from covey.jobs import full_disk
from covey.jobs.attempts import Attempts
from covey.jobs.full_disk import FullDisk, unless_full
from covey.jobs.head import Head
from covey.jobs.job_command import JobRequest
from covey.jobs.job_folder import JobFolder, ServedCluster
from covey.jobs.job_log import JobEntry, JobLog, KnownJob, known_jobs
from covey.jobs.serving import serve
from tests.jobs.pretended import head_of, statuses

RUN = ["run", "examples/digits.py", "--strategy", "bsp", "--workers", "1:2"]


def fill(place: str) -> None:
    with open(f"{place}/junk", "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


@pytest.fixture
def small(tmp_path: Path) -> Iterator[JobFolder]:
    """A queue on a small file system."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "covey", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system can be mounted only by root")
    yield JobFolder(place / "jobs").made()
    subprocess.run(["umount", "-l", place], check=True)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_how_a_job_ended_is_written_on_a_disk_that_it_has_filled(small: JobFolder, tmp_path: Path) -> None:
    plugin = tmp_path / "fills.py"
    plugin.write_text(f"{inspect.getsource(fill)}\nfill({str(small.path)!r})\n__import__('os')._exit(7)\n")
    job = KnownJob("0001", JobRequest(words=["strategies", "--plugin", str(plugin)], cwd="/", submitted=0.0), attempt=1)
    (small.path / "0001").mkdir()
    attempts = Attempts(small.path)
    with attempts.reserved(job, 1, 1):
        pass
    assert attempts.code(job) is None and abs(attempts.ended(job) - time.time()) < 60
    attempts.start(job, 1, 1)
    end = time.monotonic() + 50
    while attempts.lives(job):
        assert time.monotonic() < end
        time.sleep(0.05)
    with pytest.raises(OSError, match="No space left"):
        (small.path / "one_byte").write_bytes(b"x")
    assert attempts.code(job) == 7


def test_no_job_begins_before_there_is_room_for_its_end(small: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "FIRST", 1e-6)
    for _ in range(2):
        small.submit(RUN)
    told, started = list[str](), list[str]()
    head = Head(small, ServedCluster(2, "fair"), told.append)
    monkeypatch.setattr(head.attempts, "start", lambda job, number, workers: started.append(job.name))
    fill(str(small.path))
    for _ in range(3):
        head.look()
    assert len(told) == 1 and f"the disk of {small.path} is full" in told[0] and "remove what is not needed" in told[0]
    (small.path / "junk").unlink()
    head._take_submitted()
    junk = os.statvfs(small.path)
    with (small.path / "junk").open("wb") as file:  # room for the log, but not for a start
        file.write(b"x" * (junk.f_bavail * junk.f_frsize - 4096))
    head.look()
    assert not started and not list(small.path.glob("*/attempt-*")) and set(statuses(small).values()) == {"waiting"}
    (small.path / "junk").unlink()
    head.look()
    assert started == ["0001", "0002"] and not head._losses
    assert [line for line in told if "disk" in line or "room" in line] == [told[0], f"{small.path} has room again"]
    assert {job.attempt for job in known_jobs(small).values()} == {1}
    fill(str(small.path))
    head.attempts.resize(head.jobs["0001"], 2)
    assert int((small.path / "0001/workers").read_text()) == 2


@pytest.mark.parametrize(
    ("code", "asked", "status"), [(130, True, "suspended"), (None, False, "suspended"), (0, False, "done")]
)
def test_what_ended_while_the_log_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, asked: bool, status: str
) -> None:
    monkeypatch.setattr(full_disk, "FIRST", 1e-6)
    folder = JobFolder(tmp_path / "jobs")
    folder.submit(RUN)
    head = head_of(folder)
    head.look()
    if asked:
        head._ending["0001"] = "suspended"
    head.attempts.finish("0001", code)  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(head.log, "write", full)
        for _ in range(5):
            head.look()
    assert statuses(folder) == {"0001": "running"}
    head._take_ends()
    assert statuses(folder)["0001"] == status
    assert sum(head._losses.values()) == (code is None)


def test_a_job_that_is_refused_while_the_log_cannot_be_written_is_not_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disk, "FIRST", 1e-6)
    folder = JobFolder(tmp_path / "jobs")
    folder.submit(RUN)
    job = folder.path / "0001/job.json"
    job.write_text(job.read_text().replace("1:2", "1:3"))
    head = head_of(folder)
    with monkeypatch.context() as patched:
        patched.setattr(head.log, "write", full)
        head.look()
    head.look()
    assert statuses(folder) == {"0001": "refused"}


def test_jobs_that_run_are_stopped_while_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may be what makes room."""
    folder = JobFolder(tmp_path / "jobs")
    folder.submit(RUN)
    head = head_of(folder)
    head.look()
    folder.submit(RUN)
    monkeypatch.setattr(head.log, "write", full)
    head.look()
    assert head._disk.waits
    folder.ask_to_stop("0001")
    head.look()
    assert head.attempts.asked == ["0001"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("known", [False, True])
def test_a_head_that_starts_on_a_full_disk_says_so_in_one_line(small: JobFolder, known: bool) -> None:
    if known:  # its files are there: an earlier head has served the folder
        serve(small.path, 2, until_empty=True)
    fill(str(small.path))
    with pytest.raises(PlanError, match=f"the disk of {small.path} is full .*: remove what is not needed there"):
        serve(small.path, 2, until_empty=True)
    (small.path / "junk").unlink()
    assert serve(small.path, 2, until_empty=True) == {}


def test_pauses_grow_and_other_errors_are_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, pauses = [1.0], list[str](), list[float]()
    monkeypatch.setattr(full_disk.time, "monotonic", lambda: now[0])
    disk = FullDisk(tmp_path, told.append)
    for _ in range(7):
        assert not disk.waits
        with disk.awaited():
            full()
        began = now[0]
        while disk.waits:
            now[0] += 0.5
        pauses.append(now[0] - began)
    assert pauses == [1, 2, 4, 8, 16, 30, 30] and len(told) == 1
    with pytest.raises(PermissionError), disk.awaited():
        raise PermissionError(errno.EACCES, "no")


def test_a_line_that_cannot_be_told_does_not_end_the_head() -> None:
    unless_full(full)("a line")
    with Path("/dev/full").open("w", buffering=1) as file:
        unless_full(lambda line: print(line, file=file))("a line")
        with pytest.raises(OSError, match="No space"):
            file.close()


def test_an_entry_that_is_not_on_the_disk_is_not_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JobLog(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            log.write(JobEntry(at=1.0, job="0001", status="waiting"))
    assert log.path.read_bytes() == b""
    log.write(JobEntry(at=2.0, job="0001", status="waiting"))
    assert len(log.path.read_text().splitlines()) == 1


def test_what_follows_a_line_that_a_crash_has_torn_can_be_read(tmp_path: Path) -> None:
    whole, torn = '{"at":1.0,"job":"0001","status":"waiting"}\n', '{"at":2.0,"job":"0001","sta'
    (tmp_path / "log.jsonl").write_text(whole + torn)
    log = JobLog(tmp_path)
    log.write(JobEntry(at=3.0, job="0001", status="running", attempt=1))
    log.close()
    again = JobLog(tmp_path)
    again.close()
    assert [(one.at, one.status) for one in again.entries] == [(1.0, "waiting"), (3.0, "running")]

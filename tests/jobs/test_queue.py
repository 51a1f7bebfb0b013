"""A queue of jobs: what is refused, what a head does, and what survives it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.engines.machine import cores
from covey.errors import CoveyError, PlanError
from covey.jobs import head as heads
from covey.jobs import job_progress
from covey.jobs.attempts import KILLED, Attempts, jobs_now
from covey.jobs.head import Head
from covey.jobs.job_command import attempt_words, job_request, length
from covey.jobs.job_folder import JobFolder, ServedCluster
from covey.jobs.job_log import JobEntry, JobLog, KnownJob, known_jobs
from covey.jobs.job_progress import JobProgress, groups_alike
from covey.jobs.serving import serve
from covey.observe.facts import RecordFacts, RunFacts
from covey.observe.journal import JournalMoment
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.job_view import JobsView
from tests.jobs.pretended import head_of, statuses

RUN = ["run", "examples/digits.py", "--strategy", "bsp", "--epochs", "2"]


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "jobs")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [time.time()]
    monkeypatch.setattr(heads.time, "time", lambda: now[0])
    monkeypatch.setattr(heads.time, "monotonic", lambda: now[0] - 1e6)
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_a_job_waits_until_there_is_room(folder: JobFolder) -> None:
    names = [folder.submit([*RUN, "--workers", "2"]) for _ in range(2)]
    assert names == ["0001", "0002"]
    head = head_of(folder, policy="fifo")
    head.look()
    assert head.attempts.started == [("0001", 1, 2)] and statuses(folder) == {"0001": "running", "0002": "waiting"}
    head.attempts.finish("0001")
    head.look()
    assert statuses(folder) == {"0001": "done", "0002": "running"} and not head.idle
    head.attempts.finish("0002", 1)
    head.look()
    assert statuses(folder)["0002"] == "failed" and known_jobs(folder)["0002"].why == "the last line" and head.idle


def test_what_is_larger_than_the_cluster_is_refused_with_what_fits(folder: JobFolder) -> None:
    early = folder.submit([*RUN, "--workers", "6"])  # nobody has served yet: the head refuses it
    head = head_of(folder)
    with folder.served(ServedCluster(2, "fair")):
        head.look()
        assert statuses(folder) == {early: "refused"} and not head.attempts.started
        with pytest.raises(
            PlanError, match="needs 3 workers, and the cluster has 2 slots: --workers 2, or --workers 1:2"
        ):
            folder.submit([*RUN, "--workers", "3"])
        assert folder.submit([*RUN, "--workers", "1:6"]) == "0002", "a range that has a part that fits"


def test_of_two_heads_on_one_folder_the_second_is_refused(folder: JobFolder) -> None:
    with folder.served(ServedCluster(2, "fair")):
        assert folder.is_served()
        with (
            pytest.raises(PlanError, match=f"another head serves .* \\(process {os.getpid()}\\)"),
            JobFolder(folder.path).served(ServedCluster(2, "fair")),
        ):
            raise AssertionError("two heads")
    assert not folder.is_served()
    with folder.served(ServedCluster(2, "fair")):
        pass


@pytest.mark.parametrize("made_again", [True, False])
def test_a_head_whose_folder_is_removed_ends(folder: JobFolder, made_again: bool) -> None:
    """Its lock is on a removed file: another head would be let into a new folder beside it."""
    told = list[str]()

    def tell(line: str) -> None:
        told.append(line)
        folder.path.rename(folder.path.with_name("away"))
        if made_again:
            folder.made()
            (folder.path / ".lock").touch()

    with pytest.raises(
        CoveyError, match="was removed or replaced, so this head serves it no more; jobs that ran go on"
    ):
        serve(folder.path, 1, told=tell, until_empty=True)
    assert len(told) == 1 and not (folder.path / "log.jsonl").exists()


def test_a_person_reads_why_a_second_head_or_a_job_that_is_too_large_is_refused(folder: JobFolder) -> None:
    place = ["--jobs", str(folder.path)]
    with folder.served(ServedCluster(2, "fair")):
        second = CliRunner().invoke(app, ["jobs", "serve", *place, "--slots", "2", "--until-empty"])
        large = CliRunner().invoke(app, ["jobs", "submit", *place, "--", *RUN, "--workers", "3"])
    for told, said in ((second, "another head serves"), (large, "--workers 2, or --workers 1:2 fits")):
        assert told.exit_code == 2 and said in " ".join(told.stderr.split()), told.output
    assert folder.names() == [] and not (folder.path / "log.jsonl").exists(), "and nothing has happened"


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    with pytest.raises(PlanError, match="open to other users.*chmod 700"):
        JobFolder(tmp_path / "open").submit(RUN)
    JobFolder(tmp_path / "new").made()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing is no job"),
        (["doctor"], "covey doctor is no job"),
        ([*RUN, "--workers", "auto:4"], "the head decides how many workers a job has: write 1:4"),
        ([*RUN, "--resume", "kept"], "--resume: the head keeps records and checkpoints"),
        ([*RUN, "--checkpoint=kept"], "--checkpoint: the head keeps records and checkpoints"),
        (["run", "x.py", "--strategy", "bps"], "bps"),
    ],
)
def test_what_cannot_be_a_job_is_refused_when_it_is_submitted(folder: JobFolder, words: list[str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        folder.submit(words)
    assert folder.names() == []


def test_what_can_be_suspended_and_resized(tmp_path: Path) -> None:
    def kind(*words: str) -> tuple[bool, bool, int, int]:
        job = job_request([*RUN, *words], tmp_path, 0.0)
        return job.kept, job.ranged, job.least, job.most

    assert kind("--workers", "2") == (True, False, 2, 2)
    assert kind("--workers=1:4") == (True, True, 1, 4)
    assert kind("--workers", "1:4", "--strategy", "easgd") == (False, True, 1, 4), "no checkpoints of such a range"
    assert kind("--strategy", "easgd") == (True, False, 2, 2)
    assert kind("--engine", "mpi") == (False, False, 2, 2)
    assert job_request(["launch", "own.py", "--workers", "3"], tmp_path, 0.0).kept is False
    for words, slots in {"simulate x.py --workers 90": 1, "compare x.py": 2, "tune x.py --slots 3": 3}.items():
        assert job_request(words.split(), tmp_path, 0.0).most == slots


def test_the_command_of_a_start(tmp_path: Path) -> None:
    job = job_request([*RUN, "--workers", "1:3"], tmp_path, 0.0)
    words = attempt_words(job, tmp_path, 1, threads=3)
    assert words[: len(job.words)] == job.words and "--resume" not in words
    assert words[words.index("--threads") + 1] == "3", "it would take the whole machine"
    assert words[words.index("--faults") + 1] == "leave worker 1@0s; leave worker 2@0s"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/latest").write_text("checkpoint-000001")
    again = attempt_words(job, tmp_path, 3, threads=3)
    assert again[again.index("--resume") + 1] == str(tmp_path / "kept") and "--faults" not in again
    own = job_request([*RUN, "--threads=2"], tmp_path, 0.0)
    assert "--threads" not in attempt_words(own, tmp_path, 2, threads=3), "it has said itself"


def test_a_job_registers_its_model_where_its_command_alone_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(*words: str) -> list[str]:
        found = attempt_words(job_request([*RUN, *words], tmp_path, 0.0), tmp_path / "jobs/0001", 2, threads=1)
        return [found[place + 1] for place, word in enumerate(found) if word == "--store"]

    monkeypatch.delenv("COVEY_STORE", raising=False)
    monkeypatch.delenv("COVEY_RUNS", raising=False)
    assert store("--register", "digits") == [str(tmp_path / "model_store")] and store() == []
    assert store("--register=digits", "--store", "own") == ["own"]
    monkeypatch.setenv("COVEY_STORE", "/team/models")
    assert store("--register", "digits") == ["/team/models"]


def test_a_worker_has_the_share_of_the_cores_that_its_slot_is(folder: JobFolder) -> None:
    for slots, threads in ((1, cores()), (cores(), 1), (10_000, 1)):
        assert Head(folder.made(), ServedCluster(slots, "fair"), lambda line: None).attempts.threads == threads


def test_of_a_job_that_waits_it_is_known_what_jobs_like_it_were_measured_to_be(folder: JobFolder) -> None:
    """A waiting job of 1 epoch is shorter than a running one of 2; one of another strategy is not known to be."""
    running = folder.submit([*RUN, "--workers", "1"])
    head = head_of(folder, slots=1, policy="optimus")
    head.look()
    head.progress[running].total, head.progress[running].speeds = 4000.0, {1: 100.0}
    head.progress[running].done = 400.0
    other = folder.submit([*RUN[:3], "allreduce", "--epochs", "1", "--workers", "1"])
    head.look()
    assert not head.attempts.asked and statuses(folder)[other] == "waiting"
    short = folder.submit([*RUN[:-1], "1", "--workers=1", "--seed", "7"])
    head.look()
    assert head.attempts.asked == [running] and head.decided.workers == {short: 1}
    (alike,) = groups_alike([(head.jobs[running].request, head.progress[running])]).values()
    seen = head.progress[short].view(head.jobs[short], 0.0, alike)
    assert (seen.total, seen.speeds) == (2000.0, ((1, 100.0),))


def test_the_work_of_a_decision_grows_as_the_number_of_jobs(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether jobs are alike or not, each is asked for its length once or twice, not once for each other."""
    asked = list[int]()
    monkeypatch.setattr(job_progress, "length", lambda request: asked.append(1) or length(request))
    for policy in ("fair", "optimus"):
        head = head_of(folder, policy=policy)
        for number in range(1, 101):
            request = job_request([*RUN, "--seed", str(number)], folder.path, 0.0)
            head.jobs[f"{number:04d}"] = KnownJob(f"{number:04d}", request, status="waiting")
        head._decide()
        for known in head.progress.values():
            known.total, known.speeds = 4000.0, {1: 100.0}
        head._decide()
    assert 400 <= len(asked) <= 2 * 400


def test_jobs_take_turns_and_none_starts_before_the_other_has_ended(
    folder: JobFolder, clock: Callable[[float], None]
) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder)
    head.look()
    clock(11)
    head.look()
    assert head.attempts.asked == ["0001"] and [name for name, _, _ in head.attempts.started] == ["0001"]
    head.attempts.finish("0001", 130)
    head.look()
    assert statuses(folder) == {"0001": "suspended", "0002": "running"}
    clock(11)
    head.look()
    head.attempts.finish("0002", 130)
    head.look()
    assert head.attempts.started == [("0001", 1, 2), ("0002", 1, 2), ("0001", 2, 2)]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_jobs_take_turns_also_when_the_clock_of_the_machine_is_set(
    folder: JobFolder, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder)
    head.look()
    usual = heads.time.time
    monkeypatch.setattr(heads.time, "time", lambda: usual() + jump)
    for seconds, asked in ((9, []), (2, ["0001"])):
        clock(seconds)
        head.look()
        assert head.attempts.asked == asked
    head.attempts.finish("0001", 130)
    head.look()
    for seconds, asked in ((9, ["0001"]), (2, ["0001", "0002"])):
        clock(seconds)
        head.look()
        assert head.attempts.asked == asked


def test_a_job_that_takes_longer_to_start_than_a_slice_is_not_suspended_before_it_trains(
    folder: JobFolder, clock: Callable[[float], None]
) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder, trains=False)
    head.look()
    for _ in range(5):
        clock(11)
        head.look()
    assert head.attempts.asked == []


def test_a_job_that_ends_by_itself_while_it_is_suspended_is_done(
    folder: JobFolder, clock: Callable[[float], None]
) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder)
    head.look()
    clock(11)
    head.look()
    head.attempts.finish("0001", 0)
    head.look()
    assert statuses(folder)["0001"] == "done"


def test_a_range_shrinks_for_others_and_grows_again(folder: JobFolder) -> None:
    folder.submit([*RUN, "--workers", "1:2"])
    head = head_of(folder)
    head.look()
    assert head.attempts.started == [("0001", 1, 2)]
    folder.submit([*RUN, "--workers", "1"])
    head.look()
    assert head.attempts.resized == [("0001", 1)] and head.attempts.started[1:] == [("0002", 1, 1)]
    head.attempts.finish("0002")
    head.look()
    assert head.attempts.resized == [("0001", 1), ("0001", 2)] and not head.attempts.asked


def test_a_job_that_cannot_be_suspended_is_not(folder: JobFolder, clock: Callable[[float], None]) -> None:
    folder.submit([*RUN, "--workers", "1:2", "--strategy", "easgd"])
    folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder)
    head.look()
    clock(30)
    head.look()
    assert head.attempts.asked == [] and [name for name, _, _ in head.attempts.started] == ["0001"]


def test_the_next_head_goes_on_where_a_killed_one_was(folder: JobFolder, clock: Callable[[float], None]) -> None:
    for _ in range(3):
        folder.submit([*RUN, "--workers", "1"])
    first = head_of(folder)
    first.look()
    assert statuses(folder) == {"0001": "running", "0002": "running", "0003": "waiting"}
    folder.submit([*RUN, "--workers", "1"])  # while nobody serves
    first.attempts.finish("0002")
    with (folder.path / "log.jsonl").open("a") as log:
        log.write('{"at":1.0,"job":"0001","sta')  # it was killed while it wrote
    second = head_of(folder, processes=first.attempts)  # type: ignore[arg-type]
    second.look()
    assert statuses(folder) == {"0001": "running", "0002": "done", "0003": "running", "0004": "waiting"}
    assert [name for name, _, _ in second.attempts.started] == ["0001", "0002", "0003"], "none twice"
    assert all(json.loads(line) for line in (folder.path / "log.jsonl").read_text().splitlines())


def test_a_head_that_dies_while_it_suspends_a_job_loses_nothing(
    folder: JobFolder, clock: Callable[[float], None]
) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "2"])
    first = head_of(folder)
    first.look()
    clock(11)
    first.look()
    first.attempts.finish("0001", 130)
    second = head_of(folder, processes=first.attempts)  # type: ignore[arg-type]
    second.look()
    assert statuses(folder) == {"0001": "suspended", "0002": "running"}


def test_processes_that_were_killed_are_started_again_but_not_for_ever(folder: JobFolder) -> None:
    folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder)
    head.look()
    for number in (2, 3):
        head.attempts.finish("0001", None)
        head.look()
        assert head.attempts.started[-1] == ("0001", number, 2)
    head.attempts.finish("0001", -9)
    head.look()
    assert statuses(folder) == {"0001": "failed"} and "killed 3 times" in known_jobs(folder)["0001"].why


def test_stopping(folder: JobFolder) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "2"])
    head = head_of(folder, policy="fifo")
    head.look()
    folder.ask_to_stop("1")
    folder.ask_to_stop("0002")
    head.look()
    assert head.attempts.asked == ["0001"] and statuses(folder)["0002"] == "stopped"
    head.attempts.finish("0001", 130)
    head.look()
    assert statuses(folder)["0001"] == "stopped" and head.idle


def test_a_log_is_written_whole_or_not_at_all(folder: JobFolder) -> None:
    folder.made()
    (folder.path / "log.jsonl").write_text('{"at":1.0,"job":"0001","status":"running"}\nnonsense\n')
    with pytest.raises(PlanError, match="line 2 of .*log.jsonl cannot be read.*move the file away"):
        JobLog(folder.path)


def test_without_its_log_a_head_runs_nothing_twice(folder: JobFolder) -> None:
    codes = {"0001": 0, "0002": 1, "0003": 130, "0004": 130, "0005": None, "0006": None}
    for name, code in codes.items():
        assert folder.submit([*RUN, "--workers", "1"]) == name
        for number in () if name == "0006" else (1, 2):
            (folder.path / name / f"attempt-{number}").write_text("")
        if code is not None:
            (folder.path / name / "attempt-1.end").write_text('{"code":130}')
            (folder.path / name / "attempt-2.end").write_text(json.dumps({"code": code}))
    folder.ask_to_stop("0004")
    assert [known_jobs(folder)[name].status for name in ("0003", "0004")] == ["suspended", "stopped"], "also for a list"
    head = head_of(folder, slots=8)
    head.attempts.alive.add("0005")
    head.look()
    assert statuses(folder) == {
        "0001": "done", "0002": "failed", "0003": "running", "0004": "stopped", "0005": "running", "0006": "running",
    }  # fmt: skip
    assert sorted(head.attempts.started) == [("0003", 3, 1), ("0006", 1, 1)]


def test_without_a_head_the_files_of_a_job_tell_that_it_has_ended(folder: JobFolder) -> None:
    """The list says how, and the next head from when on; one whose keeper lives runs."""
    codes = {"0001": 0, "0002": 1, "0003": None, "0004": 130, "0005": 0}
    head, now = head_of(folder, slots=8), time.time()
    for _ in codes:
        folder.submit([*RUN, "--workers", "1"])
    head.look()
    for name, code in codes.items():
        (folder.path / name / "attempt-1").touch()
        if code is not None:
            (folder.path / name / "attempt-1.end").write_text(json.dumps({"code": code}))
            os.utime(folder.path / name / "attempt-1.end", (now + 60, now + 60))
    folder.ask_to_stop("0004")
    (folder.path / "0002/output.txt").write_text("no such file\n")
    with (folder.path / "0005/attempt-1").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = CliRunner().invoke(app, ["jobs", "list", "--jobs", str(folder.path), "--json", "-"])
        found = {row["id"]: (row["status"], row["workers"], row["why"]) for row in json.loads(shown.stdout)}
        with folder.served(head.cluster):
            assert {job.status for job in jobs_now(folder).values()} == {"running"}, "the head will tell"
    assert found == {
        "0001": ("done", 0, ""), "0002": ("failed", 0, "no such file"), "0003": ("suspended", 0, KILLED),
        "0004": ("stopped", 0, ""), "0005": ("running", 1, ""),
    }  # fmt: skip
    assert jobs_now(folder)["0001"].ended == pytest.approx(now + 60, abs=1e-3)
    stopped = CliRunner().invoke(app, ["jobs", "stop", "1", "--jobs", str(folder.path)])
    assert stopped.exit_code == 2 and "0001 is done already" in stopped.stderr
    head.attempts = Attempts(folder.path)
    head._take_ends()
    assert known_jobs(folder)["0001"].ended == pytest.approx(now + 60, abs=1e-3)


def test_a_policy_that_fails_does_not_end_the_head(folder: JobFolder) -> None:
    def broken(view: JobsView) -> Allocation:
        raise ValueError("SVD did not converge")

    for _ in range(2):
        folder.submit([*RUN, "--workers", "1"])
    head, told = head_of(folder, policy="slaq"), list[str]()
    head.told, usual, head.policy = told.append, head.policy, broken
    head.look()
    head._decide()
    assert [line for line in told if "slaq" in line] == [
        "slaq could not decide (ValueError: SVD did not converge): jobs have equal shares until it can"
    ]
    assert set(statuses(folder).values()) == {"running"}
    head.policy = lambda view: Allocation({job.name: 2 for job in view.jobs})
    head._decide()
    assert "it handed out 4 of 2 slots" in told[-1] and head.decided.used == 2
    head.policy = usual
    head._decide()
    head.policy = heads.fair
    head._decide()
    assert len([line for line in told if "could not decide" in line]) == 2


def test_packed_jobs_are_measured_and_parted_where_they_lose(folder: JobFolder, clock: Callable[[float], None]) -> None:
    for _ in range(2):
        folder.submit([*RUN, "--workers", "1"])
    head = head_of(folder, slots=1, policy="gandiva")
    head.look()
    assert [name for name, _, _ in head.attempts.started] == ["0001", "0002"]
    for known in head.progress.values():
        known.speeds, known.rate = {1: 100.0}, 45.0
    clock(11)
    head.look()
    assert head.packings == {frozenset(("0001", "0002")): pytest.approx(0.9)} and len(head.attempts.asked) == 1


def test_what_packed_jobs_do_is_not_what_each_does_alone() -> None:
    job, known = KnownJob("0001", job_request(RUN, Path("/"), 0.0), status="running", workers=2), JobProgress()
    moments = [JournalMoment(float(at), "training", samples=100 * at) for at in range(1, 9)]
    known._take(moments, job, packed=True)
    assert known.rate == 100 and not known.speeds
    known._take(moments, job, packed=False)
    assert known.speeds == {2: 100.0}


def test_how_long_a_job_is_counts_the_batches_of_all_of_its_workers() -> None:
    known = JobProgress()
    known._know(facts_of(settings={"steps": [5, 4], "batch_size": 8}))
    assert known.total == 72.0
    known._know(facts_of(settings={"steps": None, "batch_size": 8, "until": "loss<=1"}))
    assert known.total == 72.0 and known.converges, "a start that does not say so changes nothing"


def facts_of(settings: dict[str, object]) -> RecordFacts:
    run = RunFacts(task="train.py", strategy="bsp", taxonomy={}, engine="local", workers=2, settings=settings)
    return RecordFacts(schema="covey.record/1", id="a", began="", run=run)


def test_a_job_was_first_started_when_it_was_started_first() -> None:
    job = KnownJob("0001", job_request(RUN, Path("/"), 0.0))
    for at, status in ((1.0, "waiting"), (2.0, "running"), (3.0, "suspended"), (4.0, "running"), (5.0, "done")):
        job.take(JobEntry(at=at, job="0001", status=status))  # type: ignore[arg-type]
    assert (job.started, job.ended) == (2.0, 5.0)


def test_the_commands(folder: JobFolder, tmp_path: Path) -> None:
    runner, place = CliRunner(), ["--jobs", str(folder.path)]
    told = runner.invoke(app, ["jobs", "submit", *place, "--", *RUN, "--workers", "1"])
    assert told.exit_code == 0 and "submitted 0001: it waits for covey jobs serve" in told.output
    shown = runner.invoke(app, ["jobs", "list", *place, "--json", "-"])
    assert [(row["id"], row["status"], row["workers"]) for row in json.loads(shown.stdout)] == [
        ("0001", "submitted", 0)
    ]
    assert runner.invoke(app, ["jobs", "logs", *place, "1"]).exit_code == 2
    (folder.path / "0001/output.txt").write_text("a \x1b[2Jline\n")
    assert runner.invoke(app, ["jobs", "logs", *place, "1"]).stdout == "a ?[2Jline\n"
    assert "0001 will be stopped, when covey jobs serve" in runner.invoke(app, ["jobs", "stop", *place, "1"]).output
    assert "will be stopped when covey jobs serve" in runner.invoke(app, ["jobs", "list", *place]).output
    (row,) = json.loads(runner.invoke(app, ["jobs", "list", *place, "--json", "-"]).stdout)
    assert row["stop_asked"] and row["status"] == "submitted"
    assert "there is no job '7'" in runner.invoke(app, ["jobs", "stop", *place, "7"]).stderr
    assert "no policy 'best'" in runner.invoke(app, ["jobs", "serve", *place, "--policy", "best"]).stderr
    assert "0 is not a time" in runner.invoke(app, ["jobs", "serve", *place, "--slice", "0s"]).stderr

"""What does a job ask for? A covey command, how many workers it wants, and whether it can be suspended and resized."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from covey.engines import machine
from covey.errors import CoveyError, PlanError
from covey.policy.sharing.flexps import parse_stages
from covey.spec import parse_call
from covey.spec.worker_range import WorkerRange, parse_workers

SCHEMA = "covey.job/1"
COMMANDS = ("run", "launch", "compare", "simulate", "tune")
OWN = (
    "--checkpoint", "--every", "--resume", "--runs", "--no-record", "--standby", "--keeper", "--faults", "--spot-trace",
    "--trace",
)  # fmt: skip
LENGTHS = ("--epochs", "--steps")
UNLIKE = (*LENGTHS, "--workers", "--seed", "--save", "--json", "--report")  # options that change no speed of one worker
RESUMABLE = ("local", "lab", "ray")  # engines on which an interrupted run keeps a checkpoint that the next one finds

Natural = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class JobRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A job as it was submitted."""

    schema: str = SCHEMA
    words: list[str]  # of the command, without `covey`
    cwd: str
    submitted: float  # seconds since 1970
    least: Natural = 1
    most: Natural = 1
    kept: bool = False  # it can be suspended: it resumes from a checkpoint
    ranged: bool = False  # workers come and go while it runs
    stages: str = ""

    @property
    def command(self) -> str:
        return shlex.join(["covey", *self.words])


def job_request(words: Sequence[str], cwd: Path, submitted: float, stages: str = "") -> JobRequest:
    """The job that a command line asks for; PlanError where it cannot be one."""
    words = list(words[1:] if list(words[:1]) == ["covey"] else words)
    for text in (*words, str(cwd), stages):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise PlanError(f"{text!r} is not UTF-8, as the command and the folder of a job must be: rename it")
    workers = _sound(words, stages)
    return JobRequest(
        words=words, cwd=str(cwd), submitted=submitted, least=workers.least or workers.most, most=workers.most,
        kept=words[0] == "run" and _can_be_kept(words, workers), ranged=bool(workers.least), stages=stages,
    )  # fmt: skip


def refusal(job: JobRequest) -> str:
    """Why a request is none that `job_request` makes, as somebody else wrote it; empty where it is one."""
    return _refusal(job)[:500]


def _refusal(job: JobRequest) -> str:
    try:
        workers = _sound(job.words, job.stages)
    except (CoveyError, ValueError) as error:
        return str(error)
    if any("\0" in word for word in (*job.words, job.cwd)):
        return "its command has a zero byte in it"
    if job.words[0] == "tune" and option_value(job.words, "--slots") is None:  # those of whoever submitted it
        workers = WorkerRange(job.most)
    asked = (workers.least or workers.most, workers.most, bool(workers.least))
    if asked != (job.least, job.most, job.ranged) or (job.kept and job.words[0] != "run"):
        return f"its job.json asks for {job.least} to {job.most} workers, its command for {workers}: submit it again"
    return ""


def _sound(words: Sequence[str], stages: str) -> WorkerRange:
    """The workers that the words of a job ask for; PlanError where they are no job."""
    if not words or words[0] not in COMMANDS:
        given = f"covey {words[0]}" if words else "nothing"
        raise PlanError(f"{given} is no job; write for example: covey jobs submit -- run train.py --workers 2")
    workers = _workers(words)
    if workers.auto:
        raise PlanError(f"--workers {workers}: the head decides how many workers a job has: write 1:{workers.most}")
    for name in OWN if words[0] == "run" else ():
        if option_value(words, name) is not None or name in words:
            raise PlanError(f"{name}: the head keeps records and checkpoints of its jobs itself: omit it")
    if stages:
        _check_stages(stages, workers)
    return workers


def _workers(words: Sequence[str]) -> WorkerRange:
    """Those that take slots: processes, so a simulation is one, and a search has as many as trials run at a time."""
    if words[0] == "simulate" or "--simulate" in words:
        return WorkerRange(1)
    if words[0] == "tune":
        return parse_workers(option_value(words, "--slots") or str(machine.cores()))
    return parse_workers(option_value(words, "--workers") or "2")


def option_value(words: Sequence[str], name: str) -> str | None:
    """What a command line gives for an option: `--workers 2` or `--workers=2`; the last one counts."""
    found = None
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            found = words[place + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def likeness(job: JobRequest) -> tuple[str, ...]:
    """What jobs have in common that train alike: their command without how long, with whom and where to."""
    found, skipped = [job.cwd], False
    for word in job.words:
        name, given, _ = word.partition("=")
        if not skipped and name not in UNLIKE:
            found.append(word)
        skipped = not skipped and name in UNLIKE and not given
    return tuple(found)


def length(job: JobRequest) -> tuple[str, float]:
    """How long a job trains, and in what that is counted; `("", 1.0)` where its command does not say so."""
    for name in LENGTHS:
        with suppress(ValueError):
            if (value := float(option_value(job.words, name) or 0)) > 0:
                return name, value
    return "", 1.0


def attempt_words(job: JobRequest, folder: Path, workers: int, threads: int) -> list[str]:
    """The command that starts a job, or continues it, with so many workers of so many threads each."""
    words = list(job.words)
    if words[0] != "run":
        return words
    kept = folder / "kept"
    if option_value(words, "--threads") is None:  # a run takes the whole machine, if nobody says otherwise
        words += ["--threads", str(threads)]
    words += ["--runs", str(folder / "runs")]
    if option_value(words, "--register") is not None and option_value(words, "--store") is None:
        from covey.store.model_store import folder_of_store

        # where the command alone would register: not beside the records of the job
        runs = Path(os.environ.get("COVEY_RUNS") or "runs")
        words += ["--store", str(Path(job.cwd) / folder_of_store(None, runs))]
    if job.kept:
        words += ["--checkpoint", str(kept), "--every", "30s"]
    if (kept / "latest").exists():
        words += ["--resume", str(kept)]
    if job.ranged and workers < job.most:
        # a run begins with a worker in every seat: the last ones go at once
        words += ["--faults", "; ".join(f"leave worker {rank}@0s" for rank in range(workers, job.most))]
    return words


def _check_stages(stages: str, workers: WorkerRange) -> None:
    wanted = [stage.workers for stage in parse_stages(stages)]
    if not workers.least or not all(workers.least <= count <= workers.most for count in wanted):
        raise PlanError(
            f"--stages {stages!r} needs a range of workers that has them all: --workers {min(wanted)}:{max(wanted)}"
        )


def _can_be_kept(words: Sequence[str], workers: WorkerRange) -> bool:
    """Whether a run can be suspended; a strategy that is none is refused here, before it has waited for its turn."""
    from covey import catalog
    from covey.run.checks import keepable

    for plugin in [words[place + 1] for place, word in enumerate(words[:-1]) if word == "--plugin"]:
        from covey import registry

        registry.load(Path(plugin))
    engine = parse_call(option_value(words, "--engine") or "local").name
    spec = option_value(words, "--strategy") or "bsp"
    chosen = catalog.resolve(catalog.chosen(spec, workers.most), workers.most)
    return engine in RESUMABLE and keepable(chosen, workers.least)

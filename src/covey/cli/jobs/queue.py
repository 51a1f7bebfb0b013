"""covey jobs serve, list, logs, stop: a head, and what it does."""

from __future__ import annotations

import json as text_of
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag, teller
from covey.engines import machine
from covey.errors import PlanError

Folder = Annotated[
    Path | None, flag("--jobs", "DIR", "The folder of the queue. (default: COVEY_JOBS, or jobs)", options.OUTPUT)
]
Name = Annotated[str, typer.Argument(metavar="ID", help="A job, as covey jobs list shows it.")]
SHARING = "Who runs"


def folder_of(jobs: Path | None) -> Path:
    return jobs or Path(os.environ.get("COVEY_JOBS") or "jobs")


def serve(
    jobs: Folder = None,
    slots: Annotated[
        int | None, flag("--slots", "N", "How many workers run at once. (default: the cores)", SHARING, least=1)
    ] = None,
    policy: Annotated[
        str, flag("--policy", "NAME", "fifo, fair, optimus, slaq, slaq_maxmin, gandiva, dolphin or flexps.", SHARING)
    ] = "fair",
    slice: Annotated[
        str, flag("--slice", "TIME", "How long a job runs before others may have its slots.", SHARING)
    ] = "60s",
    until_empty: Annotated[bool, flag("--until-empty", "", "End when all jobs have ended.", options.BUDGET)] = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the jobs of a queue on this machine, until it is interrupted.

    Jobs that run then go on, and the next head takes them over.

    covey jobs serve --slots 4 --policy optimus
    """
    with explained("normal"):
        from covey.jobs.serving import serve as serve_folder
        from covey.simulate.units import parse_duration

        seconds = float(parse_duration(slice))
        if seconds <= 0:
            raise PlanError(f"--slice {slice}: 0 is not a time; write for example 60s")
        found = serve_folder(
            folder_of(jobs), slots or machine.cores(), policy, seconds, until_empty=until_empty,
            told=teller("quiet" if quiet else "normal"),
        )  # fmt: skip
        if until_empty and any(job.status in ("failed", "refused") for job in found.values()):
            raise typer.Exit(1)


def list_jobs(jobs: Folder = None, json: options.Json = None) -> None:
    """List the jobs of a queue, the oldest first."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.jobs import print_jobs
        from covey.jobs.attempts import jobs_now
        from covey.jobs.job_folder import JobFolder

        folder = JobFolder(folder_of(jobs))
        found = list(jobs_now(folder).values())
        if json is not None:
            rows = [
                {
                    "id": job.name, "status": job.status, "workers": job.workers, "starts": job.attempt, "why": job.why,
                    "stop_asked": not job.over and folder.is_asked_to_stop(job.name),
                    "submitted": job.request.submitted, "started": job.started, "ended": job.ended,
                    "command": job.request.command, "folder": str(folder.path / job.name),
                }
                for job in found
            ]  # fmt: skip
            json_file.write(json, text_of.dumps(rows, indent=1) + "\n")
        if json != json_file.OUTPUT:
            print_jobs(json_file.console(json), folder, found)


def logs(name: Name, jobs: Folder = None) -> None:
    """Print what a job has printed."""
    with explained("normal"):
        from covey.decoding import printable
        from covey.jobs.job_folder import OUTPUT, JobFolder

        place = JobFolder(folder_of(jobs)).named(name) / OUTPUT
        if not place.is_file() or place.is_symlink():
            raise PlanError(f"job {name} has not been started: covey jobs list shows why")
        with place.open(errors="replace") as file:
            for line in file:
                sys.stdout.write(printable(line))


def stop(name: Name, jobs: Folder = None) -> None:
    """End a job: its run keeps a checkpoint first."""
    with explained("normal"):
        from covey.jobs.attempts import jobs_now
        from covey.jobs.job_folder import JobFolder

        folder = JobFolder(folder_of(jobs))
        place = folder.named(name)
        found = jobs_now(folder).get(place.name)
        if found is None:
            raise PlanError(f"job {name} cannot be read, so it does not run: remove {place}")
        if found.over:
            raise PlanError(f"job {found.name} is {found.status} already")
        folder.ask_to_stop(name)
        waits = "" if folder.is_served() else f", when covey jobs serve --jobs {folder.path} runs again"
        json_file.console(None).print(f"{found.name} will be stopped{waits}", markup=False, soft_wrap=True)

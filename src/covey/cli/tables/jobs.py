"""A queue of jobs, and rehearsed policies, as tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.jobs.job_folder import JobFolder
from covey.jobs.job_log import KnownJob
from covey.jobs.job_sets import JobSet
from covey.jobs.rehearsal import PolicyTimes
from covey.simulate.units import format_duration

COLORS = {"running": "green", "failed": "red", "refused": "red", "suspended": "yellow", "stopped": "yellow"}


def print_jobs(console: Console, folder: JobFolder, jobs: Sequence[KnownJob]) -> None:
    """One line for each job."""
    cluster = folder.cluster()
    if cluster is not None:
        now = "is served" if folder.is_served() else "is not served now"
        console.print(Text(f"{folder.path} {now}: {cluster.slots} slots, {cluster.policy}", "dim"), soft_wrap=True)
    if not jobs:
        console.print(Text(f"no jobs in {folder.path}: covey jobs submit -- run FILE adds one"), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("id", "status", "workers", "time", "command"):
        table.add_column(name, overflow="fold", no_wrap=name != "command")
    for job in jobs:
        end = job.ended or time.time()
        table.add_row(
            job.name, Text(job.status, COLORS.get(job.status, "")), str(job.workers or "-"),
            format_duration(max(0.0, end - job.request.submitted)), Text(job.request.command),
        )  # fmt: skip
        if why := _why(folder, job):
            table.add_row("", "", "", "", Text(why, "dim"))
    console.print(table)


def _why(folder: JobFolder, job: KnownJob) -> str:
    """What there is to say of a job beside its status."""
    if job.over or not folder.is_asked_to_stop(job.name):
        return job.why
    return "is being stopped" if folder.is_served() else "will be stopped when covey jobs serve runs again"


def print_rehearsals(console: Console, jobs: JobSet, found: Sequence[PolicyTimes]) -> None:
    """One line for each policy, the best first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("policy", "mean completion", "to fair", "mean wait", "all done", "slots busy", "starts"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    fair = next((one.mean_completion for one in found if one.policy == "fair"), None)
    for one in found:
        table.add_row(
            one.policy, format_duration(one.mean_completion),
            f"{one.mean_completion / fair:.2f}x" if fair else "-", format_duration(one.mean_wait),
            format_duration(one.makespan), f"{one.busy:.0%}", f"{one.starts:,}",
        )  # fmt: skip
    console.print(table)
    console.print(f"\nbest for these {len(jobs.jobs):,} jobs on {jobs.slots} slots: {found[0].policy}", highlight=False)

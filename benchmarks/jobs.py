"""Which policy shares a cluster best, and does a rehearsal say so?  python -m benchmarks.jobs [oracle | real [POLICY…]]

The 200 jobs of `jobs_200.json`, whose curves are recorded runs of the examples, were written down before any policy had
been run: `covey jobs rehearse --runs DIR --count 200 --slots 16 --load 0.9 --seed 2026 --write jobs_200.json`.
`oracle`: what rules reach on these jobs that know everything about them.
`real`: six jobs run on two slots of this machine under four policies, and in a rehearsal.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from covey.jobs.head import EVERY, Head
from covey.jobs.job_folder import JobFolder, ServedCluster
from covey.jobs.job_sets import JobCurve, JobSet, SetJob, drawn, read_set
from covey.jobs.rehearsal import Rehearsal, RehearsalTimes, rehearse
from covey.policy.sharing import SharingPolicy
from covey.policy.sharing.allocation import Allocation, admitted
from covey.policy.sharing.greedy import Counts, greedy
from covey.policy.sharing.job_view import JobsView, JobView
from covey.policy.sharing.optimus import optimus
from covey.policy.sharing.queues import fair

WRITTEN = Path(__file__).parent / "jobs_200.json"
TASK = "examples/digits.py"
STRATEGIES = ("bsp", "asynchronous")
SIZES = [  # when they arrive, epochs, strategy
    (0.0, 120, "bsp"), (2.0, 30, "bsp"), (4.0, 80, "asynchronous"), (6.0, 20, "bsp"), (8.0, 50, "asynchronous"),
    (10.0, 40, "bsp"),
]  # fmt: skip
RECORDED = 30  # epochs of the runs that are measured first
POLICIES = ("fifo", "fair", "optimus", "slaq")
SLICE, SLOTS = 15.0, 2


def measure() -> dict[str, Any]:
    """Mean completion under each policy over that of fair shares, for the written jobs and for other loads."""
    written = read_set(WRITTEN)
    found = {"written": written} | {
        f"load {load}, seed {seed}": drawn(written.curves, 200, written.slots, load, seed)
        for load in (0.5, 0.7, 0.9, 1.1)
        for seed in (1, 2, 3)
    }
    return {name: _ratios(jobs) for name, jobs in found.items()}


def _ratios(jobs: JobSet) -> dict[str, float]:
    times = {one.policy: one.mean_completion for one in rehearse(jobs)}
    return {policy: round(seconds / times["fair"], 3) for policy, seconds in times.items()}


def real(policies: Sequence[str] = POLICIES) -> dict[str, Any]:
    """Mean completion of six real jobs under these policies, and what a rehearsal of them says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        curves, start = _calibrated(folder / "calibrated")
        jobs = JobSet(
            slots=SLOTS, curves=list(curves.values()),
            jobs=[
                SetJob(
                    name=f"{number:04d}", arrives=at, curve=strategy, most=2, size=epochs / RECORDED, known=True,
                )
                for number, (at, epochs, strategy) in enumerate(SIZES, 1)
            ],
        )  # fmt: skip
        times = RehearsalTimes(slice=SLICE, start=start, error=0.0)
        said = {one.policy: one.mean_completion for one in rehearse(jobs, policies, times)}
        print("start", start, {name: curve.speeds for name, curve in curves.items()}, "rehearsed", said)
        seen = {}
        for policy in policies:
            seen[policy] = _served(folder / policy, policy)
            print(f"{policy}: {seen[policy]:.1f} s, {said[policy]:.1f} in the rehearsal", flush=True)
    return {
        "start": start, "speeds": {name: curve.speeds for name, curve in curves.items()}, "real": seen,
        "rehearsed": said, "error": {policy: said[policy] / seen[policy] - 1 for policy in policies},
        "order": [sorted(policies, key=seen.__getitem__), list(said)],
    }  # fmt: skip


def _calibrated(folder: Path) -> tuple[dict[str, JobCurve], float]:
    """Curves and speeds of each kind of job, as a head measures them, and the seconds of a job beside its training.

    First the jobs are side by side, with one worker each; then each is alone, with both.
    """
    queue = JobFolder(folder)
    beside = [queue.submit(_words(strategy, RECORDED)) for strategy in STRATEGIES]
    with queue.served(ServedCluster(SLOTS, "fair", 600.0)):
        head = Head(queue, ServedCluster(SLOTS, "fair", 600.0), print)
        _until_idle(head)
        alone = []
        for strategy in STRATEGIES:
            alone.append(queue.submit(_words(strategy, RECORDED)))
            head.look()
            _until_idle(head)
        head.log.close()
    curves, starts = {}, []
    for strategy, first, second in zip(STRATEGIES, beside, alone, strict=True):
        known, job = head.progress[second], head.jobs[second]
        speeds = {1: head.progress[first].speeds[1], 2: known.speeds[2]}
        curves[strategy] = JobCurve(
            name=strategy, samples=sorted(known.curve), losses=[loss for _, loss in sorted(known.curve.items())],
            speeds={str(workers): speed for workers, speed in speeds.items()},
        )  # fmt: skip
        starts.append((job.ended or 0.0) - (job.started or 0.0) - known.done / speeds[2])
    return curves, fmean(starts)


def _words(strategy: str, epochs: int) -> list[str]:
    return ["run", TASK, "--strategy", strategy, "--workers", "1:2", "--epochs", str(epochs)]


def _until_idle(head: Head) -> None:
    while not head.idle:
        head.look()
        time.sleep(EVERY)


def _served(folder: Path, policy: str) -> float:
    queue, cluster = JobFolder(folder), ServedCluster(SLOTS, policy, SLICE)
    coming = list(SIZES)
    with queue.served(cluster):
        head, began = Head(queue, cluster, print), time.monotonic()
        while coming or not head.idle:
            while coming and time.monotonic() - began >= coming[0][0]:
                _, epochs, strategy = coming.pop(0)
                queue.submit(_words(strategy, epochs))
            head.look()
            time.sleep(EVERY)
        head.log.close()
    assert all(job.status == "done" for job in head.jobs.values()), head.jobs
    return fmean((job.ended or 0.0) - job.request.submitted for job in head.jobs.values())


def oracle() -> dict[str, float]:
    """Mean completion over that of fair shares on the written jobs, of rules that know all speeds and what is left."""
    jobs = read_set(WRITTEN)
    usual = Rehearsal(jobs, fair, RehearsalTimes()).run("fair").mean_completion
    rules = {"optimus": optimus, "shortest first": shortest_first, "most samples": most_samples}
    return {
        name: round(Rehearsal(jobs, _knowing(jobs, rule), RehearsalTimes()).run(name).mean_completion / usual, 3)
        for name, rule in rules.items()
    }


def _knowing(jobs: JobSet, rule: SharingPolicy) -> SharingPolicy:
    """The same rule, told the truth."""
    curves = {curve.name: curve for curve in jobs.curves}
    of = {job.name: (curves[job.curve], job.size) for job in jobs.jobs}

    def told(job: JobView) -> JobView:
        curve, size = of[job.name]
        return JobView(
            job.name, job.arrived, job.least, job.most, job.workers, job.since, job.done, curve.samples[-1] * size,
            speeds=curve.table,
        )  # fmt: skip

    return lambda view: rule(replace(view, jobs=tuple(map(told, view.jobs))))


def shortest_first(view: JobsView) -> Allocation:
    """A worker for each job, those first that end soonest; what is left goes to the shortest."""
    order = sorted(view.jobs, key=lambda job: (job.left or 0.0) / job.speed(1))
    given = admitted(order, view.slots)
    for job in order:
        while job.name in given and given[job.name] < job.most and sum(given.values()) < view.slots:
            given[job.name] += 1
    return Allocation(given)


def most_samples(view: JobsView) -> Allocation:
    """As above, but what is left goes where it raises a job's speed most, as a share of its speed with one worker."""
    order = sorted(view.jobs, key=lambda job: (job.left or 0.0) / job.speed(1))
    given = admitted(order, view.slots)
    jobs = {job.name: job for job in view.jobs if job.name in given}
    costs = {name: partial(_slowness, job) for name, job in jobs.items()}
    most, room = {name: (job.most,) for name, job in jobs.items()}, view.slots - sum(given.values())
    grown = greedy(costs, {name: (count,) for name, count in given.items()}, most, room)
    return Allocation({name: counts[0] for name, counts in grown.items()})


def _slowness(job: JobView, counts: Counts) -> float:
    return -job.speed(counts[0]) / job.speed(1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["real", *names]:
            found = real(names or POLICIES)
        case ["oracle"]:
            found = oracle()
        case _:
            found = measure()
    print(json.dumps(found, indent=1))

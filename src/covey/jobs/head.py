"""Who runs now? The head asks its policy, and starts, suspends and resizes jobs until they are as it decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from covey.engines import machine
from covey.errors import PlanError, WireError
from covey.faults import words
from covey.jobs.attempts import KILLED, SUSPENDING, Attempts, how_it_ended
from covey.jobs.full_disk import FullDisk, is_full
from covey.jobs.job_command import likeness, refusal
from covey.jobs.job_folder import JobFolder, ServedCluster, too_large
from covey.jobs.job_log import JobEntry, JobLog, KnownJob, Status, known_jobs
from covey.jobs.job_progress import JobProgress, groups_alike
from covey.jobs.steady_clock import SteadyClock
from covey.policy.sharing import sharing_policy
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.job_view import JobsView, Pair
from covey.policy.sharing.queues import fair

LOSSES = 3  # of a job's processes, under this head: then it has failed
ANSWER = 10.0  # seconds in which a keeper that was halted may be continued by whoever halted it
PATIENCE = 5.0  # seconds in which packed jobs run before what they do is measured


class Head:
    """The one process that decides about the jobs of a folder."""

    def __init__(self, folder: JobFolder, cluster: ServedCluster, told: Callable[[str], None]) -> None:
        self.folder, self.cluster, self.told = folder, cluster, told
        self.policy = sharing_policy(cluster.policy)
        self.log = JobLog(folder.path)
        self.jobs = known_jobs(folder, self.log.entries)
        self.attempts = Attempts(folder.path, max(1, machine.cores() // cluster.slots))
        self.progress: dict[str, JobProgress] = {}
        self.decided = Allocation({})
        self.packings: dict[Pair, float] = {}
        self._paired: dict[Pair, float] = {}  # since when
        self._ending: dict[str, Status] = {  # jobs that were asked to end, and what they are then
            job.name: "suspended" for job in self.jobs.values() if job.status == "running" and job.why == SUSPENDING
        }
        self._losses: dict[str, int] = {}
        self._failure = ""  # of the policy, as it was told
        self._next, self._unread, self._checked = 0.0, set[str](), set[str]()
        self._clock = SteadyClock()
        self._halted: dict[str, float] = {}  # jobs that are to end and whose keepers are halted, and since when
        self._news = False  # since the last decision
        self._disk = FullDisk(folder.path, told)

    def look(self) -> None:
        """Hear what is new, decide if it is time, and do some of what was decided."""
        self._end_those_asked()
        if self._disk.waits:
            return
        with self._disk.awaited():
            for hear in (self._take_submitted, self._take_stops, self._take_ends):
                self._news |= hear()
            if self._news or time.monotonic() >= self._next:
                self._decide()
                self._news = False
            self._carry_out()

    @property
    def idle(self) -> bool:
        return all(job.over for job in self.jobs.values())

    def _note(
        self, job: KnownJob, status: Status, workers: int = 0, attempt: int | None = None, why: str = "",
        at: float | None = None,
    ) -> None:  # fmt: skip
        entry = JobEntry(
            at=at or time.time(), job=job.name, status=status, workers=workers, why=why,
            attempt=job.attempt if attempt is None else attempt,
        )  # fmt: skip
        self.log.write(entry)
        job.take(entry)
        staff = f", {workers} worker{'' if workers == 1 else 's'}" if workers else ""
        self.told(f"{job.name} {status}{staff}{f': {why}' if why else ''}")

    def _take_submitted(self) -> bool:
        """Jobs that were submitted since the last look."""
        new = [name for name in self.folder.names() if name not in self.jobs and name not in self._unread]
        for name in new:
            try:
                request = self.folder.request(name)
            except WireError as error:
                self._unread.add(name)
                self.told(f"{name} cannot be read: {error}")
                continue
            if request is not None:
                self.jobs[name] = KnownJob(name, request, since=request.submitted)
        refused = self._refuse_unsound()
        found = [job for job in self.jobs.values() if job.status == "submitted"]
        for job in found:
            why = too_large(job.request, self.cluster.slots)
            self._note(job, "refused" if why else "waiting", why=why)
        for job in self.jobs.values():  # this head may have fewer slots than the one before
            if job.status in ("waiting", "suspended") and (why := too_large(job.request, self.cluster.slots)):
                self._note(job, "refused", why=why)
        return refused or bool(found)

    def _refuse_unsound(self) -> bool:
        """Jobs that `covey jobs submit` would not have taken: somebody else wrote them, or changed them since."""
        refused = False
        for job in [job for job in self.jobs.values() if not job.over and job.name not in self._checked]:
            if why := refusal(job.request):
                self.attempts.end(job)
                self._note(job, "refused", why=why)
                refused = True
            self._checked.add(job.name)
        return refused

    def _take_stops(self) -> bool:
        """Jobs that somebody wants to end and that do not run."""
        idle = [job for job in self.jobs.values() if not job.over and job.status != "running"]
        found = [job for job in idle if self.folder.is_asked_to_stop(job.name)]
        for job in found:
            self._note(job, "stopped")
        return bool(found)

    def _take_ends(self) -> bool:
        """Jobs whose processes have ended."""
        found = [job for job in self.jobs.values() if job.status == "running" and not self.attempts.lives(job)]
        for job in found:
            self._measure(job)
            code = self.attempts.code(job)
            asked = "stopped" if self.folder.is_asked_to_stop(job.name) else self._ending.get(job.name)
            status, why = how_it_ended(code, asked, partial(self.attempts.last_line, job))
            if why == KILLED:
                self._lost(job)
            else:
                self._note(job, status, why=why, at=self.attempts.ended(job))
            self._ending.pop(job.name, None)  # not before that is on the disk: who fails until then asks again
        return bool(found)

    def _lost(self, job: KnownJob) -> None:
        """Its processes were killed, with the machine or alone: it waits to continue from its checkpoint."""
        losses = self._losses.get(job.name, 0) + 1
        if losses >= LOSSES:
            self._note(job, "failed", why=f"its processes were killed {LOSSES} times")
        else:
            self._note(job, "suspended", why=KILLED)
        self._losses[job.name] = losses

    def _measure(self, job: KnownJob) -> None:
        packed = any(job.name in pair for pair in self.decided.pairs)
        known = self.progress.setdefault(job.name, JobProgress())
        known.look(self.folder.path / job.name / "runs", job, packed)

    def _decide(self) -> None:
        """Ask the policy."""
        alive = [job for job in self.jobs.values() if not job.over and self._ending.get(job.name) != "stopped"]
        for job in self.jobs.values():
            if job.status == "running" or job.name not in self.progress:
                self._measure(job)
        self._measure_pairs()
        now = time.monotonic()
        alike = groups_alike((job.request, self.progress[job.name]) for job in self.jobs.values())
        views = tuple(
            self.progress[job.name].view(job, self._since(job, now), alike[likeness(job.request)]) for job in alive
        )
        going = [job for job in self.jobs.values() if job.status == "running" and job not in alive]
        slots = self.cluster.slots - sum(job.workers for job in going)
        view = JobsView(now, slots, views, self.cluster.slice, self.packings)
        self.decided, self._next = self._asked_policy(view), view.next_decision
        self._paired = {pair: self._paired.get(pair, now) for pair in self.decided.pairs}

    def _since(self, job: KnownJob, now: float) -> float:
        """When its turn began, or its wait. A slice begins when it trains: starting may take longer than a slice."""
        at = self.progress[job.name].trains_since if job.status == "running" else job.since
        return now if at is None else self._clock.moment(job.name, at)

    def _asked_policy(self, view: JobsView) -> Allocation:
        """What the policy decides; equal shares where it fails: what one job measured must not end the head."""
        try:
            found = self.policy(view)
            assert found.used <= view.slots, f"it handed out {found.used} of {view.slots} slots"
        except Exception as error:
            if self.policy is fair:
                raise
            line = f"{self.cluster.policy} could not decide ({words(error)}): jobs have equal shares until it can"
            if line != self._failure:
                self.told(line)
            self._failure = line
            return fair(view)
        self._failure = ""
        return found

    def _measure_pairs(self) -> None:
        """What packed jobs do together, as shares of what each does alone."""
        for pair, since in self._paired.items():
            shares = []
            for name in pair:
                job, known = self.jobs[name], self.progress[name]
                alone = known.view(job, since).speed(job.workers) if known.speeds else None
                if alone and known.rate and job.status == "running" and time.monotonic() - since > PATIENCE:
                    shares.append(known.rate / alone)
            if len(shares) == 2:
                self.packings[pair] = sum(shares)

    def _carry_out(self) -> None:
        """First make room, then use it."""
        running = [job for job in self.jobs.values() if job.status == "running" and job.name not in self._ending]
        for job in running:
            wanted = self.decided.workers.get(job.name, 0)
            if not wanted and job.request.kept:
                self._note(job, "running", job.workers, why=SUSPENDING)
                self._ending[job.name] = "suspended"
                self.attempts.end(job)
            elif 0 < wanted < job.workers and job.request.ranged:
                self._resize(job, wanted)
        for job in sorted(self.jobs.values(), key=lambda job: job.since):
            wanted = self.decided.workers.get(job.name, 0)
            if wanted <= job.workers or job.over or self._used(job.name, wanted) > self.cluster.slots:
                continue
            if job.status == "running" and job.request.ranged and job.name not in self._ending:
                self._resize(job, wanted)
            elif job.status != "running":
                self._start(job, wanted)

    def _end_those_asked(self) -> None:
        """Again, as one that had just been started may not have heard it; one whose keeper stays halted is killed.

        It writes nothing: who wants room on a full disk stops jobs.
        """
        for job in self.jobs.values():
            if job.status == "running" and self.folder.is_asked_to_stop(job.name):
                self._ending[job.name] = "stopped"
        now, halted = time.monotonic(), {}
        for job in [self.jobs[name] for name in self._ending]:
            self.attempts.end(job)
            if not self.attempts.is_halted(job):
                continue
            halted[job.name] = self._halted.get(job.name, now)
            if now - halted[job.name] > ANSWER:
                self.told(f"{job.name} has a keeper that was halted and does not end it: its processes are killed")
                self.attempts.kill(job)
        self._halted = halted

    def _start(self, job: KnownJob, workers: int) -> None:
        number = job.attempt + 1
        try:
            with self.attempts.reserved(job, number, workers):
                self._note(job, "running", workers, number)
            self.attempts.start(job, number, workers)
        except (OSError, ValueError, PlanError) as error:  # such as a folder that is gone
            if is_full(error):
                raise
            self._note(job, "failed", why=f"it could not be started: {error}")

    def _resize(self, job: KnownJob, workers: int) -> None:
        self._note(job, "running", workers)
        self.attempts.resize(job, workers)

    def _used(self, name: str, workers: int) -> int:
        """The slots that are taken if this job has so many workers."""
        counts = {job.name: job.workers for job in self.jobs.values() if job.status == "running"} | {name: workers}
        return Allocation(counts, frozenset(pair for pair in self.decided.pairs if pair <= counts.keys())).used

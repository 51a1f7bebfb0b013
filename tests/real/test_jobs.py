"""Jobs on real processes: suspended, resumed and resized, under heads that are killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from covey.jobs.job_folder import JobFolder
from covey.jobs.job_log import KnownJob, known_jobs
from covey.observe.journal import read_now
from tests.real.harness import PATIENCE, Room, differing, fit
from tests.warm import Command

SLOWLY = "time.sleep(0.001 if (HERE / 'soon').exists() else 0.2)"


class Queue:
    """A folder of jobs in a room, and heads that serve it."""

    def __init__(self, room: Room) -> None:
        self.room, self.folder = room, JobFolder(room.path / "jobs")
        self.task = room.task(before_step=SLOWLY)

    def submit(self, strategy: str, workers: str, steps: int, engine: str = "local") -> str:
        name = f"model{len(self.folder.names()) + 1}.safetensors"
        return self.folder.submit(
            ["run", self.task, "--strategy", strategy, "--workers", workers, "--steps", str(steps), "--threads", "1",
             "--save", name, "--json", f"{name}.json", "--engine", engine],
            self.room.path,
        )  # fmt: skip

    def serve(self, slots: int, policy: str = "fair", slice: str = "2s") -> Command:
        return self.room.start(
            "-m", "covey", "jobs", "serve", "--slots", str(slots), "--policy", policy, "--slice", slice, "--until-empty"
        )

    def until(
        self, condition: Callable[[dict[str, KnownJob]], bool], patience: float = PATIENCE
    ) -> dict[str, KnownJob]:
        end = time.monotonic() + patience
        while not condition(jobs := known_jobs(self.folder)):
            assert time.monotonic() < end, (jobs, self.printed())
            time.sleep(0.05)
        return jobs

    def samples(self, job: str) -> int:
        """Those that its newest run has trained on."""
        for now in sorted((self.folder.path / job / "runs").glob("*/now.json"), reverse=True):
            if (found := read_now(now.parent)) is not None and found.phase == "training":
                return sum(role.samples for role in found.roles.values())
        return 0

    def printed(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.path.glob("*/output.txt")))

    def result(self, number: int) -> dict[str, object]:
        return dict(json.loads((self.room.path / f"model{number}.safetensors.json").read_text()))

    def hurry(self) -> None:
        (self.room.path / "soon").touch()


@pytest.mark.full
def test_jobs_survive_their_head_and_suspended_ones_end_with_the_same_weights(room: Room) -> None:
    queue = Queue(room)
    first = queue.submit("allreduce", "2", 60)
    killed = queue.serve(2)
    queue.until(lambda jobs: queue.samples(first) > 0)
    killed.kill()
    killed.wait(PATIENCE)
    seen = queue.samples(first)
    queue.until(lambda jobs: queue.samples(first) > seen)  # it goes on without a head
    second = queue.submit("bsp", "2", 40)
    head = queue.serve(2)
    jobs = queue.until(lambda jobs: jobs[second].status == "running")
    assert jobs[first].status == "suspended" and jobs[first].attempt == 1
    queue.hurry()
    assert head.wait(PATIENCE) == 0, (head.communicate(), queue.printed())
    jobs = known_jobs(queue.folder)
    assert [jobs[name].status for name in (first, second)] == ["done", "done"] and jobs[first].attempt >= 2
    for number, (strategy, steps) in enumerate([("allreduce", 60), ("bsp", 40)], 1):
        plain = fit(queue.task, strategy, 2, steps=steps).weights
        assert differing(load_file(room.path / f"model{number}.safetensors"), plain) == []


@pytest.mark.full
def test_a_range_shrinks_for_another_job_and_grows_again_while_it_trains(room: Room) -> None:
    queue = Queue(room)
    first = queue.submit("bsp", "1:2", 150)
    head = queue.serve(2, slice="60s")
    queue.until(lambda jobs: queue.samples(first) > 0)
    second = queue.submit("allreduce", "1", 20)
    jobs = queue.until(lambda jobs: jobs[second].status == "done")
    assert jobs[first].status == "running" and jobs[first].attempt == 1
    queue.until(lambda jobs: jobs[first].workers == 2)
    time.sleep(1)
    queue.hurry()
    assert head.wait(PATIENCE) == 0, (head.communicate(), queue.printed())
    result = queue.result(1)
    events = [change["event"] for change in result["membership"]]  # type: ignore[attr-defined]
    assert events == ["leave", "join"] and result["samples"] == queue.result(2)["samples"] * 15  # type: ignore[operator]


@pytest.mark.full
def test_a_range_begins_with_what_there_is_and_is_stopped(room: Room) -> None:
    queue = Queue(room)
    first, second = queue.submit("allreduce", "1", 500), queue.submit("bsp", "1:2", 500)
    head = queue.serve(2, slice="60s")
    queue.until(lambda jobs: queue.samples(second) > 0)
    assert known_jobs(queue.folder)[second].workers == 1
    time.sleep(2)
    assert len([pid for pid, title in room.processes().items() if title.startswith("covey: worker")]) == 2
    for name in (first, second):
        queue.folder.ask_to_stop(name)
    assert head.wait(PATIENCE) == 0, (head.communicate(), queue.printed())
    assert {job.status for job in known_jobs(queue.folder).values()} == {"stopped"}
    assert Path(queue.folder.path / first / "kept" / "latest").exists()

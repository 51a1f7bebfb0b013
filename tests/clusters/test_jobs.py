"""Jobs on Ray and in the lab: the engine says where their roles are, covey's policy when they run."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from covey.engines.lab import iproute
from covey.jobs.job_log import known_jobs
from tests.real.harness import Room, differing, fit
from tests.real.test_jobs import Queue

LONG = 300.0  # seconds in which a cluster starts, on a busy machine
ENGINES = [
    pytest.param("ray", marks=pytest.mark.xdist_group("ray")),
    pytest.param(
        "lab(hosts=2, rate=100mbit)",
        marks=[
            pytest.mark.xdist_group("lab"),
            pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing()),
        ],
    ),
]


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_of_a_cluster_is_suspended_for_another_and_ends_with_the_same_weights(room: Room, engine: str) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    queue = Queue(room)
    first = queue.submit("bsp", "2", 60, engine)
    head = queue.serve(2)
    queue.until(lambda jobs: queue.samples(first) > 0, LONG)
    second = queue.submit("allreduce", "2", 20)
    queue.until(lambda jobs: jobs[first].status == "suspended" and jobs[second].status == "running", LONG)
    queue.hurry()
    assert head.wait(LONG) == 0, (head.communicate(), queue.printed())
    jobs = known_jobs(queue.folder)
    assert [jobs[name].status for name in (first, second)] == ["done", "done"] and jobs[first].attempt >= 2
    assert differing(load_file(room.path / "model1.safetensors"), fit(queue.task, "bsp", 2, steps=60).weights) == []

"""Ray: the promises of every strategy, on a Ray that was there before and on one of covey's own."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey.engines.cluster import daemon_directory
from covey.errors import PlanError
from tests.clusters.harness import (
    DIGITS,
    GONE_WITHIN,
    computes_the_same,
    cut_models,
    every_strategy,
    keeps_promises,
    names_the_dead,
    restarts,
)
from tests.clusters.serving import losses_cost_no_answer, served
from tests.clusters.shared import SharedRoom, appears, ended, inside, its_own_goes_with_the_dead, names_the_dead_site
from tests.late_imports import LateImport
from tests.real.harness import SLOW, Room, Watch, differing, trained
from tests.warm import Warm

ray = LateImport("ray")
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def running(warm: Warm) -> Iterator[SharedRoom]:
    """A Ray of two CPUs that the tests share, as a notebook would have it."""
    room = SharedRoom(warm)
    try:
        with inside(room), pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            patch.setenv("RAY_worker_niceness", "0")
            ray.init(
                address="local", include_dashboard=False, num_cpus=4, logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1", _temp_dir=str(room.temporary / "ray"),
            )  # fmt: skip
            yield room
            assert ray.is_initialized(), "a Ray that was there before stays"
            ray.shutdown()
    finally:
        room.close()


@pytest.fixture
def shared(running: SharedRoom) -> Iterator[SharedRoom]:
    """That Ray, on which nothing of a run may be left."""
    yield running
    running.wait_empty(GONE_WITHIN)
    assert ray.util.list_named_actors(all_namespaces=True) == []
    assert {group["state"] for group in ray.util.placement_group_table().values()} <= {"REMOVED"}


@pytest.fixture
def cleared(warm: Warm) -> Iterator[SharedRoom]:
    """A room for a Ray that the test starts and ends itself."""
    room = SharedRoom(warm)
    try:
        yield room
        room.wait_empty(GONE_WITHIN)
    finally:
        room.close()


@every_strategy
def test_promises(shared: SharedRoom, name: str) -> None:
    """One of them packed, with a look at its actors, which are called by their roles."""
    names: list[str] = []
    watch = Watch(trained(1), lambda: names.extend(one["name"] for one in ray.util.list_named_actors(True)))
    keeps_promises("ray(placement=pack)" if name == "bsp" else "ray", name, watcher=watch)
    if name == "bsp":
        assert sorted(names) == ["covey site 0: worker 0, server 0", "covey site 1: worker 1"]


@pytest.mark.full
@cut_models("")
def test_divided_models_compute_the_same(shared: SharedRoom, mesh: str) -> None:
    computes_the_same("ray", mesh)


def test_a_task_of_this_process(shared: SharedRoom) -> None:
    """Built here, with lambdas, as in a notebook; several workers share a site."""
    images, labels = covey.data.digits().tensors
    task = covey.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double(), data=(images.double(), labels),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1), loss=nn.functional.cross_entropy,
    )  # fmt: skip
    result = covey.fit(task, "allreduce", 3, engine="ray(sites=2, cpus=0.5)", steps=20, threads=1)
    expected = covey.fit(task, "allreduce", 3, engine="simulated", steps=20).weights
    for name, value in result.weights.items():  # sums in shared memory add in another order than a ring
        assert torch.allclose(value, expected[name], rtol=0, atol=1e-12), name


@pytest.mark.full
def test_a_ray_that_is_named_is_used(shared: SharedRoom) -> None:
    """From another process, by its address."""
    engine = f'ray(address="{ray.get_runtime_context().gcs_address}")'
    process = shared.start("-m", "covey", "run", Path(DIGITS).resolve(), "--engine", engine, "--steps", "9")
    code, _, err = ended(process)
    assert code == 0, err
    assert not list(shared.temporary.glob("covey-ray-*")), "none of covey's own was started"


def test_a_dead_worker_is_named(shared: SharedRoom) -> None:
    names_the_dead(shared, "ray", "worker 1")


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "victim"), [("bsp", "server 0"), ("easgd", "master 0"), ("gosgd", "scorer 0")])
def test_other_dead_roles_are_named(shared: SharedRoom, strategy: str, victim: str) -> None:
    names_the_dead(shared, "ray", victim, strategy)


@pytest.mark.full
def test_a_run_that_lost_a_worker_starts_again(shared: SharedRoom) -> None:
    restarts(shared, "ray")


@pytest.mark.full
def test_a_dead_actor_is_named(shared: SharedRoom) -> None:
    names_the_dead_site(shared, "ray", "bsp", "site [01]: worker [01].* died|worker [01] was lost with")


def test_a_run_goes_on_without_a_lost_actor_and_with_another_in_its_place(shared: SharedRoom) -> None:
    """Nothing is lost: the weights are those of a run that lost nobody."""
    watch = Watch(trained(100), lambda: os.kill(shared.site(), signal.SIGKILL))
    task = shared.task(before_step=SLOW)
    engine = "ray(sites=2, cpus=0.5)"
    given = {"engine": engine, "steps": 80, "threads": 1, "stall": "60s", "on_failure": "continue"}
    result = covey.fit(task, "allreduce", 2, watcher=watch, **given)  # type: ignore[arg-type]
    assert watch.acted is not None and isinstance(result.membership, list)
    assert [event.event for event in result.membership] == ["rebirth"]
    assert "lost with host" in result.membership[0].cause
    assert not differing(result.weights, covey.fit(task, "allreduce", 2, engine="simulated", steps=80).weights)


@pytest.mark.full
def test_a_worker_that_is_killed_is_restarted_on_its_node(shared: SharedRoom) -> None:
    watch = Watch(trained(100), lambda: shared.kill("worker 1"))
    task = shared.task(before_step=SLOW)
    given = {"engine": "ray", "steps": 120, "threads": 1, "stall": "60s", "on_failure": "continue"}
    result = covey.fit(task, "bsp", 2, watcher=watch, **given)  # type: ignore[arg-type]
    assert watch.acted is not None and isinstance(result.membership, list)
    assert [(event.who, event.cause) for event in result.membership] == [("worker 1", "killed by signal 9")]
    assert not differing(result.weights, covey.fit(task, "bsp", 2, engine="simulated", steps=120).weights)


@pytest.mark.full
def test_sites_depart_and_arrive_by_a_trace(shared: SharedRoom) -> None:
    trace = shared.path / "spot.csv"
    trace.write_text("time,worker,event,notice\n500ms,1,depart,\n2s,1,arrive,\n")
    given = {"engine": "ray(sites=2, cpus=0.5)", "threads": 1, "stall": "60s", "spot_trace": trace}
    result = covey.fit(shared.task(before_step=SLOW), "asynchronous", "1:2", steps=900, **given)  # type: ignore[arg-type]
    assert isinstance(result.membership, list) and result.failures == []
    assert [(event.event, event.who) for event in result.membership] == [("leave", "worker 1"), ("join", "worker 1")]


@pytest.mark.full
def test_a_lost_node_costs_its_workers_only(cleared: SharedRoom) -> None:
    """Ray moves the place of the lost actor to a node with room, and the worker is restarted there."""
    task = cleared.task(before_step=SLOW)
    script = cleared.script(
        f"""
import os, signal, subprocess, sys, threading, ray, covey
where = dict(_node_ip_address="127.0.0.1", _temp_dir="{cleared.temporary / "ray"}")
ray.init(address="local", include_dashboard=False, num_cpus=1, **where)
head = ray.get_runtime_context().gcs_address
join = ["start", "--num-cpus=1", "--node-ip-address=127.0.0.2", "--block", "--address=" + head]
start = [sys.executable, "-m", "ray.scripts.scripts", *join]
nodes = [subprocess.Popen(start, stdout=subprocess.DEVNULL, start_new_session=True)]
while len(ray.nodes()) < 2:
    pass

class Watch:
    def say(self, line):
        print(line)
    def update(self, now):
        if now.phase == "training" and now.samples >= 200 and len(nodes) == 1:
            os.killpg(nodes[0].pid, signal.SIGKILL)
            join[2] = join[2].replace("127.0.0.2", "127.0.0.3")
            nodes.append(subprocess.Popen([*start[:3], *join], stdout=subprocess.DEVNULL, start_new_session=True))

try:
    result = covey.fit(
        "{task}", "asynchronous", "1:2", engine="ray(placement=spread)", steps=4000, threads=1, watcher=Watch(),
        place="servers:node0",
    )
    print("stopped by the", result.stopped, "after", result.samples, "samples")
finally:
    for node in nodes:
        os.killpg(node.pid, signal.SIGKILL)
    ray.shutdown()
"""
    )
    code, out, err = ended(cleared.start(script))
    for place in cleared.temporary.glob("covey-????????"):
        shutil.rmtree(place)  # a node that was killed with all its processes cannot do so
    assert code == 0, err
    assert "1 worker goes on until it is back" in out and "is back after" in out
    assert "stopped by the budget after 32000 samples" in out


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("ray(adress=auto)", "'ray' has no setting 'adress'; did you mean 'address'"),
        ("ray(placement=heap)", "spread or pack"),
        ("ray(cpus=many)", "cpus must be a number, not many"),
        ("ray(sites=1.5)", "a whole number"),
    ],
)
def test_settings_that_cannot_work(engine: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        covey.fit(DIGITS, "bsp", 2, engine=engine, steps=1)


def test_hosts_are_rays_own_business() -> None:
    with pytest.raises(PlanError, match="hosts=… is not for ray"):
        covey.fit(DIGITS, "bsp", 2, engine="ray", hosts="hosts.txt", steps=1)


@pytest.mark.full
def test_replicas_answer_from_actors_that_may_be_lost(shared: SharedRoom) -> None:
    engine = f'ray(address="{ray.get_runtime_context().gcs_address}")'
    with served(shared, engine) as endpoint:
        losses_cost_no_answer(endpoint, "host 1")


# -- a Ray of covey's own ----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_its_own_ray_listens_on_loopback_and_goes_with_the_run(room: Room) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = room.start("-m", "covey", "run", task, "--engine", "ray", "--workers", "2", "--steps", "300")
    appears(room, "training")
    found = listening(room)
    code, _, err = ended(process)
    assert code == 0, err
    assert len(found) > 5 and {address for address, _ in found} <= LOOPBACK, found
    room.wait_empty()


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""Its addresses, as /proc/net/tcp and tcp6 write them."""


def listening(room: Room) -> set[tuple[str, str]]:
    """Where the room's processes listen on tcp: addresses, and who they are."""
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path("/proc/net", file).read_text().splitlines()[1:]]
    doors = {f"socket:[{row[9]}]": row[1].rpartition(":")[0] for row in rows if row[3] == "0A"}
    found = set()
    for pid, title in room.processes().items():
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                if address := doors.get(os.readlink(handle)):
                    found.add((address, f"{pid} {title[:40]}"))
    return found


@pytest.mark.full
def test_a_notebook_leads(room: Room) -> None:
    """A task of `__main__`, and a thread that hears no signals."""
    script = room.script(
        """
import threading, torch, covey
from torch import nn

x, y = torch.randn(64, 6), torch.arange(64) % 3
task = covey.Task(model=lambda: nn.Linear(6, 3), data=(x, y), loss=nn.functional.cross_entropy,
                  optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=4)
results = []
cell = threading.Thread(target=lambda: results.append(covey.fit(task, "gosgd", 2, engine="ray", steps=9)))
cell.start()
cell.join()
print("stopped by the", results[0].stopped)
"""
    )
    code, out, err = ended(room.start(script))
    assert code == 0, err
    assert "stopped by the budget" in out


@pytest.mark.full
@pytest.mark.parametrize("victim", ["worker 1", "server 0"])
def test_its_own_ray_goes_with_the_dead(room: Room, victim: str) -> None:
    its_own_goes_with_the_dead(room, "ray", victim)


@pytest.mark.full
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_a_dead_launcher_takes_its_roles_along(room: Room, moment: str) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = room.start("-m", "covey", "run", task, "--engine", "ray", "--workers", "2", "--steps", "5000")
    appears(room, "tmp/covey-ray-*/session_*" if moment == "starting" else "training")
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    ended(process)
    while roles := [title for title in room.processes().values() if title.startswith("covey:")]:
        assert time.monotonic() - killed < GONE_WITHIN, roles
        time.sleep(0.05)
    daemon_directory.sweep("ray")  # as the next start does
    room.wait_empty()


@pytest.mark.full
def test_the_task_travels_to_nodes_that_do_not_have_it(cleared: SharedRoom) -> None:
    """A second node sees an empty folder where the task and its module are; they come along with the config."""
    if os.getuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("a node with other files needs root and mount namespaces")
    (cleared.path / "mine").mkdir()
    task = cleared.task("mine/task.py", more="import helper\nassert helper.THERE")
    (cleared.path / "mine" / "helper.py").write_text("THERE = True")
    script = cleared.script(
        f"""
import subprocess, sys, ray, covey
where = dict(_node_ip_address="127.0.0.1", _temp_dir="{cleared.temporary / "ray"}")
ray.init(address="local", include_dashboard=False, num_cpus=1, **where)
head = ray.get_runtime_context().gcs_address
join = "ray start --num-cpus=1 --node-ip-address=127.0.0.2 --block --address=" + head
hide = "mount -t tmpfs none {cleared.path / "mine"} && exec {sys.executable} -m ray.scripts.scripts " + join[4:]
node = subprocess.Popen(["unshare", "-m", "sh", "-c", hide], stdout=subprocess.DEVNULL)
try:
    while len(ray.nodes()) < 2:
        pass
    result = covey.fit("{task}", "bsp", 2, engine="ray(placement=spread)", steps=9, threads=1)
    print("stopped by the", result.stopped)
finally:
    node.terminate(); node.wait(); ray.shutdown()
"""
    )
    code, out, err = ended(cleared.start(script))
    assert code == 0, err
    assert "stopped by the budget" in out

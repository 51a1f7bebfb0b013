"""The lab: hosts as network namespaces with shaped links and CPU quotas, on which every strategy keeps its promises."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import covey
from covey.calibrate import calibrate
from covey.cli import app
from covey.engines.cluster.engine_processes import title
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.lab import fork_server, iproute, quota, running
from covey.engines.lab.fork_server import Invitation
from covey.engines.process import liveness
from covey.engines.process.child_process import Launcher, write
from covey.engines.process.forking import fork_server_client
from covey.errors import RoleFailed
from covey.observe.progress import Progress
from tests.clusters.harness import (
    DIGITS,
    GONE_WITHIN,
    NUMBERS,
    every_strategy,
    keeps_promises,
    names_the_dead,
    restarts,
)
from tests.clusters.lab_parts import left, left_here, network, seconds
from tests.real.harness import SLOW, Room, Watch, finish, trained

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing())]
SITE_CONFIG = SiteConfig(site=0, launcher="tcp://127.0.0.1:1", warm="math")
LAB = "lab(hosts=3, rate=100mbit)"
PAIR = "lab(hosts=2, rate=100mbit)"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert not left_here()


@every_strategy
def test_promises(room: Room, name: str) -> None:
    keeps_promises(LAB, name)


def test_memory_inside_a_host_and_one_exchange_between_them(room: Room) -> None:
    """Four workers on two hosts: the first of each carries its host's sum; nothing else leaves a host."""
    result = covey.fit(DIGITS, "allreduce(pattern=hierarchical, local=0)", 4, steps=10, engine=PAIR)
    home = {"worker 0": 0, "worker 1": 0, "worker 2": 1, "worker 3": 1}
    ends = {link: link.split("->") for link in result.traffic.by_link}
    away = {link: result.traffic.by_link[link] for link, (a, b) in ends.items() if home[a] != home[b]}
    assert away == {"worker 0->worker 2": 10 * 4 * NUMBERS, "worker 2->worker 0": 10 * 4 * NUMBERS}
    assert result.notes["native bytes"] == result.traffic.bytes - sum(away.values())


def test_a_task_of_this_process_is_measured_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites get the few samples of which it is made."""
    monkeypatch.setattr("covey.calibrate.prices", lambda codecs: {})
    monkeypatch.setattr("covey.calibrate.rehearsed", lambda cluster, *_: cluster)
    found = calibrate(DIGITS, "lab(hosts=2, rate=100mbit, cpu=0.5)", batches=5, threads=1)
    assert found.link.bandwidth == pytest.approx(100e6 / 8) and 0 < found.compute < 1
    assert [machine.cores for machine in found.machines] == [0.5, 0.5]


def test_hosts_are_forks_of_the_process_that_has_imported_torch(room: Room) -> None:
    """Importing it again would cost each run of a command some seconds."""
    found: list[str] = []

    class Look(Watch):
        def update(self, progress: Progress) -> None:
            for server in liveness.children(fork_server_client.RUNNING[0].pid):
                found.extend(map(title, liveness.children(server)))

    covey.fit(DIGITS, "bsp", 1, steps=2, engine=PAIR, watcher=Look())
    assert {"covey: site h0", "covey: site h1"} <= {*found}


def test_no_hosts_are_forked_for_a_run_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended while torch was imported; its networks are gone."""
    ours, theirs = socket.socketpair()
    write(ours, msgspec.msgpack.encode([Invitation(config=SITE_CONFIG, host="h0", namespace="none")]))
    write(ours, b"")
    ours.close()
    monkeypatch.setattr(fork_server, "entitle", lambda title: None)
    monkeypatch.setattr(fork_server, "_fork", lambda *_: pytest.fail("a host was forked"))
    before = signal.getsignal(signal.SIGHUP)
    try:
        fork_server.main(theirs.detach(), "", "math", Launcher(60.0))
    finally:
        signal.signal(signal.SIGHUP, before)


# -- links


@pytest.mark.alone
@pytest.mark.parametrize(("sender", "receiver"), [(0, 1), (1, 0)])
def test_the_rate_is_the_rate(sender: int, receiver: int) -> None:
    """Of a host that sends and of one that receives: the other one's link is not shaped. What else the machine does can
    only make a transfer slower, so the fastest of a few counts.
    """
    size, rate, fastest = 1_000_000, 20e6 / 8, 0.0
    with network(rate="20mbit,unshaped") as net:
        for _ in range(30):
            fastest = max(fastest, size / seconds(net, sender, receiver, size))
            if fastest >= 0.9 * rate:
                break
    assert fastest == pytest.approx(rate, rel=0.1)


@pytest.mark.alone
def test_two_labs_at_once() -> None:
    """Neither sees the other's hosts, though both call them h0 and h1."""
    with network(hosts=2) as one, network(hosts=3) as other:
        assert one.data != other.data or one.lab != other.lab
        assert one.lab.hosts == ["h0", "h1"] and other.lab.hosts == ["h0", "h1", "h2"]
        one.lab.cut("h1")
        assert not other.lab.is_cut("h1")
        assert seconds(other, 0, 1, 1000) < 5.0
        assert one.lab.traffic("h0").sent < 1000 < other.lab.traffic("h0").sent


@pytest.mark.alone
@pytest.mark.parametrize("name", ["bsp", pytest.param("allreduce", marks=pytest.mark.full)])
def test_a_cut_link_is_waited_for(room: Room, name: str) -> None:
    """Nobody fails, nothing is lost: the run ends with the very weights of an undisturbed one."""
    seen: list[int] = []

    def cut() -> None:
        lab = running.mine()
        lab.cut("h1")
        threading.Timer(1.0, lambda: seen.append(watch.samples)).start()
        threading.Timer(3.0, restore, [lab]).start()

    def restore(lab: running.Lab) -> None:
        seen.append(watch.samples)
        lab.restore("h1")

    watch = Counting(trained(500), cut)
    result = keeps_promises("lab(hosts=2, rate=16mbit)", name, watcher=watch)
    assert seen[0] == seen[1] < result.samples, "while a link is cut nothing moves"


@pytest.mark.alone
@pytest.mark.parametrize(("name", "unclocked"), [("gosgd(probability=1.0)", True), ("local_sgd(period=1)", False)])
def test_what_comes_while_the_clock_stands_is_told(room: Room, name: str, unclocked: bool) -> None:
    """Who trains on until a message comes gets it during a score for nothing; who waits for it does not."""
    task = room.task(
        model="nn.Sequential(nn.Linear(6, 9000), nn.Linear(9000, 3))", before_step="time.sleep(0.1)",
        before_score="time.sleep(0.5)", options="evaluate=score",
    )  # fmt: skip
    result = covey.fit(task, name, 2, engine="lab(hosts=2, rate=8mbit)", steps=5, scores=4)
    assert ("unclocked bytes" in result.notes) == unclocked
    assert len(result.history) >= 2


class Counting(Watch):
    samples = 0

    def update(self, progress: Progress) -> None:
        self.samples = progress.samples
        super().update(progress)


def _typed(*words: str) -> bool:
    return CliRunner().invoke(app, ["lab", *words]).exit_code == 0


def test_the_lab_is_listed(tmp_path: Path) -> None:
    with network(hosts=2) as net:
        assert _typed("cut", "h0", "--lab", str(net.lab.name))
        file = tmp_path / "labs.json"
        assert _typed("list", "--json", str(file))
        (mine,) = [lab for lab in json.loads(file.read_text()) if lab["lab"] == str(net.lab.name)]
        assert mine["running"] and mine["process"] == os.getpid()
        assert [host["cut"] for host in mine["hosts"].values()] == [True, False]
        assert not _typed("cut", "h7", "--lab", str(net.lab.name))
        assert _typed("restore", "h0", "--lab", str(net.lab.name)) and not net.lab.is_cut("h0")
    assert not _typed("cut", "h0", "--lab", str(net.lab.name))


# -- cores, and what is no traffic


@pytest.mark.alone
def test_a_slow_host_is_a_smaller_quota(room: Room) -> None:
    """Half the quota is half the speed; and what the scorer gets does not pass the shaped links."""
    steps: list[tuple[int, int]] = []
    passed: list[int] = []

    def look(progress: Progress) -> bool:
        if progress.phase == "ended":
            lab = running.mine()
            passed.append(sum(lab.traffic(host).sent for host in lab.hosts))
        fast, slow = (progress.roles.get(f"worker {rank}") for rank in (0, 1))
        if fast and slow and 30 <= fast.step < 140:  # the first steps are slower than the others
            steps.append((fast.step, slow.step))
        return False

    engine = 'lab(hosts=2, rate=100mbit, cpu="0.12,0.06")'
    result = covey.fit(DIGITS, "gosgd(probability=0.02)", 2, engine=engine, steps=150, threads=1, watcher=Watch(look))
    fast, slow = (steps[-1][host] - steps[0][host] for host in (0, 1))
    assert 1.5 < fast / slow < 3.2  # a shared machine takes from either; without a quota it would be 1
    snapshots = 2 * 4 * NUMBERS * (len(result.history) - 1)  # the initial weights need none
    assert result.traffic.bytes <= passed[0] < result.traffic.bytes + snapshots / 4


BURN = """
import time
busy, end = time.process_time(), time.monotonic() + 2
while time.monotonic() < end:
    pass
print(time.process_time() - busy)
"""


@pytest.mark.alone
def test_a_quota_holds() -> None:
    """Of two busy processes, the one with half the quota gets half the time; neither gets more than its share."""
    groups = quota.make(f"covey-{os.getpid()}-0-0", ["fast", "slow"], quota.groups())
    try:
        busy = []
        for host, share in (("fast", 0.1), ("slow", 0.05)):
            quota.limit(groups[host], share)
            command = f"echo $$ > {groups[host]}/cgroup.procs && exec {shlex.quote(sys.executable)} -c '{BURN}'"
            busy.append(subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True))
        fast, slow = (float(process.communicate(timeout=60)[0]) for process in busy)
    finally:
        quota.remove(groups["fast"].parent)
    assert 1.5 < fast / slow < 3.2  # a shared machine takes from either; without a quota it would be 1
    assert fast < 0.1 * 2 * 1.25


# -- endings


def test_a_dead_worker_is_named(room: Room) -> None:
    names_the_dead(room, LAB, "worker 1")


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.parametrize("victim", ["server 1", "worker 2"])
@pytest.mark.parametrize("strategy", ["bsp", "asynchronous"])
def test_the_dead_are_named(room: Room, victim: str, strategy: str) -> None:
    names_the_dead(room, LAB, victim, strategy)


@pytest.mark.alone
@pytest.mark.full
def test_a_run_that_lost_a_worker_starts_again(room: Room) -> None:
    restarts(room, PAIR)


@pytest.mark.alone
@pytest.mark.full
def test_a_dead_host_is_named(room: Room) -> None:
    watch = Watch(trained(100), lambda: room.kill("site h1"))
    with pytest.raises(covey.PeerLost, match="the site on h1 exited with signal 9"):
        covey.fit(room.task(before_step=SLOW), "bsp", 2, engine=PAIR, steps=2000, threads=1, watcher=watch)


@pytest.mark.alone
@pytest.mark.full
def test_after_a_failure_nothing_is_left(room: Room) -> None:
    with pytest.raises(RoleFailed, match="no more"):
        covey.fit(room.task(before_step="if CALLS[0] > 5: raise ValueError('no more')"), "bsp", 2, engine=PAIR)


@pytest.mark.alone
def test_what_a_killed_launcher_left_is_removed(room: Room) -> None:
    """Its roles end by themselves, in time; its networks when the next one asks."""
    process = room.start(
        "-m", "covey", "run", room.task(before_step=SLOW), "--engine", PAIR, "--steps", "5000", "--threads", "1"
    )  # fmt: skip
    room.find("worker 1")
    process.send_signal(signal.SIGKILL)
    finish(process)
    room.wait_empty(GONE_WITHIN)
    assert left(process.pid), "a killed launcher cannot clean up"
    with running.locked():
        running.reap()
    assert not left(process.pid)


@pytest.mark.alone
@pytest.mark.full
def test_two_runs_at_once(room: Room) -> None:
    task = room.task(before_step=SLOW)
    both = [room.start("-m", "covey", "run", task, "--engine", PAIR, "--steps", "100") for _ in range(2)]
    for process in both:
        code, _, err = finish(process)
        assert code == 0, err
        assert not left(process.pid)

"""Hosts of the lab that disappear while a run goes on, and come back: `--on-failure continue`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.engines.lab import iproute, running
from covey.engines.process import liveness
from covey.errors import PeerLost, PlanError
from covey.observe.progress import Progress
from tests.clusters.lab_parts import left_here
from tests.real.harness import Room, differing
from tests.real.test_loop_continue import train, trained

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing())]
LAB = "lab(hosts=3)"
AT_STEP = "time.sleep(0.005)"
# The gradient of a sample is 1 in its own place: the weights count how often each sample was applied.
COUNTED = {
    "more": """
def zeros(model):
    nn.init.zeros_(model.weight)
    return model

def step(model, batch):
    before_step()
    return model(batch[0]).mean()
""",
    "model": "zeros(nn.Linear(60, 1, bias=False).double())", "samples": 60, "dtype": "torch.float64",
    "data": "(torch.eye(60, dtype=torch.float64), y)", "optimizer": "torch.optim.SGD(params, lr=1.0)",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert not left_here()


class HostGuide:
    """Does something to hosts each time the run has come so many samples further, and has said a line about it."""

    def __init__(self, *orders: Callable[[], object], every: int = 60) -> None:
        self.orders, self.every = list(orders), every
        self.next, self.said, self.lines = every, list[str](), 0

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, now: Progress) -> None:
        if self.orders and now.phase == "training" and now.samples >= self.next and len(self.said) >= self.lines:
            self.orders.pop(0)()
            self.next, self.lines = now.samples + self.every, len(self.said) + 1

    def heard(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, line) for line in self.said)


def kill(host: str) -> Callable[[], None]:
    return lambda: running.mine().kill(host)


def fit(task: str, strategy: str, workers: int | str, **given: Any) -> covey.Result:
    return covey.fit(task, strategy, workers, engine=LAB, threads=1, **{"stall": "60s", **given})


def check(result: covey.Result, guide: HostGuide, *lost: tuple[str, str]) -> None:
    """All orders were carried out, and every loss is told, and counted."""
    assert not guide.orders and isinstance(result.membership, list) and result.failures == []
    found = [(event.event, event.who, event.cause) for event in result.membership]
    assert found == [("rebirth", who, f"lost with host {host}") for who, host in lost]


@pytest.mark.parametrize("strategy", ["asynchronous", pytest.param("ssp", marks=pytest.mark.full)])
def test_a_lost_host_costs_its_roles_only_and_is_used_again(room: Room, strategy: str) -> None:
    """Every sample of every epoch is applied once, while a host is away, and after it has come back."""
    guide = HostGuide(kill("h2"), lambda: running.mine().restore("h2"))
    result = fit(room.task(before_step=AT_STEP, **COUNTED), strategy, "1:3", epochs=120, watcher=guide)
    check(result, guide, ("worker 2", "h2"))
    assert "worker 2 died (lost with host h2); 2 workers go on until it is back" in guide.said
    assert guide.heard(r"worker 2 is back after .* s; now 3 workers")
    applied = -12 * result.weights["weight"].flatten()  # each batch of 4 moves them by a third of its mean
    assert applied.allclose(torch.full((60,), 120.0, dtype=torch.float64)) and result.samples == 120 * 60


def end_as_the_site_dies(room: Room) -> None:
    """End h2 when its site has just died, and its fork server has not removed its files yet."""
    find = running._pids

    def kill_and_find(spaces: list[str]) -> list[int]:
        living, site = find(spaces), room.find("site h2")
        os.kill(site, signal.SIGKILL)
        while liveness.children(site):
            pass  # its fork server is its child until the last of its threads has ended
        patch.undo()
        return living

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_pids", kill_and_find)
        running.mine().end("h2")


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("bsp", marks=pytest.mark.full)])
def test_who_waits_for_a_lost_host_ends_with_the_weights_of_a_run_that_lost_nobody(room: Room, strategy: str) -> None:
    """A fixed number of workers: the site of a host dies, and another takes its place."""
    guide = HostGuide(lambda: end_as_the_site_dies(room))
    task = room.task(before_step=AT_STEP)
    result = fit(task, strategy, 3, steps=80, on_failure="continue", watcher=guide)
    check(result, guide, ("worker 2", "h2"))
    assert guide.heard(r"worker 2 died \(lost with host h2\); replaced after .* s")
    assert not differing(result.weights, covey.fit(task, strategy, 3, engine="simulated", steps=80).weights)


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "local_sgd(period=2)", "easgd(period=2)", "gosgd"])
def test_a_killed_worker_is_restarted_on_its_host(room: Room, strategy: str) -> None:
    guide = HostGuide(lambda: room.kill("worker 2"), lambda: room.kill("worker 1"))
    result = fit(room.task(before_step=AT_STEP), strategy, 3, steps=80, on_failure="continue", watcher=guide)
    assert not guide.orders and isinstance(result.membership, list) and result.failures == []
    assert [(event.who, event.cause) for event in result.membership] == [
        ("worker 2", "killed by signal 9"), ("worker 1", "killed by signal 9"),
    ]  # fmt: skip
    assert result.samples == covey.fit(room.task(), strategy, 3, engine="simulated", steps=80).samples


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.parametrize("strategy", ["sliced", "local_sgd(period=2)", "easgd(period=2)", "gosgd", "dpsgd"])
def test_every_family_goes_on_without_a_host_of_two_workers(room: Room, strategy: str) -> None:
    """Both workers of a host leave the view, and come back with it."""
    guide = HostGuide(kill("h2"), lambda: running.mine().restore("h2"), every=120)
    task = room.task(before_step=AT_STEP)
    result = fit(task, strategy, "2:6", steps=300, watcher=guide)
    check(result, guide, ("worker 4", "h2"), ("worker 5", "h2"))
    assert guide.heard(r"worker 4 is back after .* s; now . workers")
    assert result.samples == covey.fit(task, strategy, 6, engine="simulated", steps=300).samples


@pytest.mark.alone
@pytest.mark.full
def test_a_host_that_is_only_cut_off_is_given_up_after_silence_and_its_old_processes_change_nothing(room: Room) -> None:
    def cut() -> None:
        lab = running.mine()
        iproute.batch("ip", ["link set h2 down", "link set c2 down"], lab.name.switch)

    guide = HostGuide(cut, lambda: running.mine().restore("h2"))
    task = room.task(before_step=AT_STEP, **COUNTED)
    result = fit(task, "asynchronous", "1:3", epochs=400, watcher=guide, stall="3s")
    check(result, guide, ("worker 2", "h2"))
    assert guide.heard(r"worker 2 is back after .* s; now 3 workers")
    applied = -12 * result.weights["weight"].flatten()
    assert applied.allclose(torch.full((60,), 400.0, dtype=torch.float64)) and result.samples == 400 * 60


@pytest.mark.alone
@pytest.mark.full
def test_a_run_that_cannot_go_on_without_a_host_says_what_would_work(room: Room) -> None:
    task = room.task(before_step=AT_STEP)
    with pytest.raises(PeerLost, match="worker 2 was lost with host h2, which did not come back within 3 s"):
        fit(task, "allreduce", 3, steps=2000, on_failure="continue", watcher=HostGuide(kill("h2")), stall="1s")
    with pytest.raises(PeerLost, match=r"server 0 was lost with host h0, .* starts again by itself"):
        fit(task, "bsp", "1:3", steps=2000, watcher=HostGuide(kill("h0")))


@pytest.mark.alone
@pytest.mark.full
def test_a_run_with_checkpoints_starts_again_where_it_cannot_go_on(room: Room) -> None:
    """The host with the server is lost: a new lab has all hosts again."""
    kept = room.path / "kept"
    guide = HostGuide(kill("h0"), every=400)
    task = room.task(before_step=AT_STEP)
    result = fit(task, "bsp", 3, steps=200, on_failure="continue", checkpoint=kept, every="300ms", watcher=guide)
    assert not guide.orders and isinstance(result.membership, list)
    assert "restart" in [event.event for event in result.membership]
    assert not differing(result.weights, covey.fit(task, "bsp", 3, engine="simulated", steps=200).weights)


@pytest.mark.alone
@pytest.mark.full
def test_a_host_with_a_server_costs_its_roles_only_where_the_server_has_a_copy(room: Room) -> None:
    """The copy on another host leads; the lost one moves, though its host does not come back."""
    guide = HostGuide(kill("h0"), lambda: running.mine().restore("h0"))
    task = room.task(before_step=AT_STEP)
    place = "workers:h1+h2,servers:h0,backups:h2"
    result = fit(task, "bsp", 2, steps=150, replicas=2, place=place, watcher=guide)
    assert not guide.orders and isinstance(result.membership, list)
    assert [(event.who, event.cause) for event in result.membership] == [("server 0", "lost with host h0")]
    assert not differing(result.weights, covey.fit(task, "bsp", 2, engine="simulated", steps=150).weights)


@pytest.mark.alone
@pytest.mark.full
def test_a_host_whose_data_link_is_cut_is_given_up_and_used_again(room: Room) -> None:
    """Its control link works, so nobody but the other hosts can tell."""
    guide = HostGuide(lambda: running.mine().cut("h2"), lambda: running.mine().restore("h2"))
    task = room.task(before_step=AT_STEP, **COUNTED)
    result = fit(task, "ssp", "1:3", epochs=300, watcher=guide, stall="4s")
    check(result, guide, ("worker 2", "h2"))
    assert guide.heard(r"worker 2 is back after .* s; now 3 workers")
    applied = -12 * result.weights["weight"].flatten()
    assert applied.allclose(torch.full((60,), 300.0, dtype=torch.float64)) and result.samples == 300 * 60


@pytest.mark.alone
@pytest.mark.full
def test_a_scripts_own_loop_goes_on_when_its_host_is_there_again(room: Room) -> None:
    guide = HostGuide(lambda: room.kill("site h2"))
    result = train(room, "allreduce", {}, 3, engine=LAB, on_failure="continue", watcher=guide)
    check(result, guide, ("worker 2", "h2"))
    assert set(trained(room).values()) == {1}, "a sample was lost or doubled"
    assert not differing(result.weights, train(room, "allreduce", {}, 3, engine=LAB).weights)


@pytest.mark.alone
@pytest.mark.full
def test_a_stopped_site_whose_link_is_cut_is_given_up_while_the_others_go_on(room: Room) -> None:
    def stop() -> None:
        room.kill("site h2", signal.SIGSTOP)
        running.mine().cut("h2")

    guide = HostGuide(stop, lambda: running.mine().restore("h2"), every=300)
    task = room.task(before_step=AT_STEP, **COUNTED)
    result = fit(task, "asynchronous", "1:3", epochs=400, watcher=guide, stall="2s")
    check(result, guide, ("worker 2", "h2"))
    assert result.samples == 400 * 60


def trace_file(room: Room, *lines: str) -> Path:
    file = room.path / "spot.csv"
    file.write_text("\n".join(["time,worker,event,notice", *lines]))
    return file


@pytest.mark.alone
def test_hosts_depart_and_arrive_by_a_trace(room: Room) -> None:
    """One vanishes, one is told before; every sample of every epoch is applied once."""
    cut: dict[str, list[bool]] = {"h1": [], "h2": []}

    class LinkWatch(HostGuide):
        def update(self, now: Progress) -> None:
            for host, seen in cut.items():
                seen.append(running.mine().is_cut(host))

    guide = LinkWatch()
    trace = trace_file(room, "500ms,2,depart,", "800ms,1,depart,700ms", "1200ms,1,arrive,", "1300ms,2,arrive,")
    task = room.task(before_step=AT_STEP, **COUNTED)
    result = fit(task, "asynchronous", "1:3", epochs=200, watcher=guide, spot_trace=trace)
    assert isinstance(result.membership, list) and result.failures == []
    told = [(event.event, event.who) for event in result.membership]
    assert sorted(told) == [(event, f"worker {rank}") for event in ("join", "leave") for rank in (1, 2)], told
    assert all(any(seen) and not seen[-1] for seen in cut.values()), "the hosts themselves were away, and came back"
    applied = -12 * result.weights["weight"].flatten()
    assert applied.allclose(torch.full((60,), 200.0, dtype=torch.float64)) and result.samples == 200 * 60


@pytest.mark.alone
@pytest.mark.full
def test_faults_and_the_number_of_workers_reach_the_processes_of_hosts(room: Room) -> None:
    """All batches take turns at one lock, so a second worker adds nothing; the third is killed on the way."""
    take = f"file = open({str(room.path / 'lock')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    task = room.task(before_step=f"import fcntl; {take}; time.sleep(0.01); file.close()")
    guide = HostGuide()
    result = fit(task, "asynchronous", "auto:3", steps=200, faults="kill worker 2@200ms", watcher=guide)
    assert result.membership and result.failures == []
    events = [event.event for event in result.membership]
    assert events[0] == "rebirth" and events.count("leave") >= 2
    assert result.goodput and result.goodput.accepted == result.samples


def test_what_no_lab_can_do_is_refused(room: Room) -> None:
    trace = trace_file(room, "500ms,1,depart,")
    with pytest.raises(PlanError, match="worker 1 is on h0 together with .*, which would depart with it: have as many"):
        covey.fit(room.task(), "bsp", "1:2", engine="lab(hosts=1)", spot_trace=trace)
    with pytest.raises(PlanError, match="on lab.* faults are for runs that go on after them: add on_failure="):
        covey.fit(room.task(), "bsp", 2, engine="lab(hosts=1)", faults="kill worker 1@1s")

"""Layouts, patterns and epochs that end early, on real processes: broken off and resumed without losing a gradient."""

from __future__ import annotations

import pytest

from covey.checkpoint import CheckpointDirectory, RoleState
from covey.message import Address
from tests.real.harness import BATCH_NORM, Room, Watch, differing, fit, interrupt, trained

PACE = "time.sleep(0.004)"


LAYOUTS = [
    ("bsp over proxies(groups=2)", 2),
    pytest.param("bsp over hashed(count=2)", 2, marks=pytest.mark.full),
    pytest.param("allreduce(pattern=halving)", None, marks=pytest.mark.full),
    pytest.param("allreduce(pattern=scatter, bucket=64)", None, marks=pytest.mark.full),
    pytest.param("allreduce(pattern=switch, window=640)", None, marks=pytest.mark.full),
    pytest.param("diloco(period=3, local=2) + topk(density=0.2)", None, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("spec", "servers"), LAYOUTS)
def test_it_goes_on_to_the_very_same_weights(room: Room, spec: str, servers: int | None) -> None:
    """On shards of 24, 23 and 23 samples, with two servers behind two proxies, or with many arcs; or without any."""
    adam = "torch.optim.Adam(params, lr=0.01)"
    task = room.task(model=BATCH_NORM, samples=70, batch_size=8, before_step=PACE, optimizer=adam)
    kept = room.path / "kept"
    whole = fit(task, spec, 3, servers=servers, epochs=12)
    broken = fit(task, spec, 3, servers=servers, epochs=12, checkpoint=kept, watcher=Watch(trained(200), interrupt))
    assert broken.stopped == "interrupted"
    resumed = fit(task, spec, 3, servers=servers, epochs=12, resume=kept)
    assert not differing(whole.weights, resumed.weights)
    assert (resumed.samples, resumed.updates, resumed.traffic) == (whole.samples, whole.updates, whole.traffic)


def test_a_switch_adds_up_also_where_workers_share_memory(room: Room) -> None:
    task = room.task(samples=70, batch_size=8)
    real = fit(task, "allreduce(pattern=switch, window=640)", 3, epochs=2)
    virtual = fit(task, "allreduce(pattern=scatter)", 3, epochs=2, engine="simulated")
    assert not differing(real.weights, virtual.weights)
    assert all("switch 0" in link for link in real.traffic.by_link)


def test_sites_step_together_and_exchange_what_changed(room: Room) -> None:
    """Two workers in the first site, one in the second: no sum has more than two members, so all bits are the same."""
    task, spec = room.task(samples=70, batch_size=8), "diloco(period=2, local=2) + topk(density=0.2)"
    real, virtual = (fit(task, spec, 3, epochs=3, engine=engine) for engine in ("local", "simulated"))
    assert not differing(real.weights, virtual.weights)


@pytest.mark.parametrize(
    "spec",
    [
        "asynchronous over proxies(groups=1, bound=1)",
        pytest.param("ssp(bound=2) over proxies(bound=1)", marks=pytest.mark.full),
    ],
)
def test_what_a_proxy_holds_is_kept(room: Room, spec: str) -> None:
    task = room.task(samples=70, batch_size=8, before_step="time.sleep(0.002 * (1 + os.getpid() % 3))")
    kept = room.path / "kept"
    broken = fit(task, spec, 3, epochs=40, checkpoint=kept, every="1h", watcher=Watch(trained(300), interrupt))
    place, run = CheckpointDirectory(kept).newest()
    proxies = [who for who in ("proxy 0", "proxy 1") if who in broken.roles]
    states = [RoleState.read(place, Address("proxy", index)) for index in range(len(proxies))]
    waiting = sum(push.samples for state in states for push in state.memories["waiting"])
    seen = RoleState.read(place, Address("server", 0)).replica["seen"]
    assert seen + waiting == broken.samples == sum(tally["samples"] for tally in run.progress["tallies"])
    resumed = fit(task, spec, 3, epochs=40, checkpoint=kept, resume=kept, every="150ms")
    assert (resumed.stopped, resumed.samples) == ("budget", 40 * 70)
    last = RoleState.read(CheckpointDirectory(kept).newest()[0], Address("server", 0)).replica["seen"]
    assert seen < last <= 40 * 70


def test_epochs_end_early_before_and_after_a_break(room: Room) -> None:
    """One of three workers is far slower: what it skips and what all have seen are together what there is."""
    slow = 'CALLS[0] > 1 or SLOW.append(first(f"slow {os.getppid()}")); time.sleep(0.04 if SLOW[0] else 0.004)'
    task = room.task(samples=72, batch_size=4, before_step=slow, more="SLOW = []")
    kept, spec = room.path / "kept", "asynchronous(epoch=0.6)"
    broken = fit(task, spec, 3, epochs=12, checkpoint=kept, every="1h", watcher=Watch(trained(250), interrupt))
    assert broken.stopped == "interrupted"
    resumed = fit(task, spec, 3, epochs=12, resume=kept)
    assert resumed.stopped == "budget" and resumed.samples < 12 * 72
    assert resumed.samples + (resumed.notes["skipped"] or 0) == 12 * 72
    assert resumed.samples >= 0.6 * 12 * 72

"""What tells sums in a switch apart: a role adds them up, in as little memory as it has."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

import covey
from covey import catalog
from covey.central.replicated.switch import SWITCH, Summand, SwitchSum
from covey.errors import PlanError
from covey.exchange.collectives.costs import SLOTS, LinkTimes, switch_pieces
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.worlds import CLUSTER, World, adam, cloud, mlp, run, slowed


def same_bits(one: World, other: World) -> bool:
    return all(torch.equal(one.scored[name], other.scored[name]) for name in one.scored)


@pytest.mark.parametrize("more", [")", ", bucket=160)", ") + fp16"])
def test_a_switch_adds_as_scatter_does_to_the_bit(more: str) -> None:
    """5 workers, the last one the fastest; their shares of 97 samples differ, and they end in different steps."""
    ours, theirs = (
        run(mlp(adam(), samples=97), spec, 5, epochs=3, cluster=slowed(w0=3, w1=4, w2=5, w3=2))
        for spec in (f"allreduce(pattern=switch, window=200{more}", f"allreduce(pattern=scatter{more}")
    )
    assert same_bits(ours, theirs)
    first, *others = ours.workers()
    assert all(torch.equal(first.flat.parts[0], other.flat.parts[0]) for other in others)


def test_a_worker_sends_the_gradient_once_and_only_to_the_switch() -> None:
    log = run(mlp(), "allreduce(pattern=switch)", 4, steps=3).log
    sent = Counter[str]()
    for one in log.sends:
        assert SWITCH in (one.sender, one.to)
        sent[f"{one.sender.role}->{one.to.role}"] += one.size
    model = 8 * (6 * 8 + 8 + 8 * 3 + 3)
    assert sent == {"worker->switch": 3 * 4 * model, "switch->worker": 3 * 4 * model}


@pytest.mark.parametrize("window", [200, 333, 10_000])
def test_no_more_than_the_window_is_ever_under_way(window: int) -> None:
    log = run(mlp(), f"allreduce(pattern=switch, window={window})", 3, steps=2, cluster=slowed(w2=5)).log
    most, under_way = 0, Counter[str]()
    for one in log.sends:  # in the order of time
        if isinstance(one.message, Summand):
            under_way[str(one.sender)] += one.size
        elif isinstance(one.message, SwitchSum):
            under_way[str(one.to)] -= one.size
        most = max(most, *under_way.values(), 0)
    model = 8 * (6 * 8 + 8 + 8 * 3 + 3)
    parts, rounding = 4, 8 * 8  # of each of the model's tensors a piece may have one number more than its share
    assert min(window, model) / 2 < most <= min(window + parts * rounding, model)


PLACES = [(256, 0.0, 2), (256, 0.0004, 5), (1024, 0.0004, 2), (4096, 0.02, 5), (1024, 0.02, 3), (40_000, 0.0004, 2)]


def switch_seconds(link: LinkTimes, nbytes: int, window: int) -> float:
    """How long a sum takes in a switch with a port for each of any number of ranks, which all have equal links.

    The last piece leaves when all before it have left, and when the piece that was in its slot has come back.
    """
    count = switch_pieces(nbytes, window)
    piece = nbytes / count * link.byte
    back = 2 * (link.latency + piece)
    turns, before = divmod(count - 1, SLOTS)
    return max((count - 1) * piece, turns * back + before * piece) + back


@pytest.mark.parametrize(("window", "latency", "workers"), PLACES)
def test_a_sum_takes_as_long_as_its_formula_says(window: int, latency: float, workers: int) -> None:
    """Where the window is less than what a round trip could carry, it sets the pace, whatever the bandwidth."""
    linear = mlp(model=lambda: torch.nn.Linear(32, 16, bias=False).double(), data=cloud(64, 32, 16))
    link = Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(latency))
    spec, cluster = f"allreduce(pattern=switch, window={window})", replace(CLUSTER, link=link)
    once, twice = (run(linear, spec, workers, steps=steps, cluster=cluster).outcome.seconds for steps in (1, 2))
    expected = switch_seconds(LinkTimes(latency, 0.0, 1e-6), 8 * 32 * 16, window)
    assert twice - once - 0.010 == pytest.approx(expected, abs=1e-9)


def test_the_window_limits_the_throughput() -> None:
    """8 times the memory: 8 times the bytes in a round trip, until the link is full."""
    link = LinkTimes(0.01, 0.0, 1e-9)
    small, large, full = (switch_seconds(link, 1 << 30, window) for window in (1 << 16, 1 << 19, 1 << 30))
    assert small / large == pytest.approx(8, rel=0.05)
    assert (1 << 30) * 1e-9 < full < 1.2 * (1 << 30) * 1e-9


def test_a_switch_has_ports_and_a_smart_card_has_one() -> None:
    """All bytes of 4 workers pass the one link of a card, which takes 4 times as long; each port carries one's own."""
    ports = replace(CLUSTER, compute=Seconds(0.0))
    card = replace(ports, links={str(SWITCH): ports.link})
    free = replace(ports, links={str(SWITCH): replace(ports.link, bandwidth=BytesPerSecond(math.inf))})
    seconds = [_seconds(cluster) for cluster in (ports, card, free)]
    assert seconds[0] == seconds[2]
    assert seconds[1] == pytest.approx(4 * seconds[0], rel=0.25)


def _seconds(cluster: Cluster) -> float:
    return run(mlp(), "allreduce(pattern=switch, window=200)", 4, steps=3, cluster=cluster).outcome.seconds


def test_those_who_still_train_go_on_without_the_others() -> None:
    log = run(mlp(samples=97), "allreduce(pattern=switch)", 4, epochs=1).log
    assert log.values("update") == [1] * 4
    assert sum(isinstance(one.message, SwitchSum) and one.message.step == 0 for one in log.sends) == 3 * 4 + 1


def test_the_stages_of_a_model_have_a_switch_each() -> None:
    ours, theirs = (
        run(mlp(), f"allreduce(pattern={pattern}) with mesh(stage=2)", 4, steps=3) for pattern in ("switch", "scatter")
    )
    assert same_bits(ours, theirs)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("allreduce(pattern=switch, window=8)", "64 bytes or more"),
        ("allreduce(pattern=switch, bucket=auto)", "give bytes"),
        ("allreduce(pattern=switch) + topk", "cannot be added up"),
    ],
)
def test_what_a_switch_cannot_do_is_refused(spec: str, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        catalog.resolve(spec, 2)


@pytest.mark.parametrize("given", [{"workers": "1:2"}, {"workers": 2, "on_failure": "continue"}])
def test_workers_of_a_switch_cannot_come_and_go(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="the switch waits for the lost worker's part"):
        covey.fit(mlp(), "allreduce(pattern=switch)", steps=2, engine="simulated", **given)


def test_a_window_without_a_switch_is_refused() -> None:
    with pytest.raises(PlanError, match=r"window=2000000\) is for pattern=switch, not for pattern=ring"):
        catalog.resolve("allreduce(window=2MB)", 2)

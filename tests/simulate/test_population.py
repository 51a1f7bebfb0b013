"""Populations: what a client is follows from the seed and its number; day and night; slow uplinks."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from covey.errors import PlanError
from covey.simulate import BytesPerSecond, Cluster, Fair, Fifo, Link, Parcel, Seconds
from covey.simulate.availability import DAY, Always, Daily, draw, load_availability
from covey.simulate.population import Population, PopulationCluster

HOUR = 3600.0


def test_draws_are_even_and_belong_to_their_numbers() -> None:
    found = [draw(seed, client) for seed in range(10) for client in range(200)]
    assert len(set(found)) == 2000 and all(0 <= one < 1 for one in found)
    assert statistics.mean(found) == pytest.approx(0.5, abs=0.03)
    assert draw(1, 2) == draw(1, 2) != draw(2, 1)


def test_speeds_and_links_are_lognormal_around_the_median() -> None:
    crowd = Population(clients=2000, seed=3, speed_spread=0.5, link_spread=0.25)
    logs = [math.log(crowd.slowness(client)) for client in range(2000)]
    assert statistics.mean(logs) == pytest.approx(0, abs=0.05)
    assert statistics.pstdev(logs) == pytest.approx(0.5, abs=0.03)
    link = crowd.link(7)
    assert link.uplink is not None and link.uplink / link.bandwidth == pytest.approx(crowd.up / crowd.down)
    assert crowd.link(7) == crowd.link(7) != crowd.link(8)
    alike = Population(clients=5, speed_spread=0, link_spread=0)
    assert alike.slowness(0) == alike.slowness(1) == 1 and alike.link(0) == alike.link(1)


def test_day_and_night_swing_as_asked() -> None:
    daily, crowd = Daily(share=0.2, swing=4), 3000

    def there(at: float) -> float:
        windows = [daily.window(client, at, 0) for client in range(crowd)]
        return sum(window is not None and window[0] <= at < window[1] for window in windows) / crowd

    midnight, noon = there(DAY), there(DAY / 2)
    assert midnight == pytest.approx(0.32, abs=0.03) and noon == pytest.approx(0.08, abs=0.02)


def test_long_slots_swing_with_the_hours_in_which_they_lie() -> None:
    """By hand: the middle of a slot of 6 hours that holds noon lies up to 3 hours from it, on average sin(x) / x."""
    daily, crowd = Daily(share=0.3, swing=4, hours=6), 6000
    windows = [daily.window(client, DAY / 2, 0) for client in range(crowd)]
    noon = sum(window is not None and window[0] <= DAY / 2 for window in windows) / crowd
    assert noon == pytest.approx(0.12 + 0.36 * (1 - 0.900) / 2, abs=0.015)
    with pytest.raises(PlanError, match="use hours=6 or less, or swing=1"):
        Daily(share=0.3, hours=24)
    Daily(share=0.3, swing=1, hours=24)


def test_a_visit_counts_both_directions_of_the_link() -> None:
    link = {"latency": Seconds(0.1), "down": BytesPerSecond(100.0), "up": BytesPerSecond(20.0)}
    crowd = Population(clients=1, compute=Seconds(0.5), **link)  # type: ignore[arg-type]
    assert crowd.visit(batches=6, size=1000) == pytest.approx(4 * 0.1 + 6 * 0.5 + 10 + 50)


def test_a_look_at_some_clients_tells_how_many_are_there() -> None:
    crowd = Population(clients=50_000, availability=Daily(share=0.2, swing=4))
    assert crowd.present(0.0) == pytest.approx(0.32 * 50_000, rel=0.15)
    assert Population(clients=7).present(0.0) == 7


def test_a_window_is_whole_and_the_next_one_comes_after_it() -> None:
    daily = Daily(share=0.3, swing=2)
    for client in range(50):
        now, ends = 0.0, []
        while now < DAY:
            window = daily.window(client, now, 5)
            assert window is not None and window[0] < window[1] and window[1] > now
            inside = 0.6 * max(now, window[0]) + 0.4 * window[1]
            again = daily.window(client, inside, 5)
            assert again and again[0] <= inside and again[1] == window[1], "seen from inside it ends at the same time"
            ends.append(window)
            now = window[1]
        assert all(before[1] < after[0] for before, after in pairwise(ends)), "none touches another"


def test_a_trace_says_who_is_there_when(tmp_path: Path) -> None:
    file = tmp_path / "there.csv"
    file.write_text("client,from,until\n# mornings\n3,0s,2h\n3,2h,3h\n3,5h,6h\n0,1m,2m\n4,0s,4h\n4,1h,2h\n")
    trace = load_availability(file)
    assert trace.window(3, 0.0, 0) == (0.0, 3 * HOUR)
    assert trace.window(3, 3 * HOUR, 0) == (5 * HOUR, 6 * HOUR)
    assert trace.window(3, 6 * HOUR, 0) is None and trace.window(9, 0.0, 0) is None
    assert trace.window(0, 60.0, 0) == (60.0, 120.0)
    assert trace.window(4, 3 * HOUR, 0) == (0.0, 4 * HOUR), "one inside another does not end it"
    assert Always().window(9, 5.0, 0) == (0.0, math.inf)


@pytest.mark.parametrize("line", ["3,0s", "x,0s,1s", "-1,0s,1s", "3,2s,1s", "3,0s,soon"])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "there.csv"
    file.write_text(f"0,0s,1s\n{line}\n")
    with pytest.raises(PlanError, match="line 2: write CLIENT,FROM,UNTIL"):
        load_availability(file)
    with pytest.raises(PlanError, match="cannot read the file of availability"):
        load_availability(tmp_path / "none.csv")


def test_more_than_all_clients_cannot_be_there() -> None:
    with pytest.raises(PlanError, match=r"use share=0.62 or less"):
        Daily(share=0.7, swing=4)
    Daily(share=0.62, swing=4)
    with pytest.raises(PlanError, match="swing at least 1"):
        Daily(swing=0.5)


@pytest.mark.parametrize("network", [Fifo, Fair])
def test_what_leaves_by_a_slow_uplink_takes_longer_than_what_comes(network: type[Fifo] | type[Fair]) -> None:
    slow = Link(bandwidth=BytesPerSecond(1000.0), uplink=BytesPerSecond(100.0), latency=Seconds(0.0))
    fast = Link(bandwidth=BytesPerSecond(1e9), latency=Seconds(0.0))
    cluster = Cluster(link=fast, links={"client 0": slow})

    def arrival(src: str, dst: str) -> float:
        net, now = network(cluster), Seconds(0.0)
        events = net.send(now, Parcel(0, src, dst, 1000))
        while events:
            event = min(events, key=lambda one: one.at)
            events.remove(event)
            more, there = net.happen(event.at, event)
            if there:
                return event.at
            events += more
        raise AssertionError("it never came")

    assert arrival("server 0", "client 0") == pytest.approx(1.0, rel=1e-3)
    assert arrival("client 0", "server 0") == pytest.approx(10.0, rel=1e-3)


def test_a_population_is_a_cluster_of_which_nothing_is_kept() -> None:
    crowd = Population(clients=10**6, speed_spread=0.0, compute=Seconds(0.02))
    cluster = PopulationCluster(population=crowd)
    assert cluster.link_of("client 999999") == crowd.link(999_999)
    assert cluster.link_of("coordinator 0") == cluster.link
    assert cluster.one_latency and not cluster.links

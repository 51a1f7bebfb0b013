"""Both models of a network, played through an agenda as the virtual engine does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.simulate import BytesPerSecond, Cluster, Event, Fair, Fifo, Link, Network, Parcel, Seconds

LATENCY, BANDWIDTH = 0.5, 100.0
CLUSTER = Cluster(link=Link(latency=Seconds(LATENCY), bandwidth=BytesPerSecond(BANDWIDTH)))
MIXED = Cluster(  # with several latencies the frames need an event of their own
    link=CLUSTER.link,
    links={
        "b": Link(latency=Seconds(2.0), bandwidth=BytesPerSecond(10.0)),
        "c": Link(latency=Seconds(0.0), bandwidth=BytesPerSecond(1000.0)),
    },
)
MODELS = [Fifo, Fair]
Model = Callable[..., Network]
Delivery = tuple[float, Parcel]


def play(network: Network, sends: Sequence[tuple[float, Parcel]]) -> list[Delivery]:
    """Send each parcel at its time, and list the deliveries in order."""
    agenda: list[tuple[float, int, Event | Parcel]] = []
    serial = count()
    for at, parcel in sends:
        heappush(agenda, (at, next(serial), parcel))
    deliveries = []
    while agenda:
        now, _, due = heappop(agenda)
        if isinstance(due, Parcel):
            events, arrived = network.send(Seconds(now), due), None
        else:
            events, arrived = network.happen(Seconds(now), due)
        if arrived is not None:
            deliveries.append((now, arrived))
        for event in events:
            assert event.at >= now
            heappush(agenda, (event.at, next(serial), event))
    return deliveries


def times(network: Network, *sends: tuple[float, Parcel]) -> dict[int, float]:
    return {parcel.serial: at for at, parcel in play(network, sends)}


@pytest.mark.parametrize("model", MODELS)
def test_a_message_alone(model: Model) -> None:
    assert times(model(CLUSTER), (1.0, Parcel(0, "a", "d", 200))) == {0: pytest.approx(1.0 + LATENCY + 2.0)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("src", "dst"), [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")])
def test_the_slower_end_decides(model: Model, src: str, dst: str) -> None:
    got = times(model(MIXED, frame=30), (0.0, Parcel(0, src, dst, 200)))
    assert got == {0: pytest.approx(2.0 + 200 / 10)}


@pytest.mark.parametrize("model", MODELS)
def test_within_a_host_nothing_takes_time(model: Model) -> None:
    assert times(model(CLUSTER), (1.0, Parcel(0, "a", "a", 10**9))) == {0: 1.0}
    near = replace(CLUSTER, local=Link(bandwidth=BytesPerSecond(1e10), latency=Seconds(0.1)))
    assert times(model(near), (1.0, Parcel(0, "a", "a", 10**9))) == {0: pytest.approx(1.2)}


@pytest.mark.parametrize("model", MODELS)
def test_full_duplex(model: Model) -> None:
    got = times(model(CLUSTER), (0.0, Parcel(0, "a", "d", 200)), (0.0, Parcel(1, "d", "a", 200)))
    assert got == {0: pytest.approx(LATENCY + 2), 1: pytest.approx(LATENCY + 2)}


def test_two_senders_queue_at_one_receiver() -> None:
    got = times(Fifo(CLUSTER), (0.0, Parcel(0, "a", "d", 200)), (0.0, Parcel(1, "e", "d", 200)))
    assert got == {0: pytest.approx(LATENCY + 2), 1: pytest.approx(LATENCY + 4)}


def test_one_sender_serves_two_receivers_in_turn() -> None:
    got = times(Fifo(CLUSTER), (0.0, Parcel(0, "a", "d", 200)), (0.0, Parcel(1, "a", "e", 200)))
    assert got == {0: pytest.approx(LATENCY + 2), 1: pytest.approx(LATENCY + 4)}


def test_a_slow_sender_does_not_block_a_fast_receiver() -> None:
    slow = Cluster(link=CLUSTER.link, links={"slow": Link(latency=Seconds(LATENCY), bandwidth=BytesPerSecond(1.0))})
    got = times(Fifo(slow), (0.0, Parcel(0, "slow", "d", 100)), (2.0, Parcel(1, "a", "d", 100)))
    assert got == {0: pytest.approx(LATENCY + 100), 1: pytest.approx(2 + LATENCY + 1)}


@pytest.mark.parametrize("ends", [("a", "d", "e", "d"), ("a", "d", "a", "e")])
def test_equal_flows_share_equally(ends: tuple[str, str, str, str]) -> None:
    src, dst, src2, dst2 = ends
    got = times(Fair(CLUSTER), (0.0, Parcel(0, src, dst, 200)), (0.0, Parcel(1, src2, dst2, 200)))
    assert got == {0: pytest.approx(LATENCY + 4), 1: pytest.approx(LATENCY + 4)}


def test_a_flow_speeds_up_when_the_other_ends() -> None:
    got = times(Fair(CLUSTER), (0.0, Parcel(0, "a", "d", 100)), (0.0, Parcel(1, "e", "d", 300)))
    # Both at half rate until 2 s, then the longer one alone: 200 bytes remain.
    assert got == {0: pytest.approx(LATENCY + 2), 1: pytest.approx(LATENCY + 4)}


def test_a_flow_slows_down_when_another_begins() -> None:
    got = times(Fair(CLUSTER), (0.0, Parcel(0, "a", "d", 200)), (1.0, Parcel(1, "e", "d", 50)))
    assert got == {0: pytest.approx(LATENCY + 2.5), 1: pytest.approx(LATENCY + 2)}


@pytest.mark.parametrize("model", MODELS)
def test_a_higher_priority_overtakes_at_a_frame_boundary(model: Model) -> None:
    urgent, bulk, late = Parcel(1, "a", "d", 10, priority=1), Parcel(0, "a", "d", 300), Parcel(2, "a", "d", 10)
    got = times(model(CLUSTER, frame=100), (0.0, bulk), (0.1, late), (0.2, urgent))
    assert got == {1: pytest.approx(LATENCY + 1.1), 0: pytest.approx(LATENCY + 3.1), 2: pytest.approx(LATENCY + 3.2)}


@pytest.mark.parametrize("model", MODELS)
def test_a_parcel_waits_until_its_first_byte_leaves(model: Model) -> None:
    """150 bytes go before it in two frames, the second of which leaves after 1 s, and it then after 1.5 s."""
    network, start = model(CLUSTER, frame=100), Seconds(0.0)
    first, second, at_home = Parcel(0, "a", "d", 150), Parcel(1, "a", "d", 150), Parcel(2, "a", "a", 150)
    assert not network.waits(first), "nobody has sent it"
    events = [event for one in (first, second, at_home) for event in network.send(start, one)]
    assert [network.waits(one) for one in (first, second, at_home)] == [False, True, False]
    left = None
    while events and left is None:
        due = min(events, key=lambda event: event.at)
        events.remove(due)
        events += network.happen(due.at, due)[0]
        left = None if network.waits(second) else due.at
    assert left == pytest.approx(1.5)


@pytest.mark.parametrize("model", MODELS)
def test_a_parcel_within_one_frame_is_not_interrupted(model: Model) -> None:
    got = times(model(CLUSTER), (0.0, Parcel(0, "a", "d", 300)), (0.2, Parcel(1, "a", "d", 10, priority=1)))
    assert got == {0: pytest.approx(LATENCY + 3), 1: pytest.approx(LATENCY + 3.1)}


# What holds for any traffic, in either model, with equal or different links.

hosts = st.sampled_from(["a", "b", "c", "d"])
parcels = st.builds(Parcel, st.just(0), hosts, hosts, st.integers(0, 200), st.integers(0, 1))
instants = st.integers(0, 20).map(float) | st.floats(0, 20)
networks = st.builds(
    lambda model, cluster, frame: model(cluster, frame=frame),
    st.sampled_from(MODELS),
    st.sampled_from([CLUSTER, MIXED]),
    st.sampled_from([7, 50, 10**6]),
)


@st.composite
def traffics(draw: st.DrawFn) -> list[tuple[float, Parcel]]:
    """Parcels in the order in which they are sent."""
    sends = sorted(draw(st.lists(st.tuples(instants, parcels), max_size=25)), key=lambda send: send[0])
    for serial, (_, parcel) in enumerate(sends):
        parcel.serial = serial
    return sends


def cluster_of(network: Network) -> Cluster:
    assert isinstance(network, Fifo | Fair)
    return network.cluster


@settings(deadline=None)
@given(networks, traffics())
def test_every_parcel_arrives_once(network: Network, sends: list[tuple[float, Parcel]]) -> None:
    arrived = Counter(parcel.serial for _, parcel in play(network, sends))
    assert arrived == Counter(range(len(sends)))


@settings(deadline=None)
@given(networks, traffics())
def test_nothing_is_faster_than_its_link(network: Network, sends: list[tuple[float, Parcel]]) -> None:
    sent = {parcel.serial: at for at, parcel in sends}
    for at, parcel in play(network, sends):
        ends = cluster_of(network).link_of(parcel.src), cluster_of(network).link_of(parcel.dst)
        least = max(e.latency for e in ends) + parcel.size / min(e.bandwidth for e in ends)
        assert at - sent[parcel.serial] >= (least if parcel.src != parcel.dst else 0) - 1e-9


@settings(deadline=None)
@given(networks, traffics())
def test_order_is_kept_on_every_edge(network: Network, sends: list[tuple[float, Parcel]]) -> None:
    seen: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for _, parcel in play(network, sends):
        seen[parcel.src, parcel.dst, parcel.priority].append(parcel.serial)
    assert all(serials == sorted(serials) for serials in seen.values())


@settings(deadline=None)
@given(networks, traffics())
def test_no_nic_carries_more_than_its_bandwidth(network: Network, sends: list[tuple[float, Parcel]]) -> None:
    deliveries = play(network, sends)
    begin, end = (sends[0][0], deliveries[-1][0]) if sends else (0.0, 0.0)
    carried: Counter[tuple[str, str]] = Counter()
    for _, parcel in sends:
        if parcel.src != parcel.dst:
            carried["out", parcel.src] += parcel.size
            carried["in", parcel.dst] += parcel.size
    for (_, host), size in carried.items():
        assert end - begin >= size / cluster_of(network).link_of(host).bandwidth - 1e-9


@settings(deadline=None)
@given(traffics(), st.sampled_from(MODELS))
def test_the_same_traffic_takes_the_same_time(sends: list[tuple[float, Parcel]], model: Model) -> None:
    first, second = (
        [(at, parcel.serial) for at, parcel in play(model(MIXED, frame=50), sends)] for _ in range(2)
    )  # fmt: skip
    assert first == second


@settings(deadline=None)
@given(traffics())
def test_the_shortcut_for_equal_latencies_changes_nothing(sends: list[tuple[float, Parcel]]) -> None:
    quick, full = Fifo(CLUSTER, frame=50), Fifo(CLUSTER, frame=50)
    full.uniform = False
    expected = {parcel.serial: at for at, parcel in play(full, sends)}
    assert {parcel.serial: at for at, parcel in play(quick, sends)} == expected

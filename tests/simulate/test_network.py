"""All models of a network, played through an agenda as the virtual engine does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.simulate import BytesPerSecond, Cluster, Event, Fair, Fifo, Link, Network, Parcel, Seconds, Tcp

LATENCY, BANDWIDTH = 0.5, 100.0
CLUSTER = Cluster(link=Link(latency=Seconds(LATENCY), bandwidth=BytesPerSecond(BANDWIDTH)))
MIXED = Cluster(  # with several latencies the frames need an event of their own
    link=CLUSTER.link,
    links={
        "b": Link(latency=Seconds(2.0), bandwidth=BytesPerSecond(10.0)),
        "c": Link(latency=Seconds(0.0), bandwidth=BytesPerSecond(1000.0)),
    },
)
Model = Callable[..., Network]
MODELS: list[Model] = [Fifo, Fair, partial(Tcp, window=50)]
Delivery = tuple[float, Parcel]


def play(
    network: Network, sends: Sequence[tuple[float, Parcel]], check: Callable[[], None] = lambda: None, asks: bool = True
) -> list[Delivery]:
    """Send each parcel at its time, and list the deliveries in order; `check` after everything that happens.

    With `asks` what is known at once is not sent, as the engine has it.
    """
    agenda: list[tuple[float, int, Event | Parcel]] = []
    serial = count()
    for at, parcel in sends:
        heappush(agenda, (at, next(serial), parcel))
    deliveries = []
    while agenda:
        now, _, due = heappop(agenda)
        known = network.arrivals(due.src, due.dst)(now, due.size) if asks and isinstance(due, Parcel) else None
        if known is not None:
            events, arrived = [Event(known, "delivered", due)], None
        elif isinstance(due, Parcel):
            events, arrived = network.send(Seconds(now), due), None
        else:
            events, arrived = network.happen(Seconds(now), due)
        check()
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


def test_what_is_still_far_away_holds_up_nothing_that_is_near() -> None:
    """What b sends first reaches the receiver after 2 s; what a sends then has come by that time."""
    got = times(Fifo(MIXED), (0.0, Parcel(0, "b", "d", 10)), (0.1, Parcel(1, "a", "d", 100)))
    assert got == {0: pytest.approx(2.0 + 1.0), 1: pytest.approx(0.1 + LATENCY + 1.0)}


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


# TCP: parcels of 200 bytes, which take 2 s alone, and windows of 100.

TCP = partial(Tcp, CLUSTER, window=100)


@pytest.mark.parametrize("many", [2, 5])
def test_flows_that_begin_together_share_equally_under_tcp(many: int) -> None:
    got = times(TCP(), *((1.0, Parcel(n, f"s{n}", "d", 200)) for n in range(many)))
    assert list(got.values()) == pytest.approx([1.0 + LATENCY + 2.0 * many] * many)


def test_a_newcomer_has_less_than_the_flow_it_meets() -> None:
    """After 1 s the first has carried 100, so its window is 200 against 100: two thirds of the link are its own."""
    got = times(TCP(), (0.0, Parcel(0, "a", "d", 200)), (1.0, Parcel(1, "e", "d", 200)))
    assert got == {0: pytest.approx(LATENCY + 1 + 1.5), 1: pytest.approx(LATENCY + 4)}


def test_a_flow_that_begins_anew_begins_with_a_small_window() -> None:
    """The same after a transfer that is over: what was carried then does not count."""
    sends = [(10.0, Parcel(0, "a", "d", 200)), (11.0, Parcel(1, "e", "d", 200))]
    got = times(TCP(), (0.0, Parcel(2, "a", "d", 200)), *sends)
    assert (got[0], got[1]) == (pytest.approx(10 + LATENCY + 1 + 1.5), pytest.approx(10 + LATENCY + 4))


def test_a_third_finds_windows_that_have_grown_since() -> None:
    """At 1 s windows of 200 and 100 share, at 1.75 s they are 250 and 125, and a third begins with 100."""
    sends = [(0.0, Parcel(0, "a", "d", 200)), (1.0, Parcel(1, "e", "d", 200)), (1.75, Parcel(2, "f", "d", 200))]
    assert times(TCP(), *sends)[0] == pytest.approx(LATENCY + 1.75 + 50 / (100 * 250 / 475))


def gaps(network: Callable[[], Network], first: float, rounds: int) -> list[float]:
    """How far two senders are apart who begin again as soon as they have ended, round after round."""
    found = [first]
    for _ in range(rounds):
        got = times(network(), (0.0, Parcel(0, "a", "d", 200)), (found[-1], Parcel(1, "e", "d", 200)))
        found.append(got[1] - got[0])
    return found


def test_senders_drift_apart_under_tcp_until_each_has_the_link_for_itself() -> None:
    """The part of a transfer that lies between two, over the part that is left: three times as much in each round."""
    found = gaps(TCP, 0.02, 8)
    assert all(later > earlier for earlier, later in pairwise(found))
    assert [gap / (2 - gap) for gap in found] == pytest.approx([0.02 / 1.98 * 3**n for n in range(9)])
    assert found[-1] == pytest.approx(2.0, rel=0.02)
    # Neither of the others drifts: equal parts keep the distance, and in a queue they are apart at once.
    assert gaps(partial(Fair, CLUSTER), 0.02, 8) == pytest.approx([0.02] * 9)
    assert gaps(partial(Fifo, CLUSTER), 0.02, 8) == pytest.approx([0.02, *[2.0] * 8])


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
@given(traffics(), st.sampled_from(MODELS[1:]), st.sampled_from([CLUSTER, MIXED]))
def test_flows_of_a_link_have_no_more_than_the_link_at_any_time(
    sends: list[tuple[float, Parcel]], model: Model, cluster: Cluster
) -> None:
    network = model(cluster, frame=50)
    assert isinstance(network, Fair)

    def check() -> None:
        for port in (*network.egress.values(), *network.ingress.values()):
            assert sum(flow.rate for flow in port.flows) <= port.bandwidth * (1 + 1e-9)

    play(network, sends, check)


@settings(deadline=None)
@given(st.lists(st.tuples(instants, st.integers(0, 200)), min_size=1, max_size=12), st.sampled_from(MODELS[1:]))
def test_a_link_is_never_idle_while_somebody_waits(sizes: list[tuple[float, int]], model: Model) -> None:
    """Many senders, one receiver: however they share its link, the last byte is there when it is in a queue."""
    sends = [(at, Parcel(n, f"s{n}", "d", size)) for n, (at, size) in enumerate(sorted(sizes))]
    last, queued = (max(at for at, _ in play(net, sends)) for net in (model(CLUSTER), Fifo(CLUSTER)))
    assert last == pytest.approx(queued)


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


@settings(deadline=None)
@given(traffics(), st.sampled_from(MODELS), st.sampled_from([CLUSTER, MIXED, replace(CLUSTER, local=CLUSTER.link)]))
def test_what_is_known_at_once_comes_when_events_would_have_brought_it(
    sends: list[tuple[float, Parcel]], model: Model, cluster: Cluster
) -> None:
    asked, sent = (play(model(cluster, frame=50), sends, asks=asks) for asks in (True, False))
    assert asked == sent


def test_a_receiver_takes_its_time_for_what_is_known_at_once() -> None:
    sends = [(0.0, Parcel(0, "a", "d", 200)), (0.5, Parcel(1, "e", "d", 100)), (1.0, Parcel(2, "f", "d", 100))]
    asked, sent = (play(Fifo(CLUSTER), sends, asks=asks) for asks in (True, False))
    assert asked == sent
    assert [at for at, _ in asked] == pytest.approx([2.5, 3.5, 4.5])

"""Keepers in virtual time and in real processes: each stripe is read from its source once by all hosts together."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from covey.data.stripe_cache.keeper import as_vector
from covey.data.stripe_cache.keeper_messages import KEEPER, READER, BringStripe, GiveUpStripe, HungUp, WantStripe
from covey.data.stripe_cache.stripe import Stripe, owners
from covey.message import Address, Message
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.engines.virtual_hosts import VirtualHosts

SIZE, HOSTS = 1000, 4
HOST_NAMES = [f"host{rank}" for rank in range(HOSTS)]


def contents(stripes: int = 60) -> dict[Stripe, bytes]:
    draw = random.Random(1)
    data = [draw.randbytes(SIZE) for _ in range(stripes)]
    return {Stripe("0" * 64, "sha256", hashlib.sha256(one).hexdigest(), SIZE): one for one in data}


STRIPES = contents()
ALL = SIZE * len(STRIPES)
# The backend gives 10 stripes in a second, a host gives 1000.
CLUSTER = Cluster(
    link=Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(1e-4)),
    links={"backend 0": Link(bandwidth=BytesPerSecond(1e4), latency=Seconds(1e-4))},
)


def everything(reader: int, epoch: int) -> Sequence[Stripe]:
    """All readers want all stripes, each in an order of its own."""
    return random.Random(f"{reader} {epoch}").sample(list(STRIPES), len(STRIPES))


def in_the_same_order(reader: int, epoch: int) -> Sequence[Stripe]:
    return list(STRIPES)


def divided(reader: int, epoch: int) -> Sequence[Stripe]:
    """Every reader wants its share, another one in each epoch."""
    return random.Random(epoch).sample(list(STRIPES), len(STRIPES))[reader::HOSTS]


@pytest.mark.parametrize("order", [everything, in_the_same_order, divided])
def test_four_hosts_read_the_set_once(order: Callable[[int, int], Sequence[Stripe]]) -> None:
    hosts = VirtualHosts(CLUSTER, STRIPES, HOSTS, order)
    first = hosts.epoch(0)
    assert Counter(hosts.fetched) == Counter(list(STRIPES))
    assert first.backend == ALL
    second = hosts.epoch(1)
    assert second.backend == 0 and second.peers > 0
    kept = Counter(stripe for store in hosts.stores for stripe in store.stripes)
    assert kept == Counter(list(STRIPES))


def test_each_stripe_lies_where_arithmetic_says() -> None:
    hosts = VirtualHosts(CLUSTER, STRIPES, HOSTS, divided)
    hosts.epoch(0)
    for rank, store in enumerate(hosts.stores):
        assert all(owners(stripe, HOST_NAMES)[0] == f"host{rank}" for stripe in store.stripes)
        assert 5 < len(store.stripes) < 30


def test_the_backend_limits_the_first_epoch_and_not_the_second() -> None:
    hosts = VirtualHosts(CLUSTER, STRIPES, HOSTS, divided)
    first = hosts.epoch(0)
    second = hosts.epoch(1)
    assert first.ended == pytest.approx(len(STRIPES) / 10, rel=0.02)
    assert second.ended - first.ended < 0.05


def test_without_a_host_its_stripes_move_and_no_others() -> None:
    for stripe in STRIPES:
        order = owners(stripe, HOST_NAMES)
        for gone in HOST_NAMES:
            assert owners(stripe, [host for host in HOST_NAMES if host != gone]) == [
                host for host in order if host != gone
            ]


def test_of_a_lost_host_only_its_own_stripes_are_fetched_again() -> None:
    hosts = VirtualHosts(CLUSTER, STRIPES, HOSTS, everything)
    hosts.epoch(0)
    lost = set(hosts.stores[2].stripes)
    hosts.lose(2)
    hosts.fetched.clear()
    hosts.epoch(1)
    assert Counter(hosts.fetched) == Counter(lost)
    assert hosts.epoch(2).backend == 0


@pytest.mark.parametrize("at", [0.05, 0.95, 2.5, 4.05, 5.5])
def test_a_host_that_is_lost_while_stripes_are_fetched_holds_nobody_up(at: float) -> None:
    hosts = VirtualHosts(CLUSTER, STRIPES, HOSTS, everything)
    hosts.lose(1, at)
    hosts.epoch(0)
    again = Counter(hosts.fetched)
    assert set(again) == set(STRIPES) and max(again.values()) <= 2
    mine = {stripe for stripe in STRIPES if owners(stripe, HOST_NAMES)[0] == "host1"}
    fetching = {stripe for stripe, times in again.items() if times == 2} - mine
    assert len(fetching) <= 1  # what the lost host's own reader was fetching
    hosts.fetched.clear()
    hosts.epoch(1)
    assert set(hosts.fetched) <= mine  # which had been read before the host was lost
    assert hosts.epoch(2).backend == 0


ONE = next(iter(STRIPES))
KEEPER_0, FIRST, SECOND = Address(KEEPER, 0), Address(READER, 10), Address(READER, 11)


def quiet() -> VirtualHosts:
    """One host, whose keeper is told what tests want it to hear."""
    return VirtualHosts(CLUSTER, STRIPES, 1, lambda reader, epoch: [ONE])


@pytest.mark.parametrize("end", [HungUp(sender=FIRST), GiveUpStripe(ONE, sender=FIRST)])
def test_who_fetches_and_gives_up_is_followed_by_the_next(end: HungUp | GiveUpStripe) -> None:
    hosts = quiet()
    hosts._deliver(KEEPER_0, WantStripe(ONE, 0, SIZE, sender=FIRST))  # who is told to fetch it, and does not
    while not hosts._agenda.still:
        hosts._agenda.step()
    hosts._agenda.from_outside(1.0, lambda *_: hosts._deliver(KEEPER_0, end), None)
    assert hosts.epoch(0).ended > 1
    assert hosts.fetched == [ONE] and ONE in hosts.stores[0].stripes


def test_wrong_bytes_that_somebody_brings_are_refused() -> None:
    hosts = quiet()
    hosts._deliver(KEEPER_0, WantStripe(ONE, 0, SIZE, sender=FIRST))
    hosts._deliver(KEEPER_0, BringStripe(ONE, as_vector(bytes(SIZE)), sender=FIRST))
    hosts._deliver(KEEPER_0, BringStripe(ONE._replace(digest="../x"), as_vector(bytes(SIZE)), sender=FIRST))
    hosts._deliver(KEEPER_0, WantStripe(ONE, 5, 1 << 40, sender=SECOND))
    hosts.epoch(0)
    assert hosts.stores[0].stripes == {ONE: STRIPES[ONE]} and hosts.fetched == [ONE]
    assert [line[:20] for line in hosts.refused] == [
        "reader 10 brought by",
        "reader 10 asked for ",
        "reader 11 asked for ",
    ]


class Listening(VirtualHosts):
    """Hosts that note what readers were sent."""

    def __init__(self, hosts: int) -> None:
        super().__init__(CLUSTER, STRIPES, hosts, divided)
        self.told: list[tuple[int, str]] = []

    def _deliver(self, to: Address, message: Message) -> None:
        if to.role == READER:
            self.told.append((to.rank, type(message).__name__))
        super()._deliver(to, message)

    def settle(self) -> None:
        while not self._agenda.still:
            self._agenda.step()


def test_who_fetches_a_stripe_is_not_sent_it_too() -> None:
    hosts = Listening(2)
    far = next(stripe for stripe in STRIPES if owners(stripe, HOST_NAMES[:2])[0] == "host1")
    hosts._deliver(KEEPER_0, WantStripe(far, 0, SIZE, sender=FIRST))
    hosts.settle()
    hosts.stores[1].store(far, STRIPES[far])  # by a reader there that had lost its keeper
    hosts._deliver(KEEPER_0, WantStripe(far, 0, SIZE, sender=SECOND))
    hosts.settle()
    assert hosts.told == [(FIRST.rank, "FetchStripe"), (SECOND.rank, "StripeBytes")]


def test_who_waited_for_a_keeper_that_departed_is_told_to_fetch_where_this_one_is_next() -> None:
    hosts = Listening(2)
    far = next(stripe for stripe in STRIPES if owners(stripe, HOST_NAMES[:2])[0] == "host1")
    hosts._deliver(KEEPER_0, WantStripe(far, 0, SIZE, sender=FIRST))
    hosts.lose(1)
    hosts.settle()
    assert hosts.told == [(FIRST.rank, "FetchStripe")]

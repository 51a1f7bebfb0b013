"""One cluster with more or fewer workers, and the worker that would be used alone."""

from __future__ import annotations

import pytest

from covey.advise.world import fastest, sized, slowness
from covey.simulate import Cluster, Link, Machine, Seconds

FAR = Link(latency=Seconds(0.1))


@pytest.mark.parametrize(
    ("slow", "price", "rank"),
    [
        ({0: 2.0}, {}, 1),
        ({0: 2.0}, {0: 1.0, 1: 9.0, 2: 3.0}, 2),  # of equally fast ones the cheapest
        ({0: 2.0, 2: 1.5}, {0: 1.0, 1: 9.0, 2: 3.0}, 1),  # a slow one is not used because it is cheap
        ({}, {0: 3.0, 1: 3.0, 2: 3.0}, 0),
    ],
)
def test_the_fastest_worker_alone_is_the_cheapest_of_equals(
    slow: dict[int, float], price: dict[int, float], rank: int
) -> None:
    links, kills = {"worker 1": FAR, "server 0": FAR}, {"worker 0": Seconds(1)}
    cluster = Cluster(workers=3, slowdowns=slow, price=price, watts={rank: 7.0}, links=links, kills=kills)
    alone, found = fastest(cluster, 3)
    assert (found, alone.workers, alone.slowdowns) == (rank, 1, {0: slow.get(rank, 1.0)})
    assert alone.price == ({0: price[rank]} if price else {}) and alone.watts == {0: 7.0}
    assert alone.links == {"server 0": FAR} and not alone.kills


def test_groups_keep_their_proportions() -> None:
    cluster = Cluster(workers=4, slowdowns={3: 2.0}, price={0: 1.0, 3: 5.0}, links={"worker 3": FAR, "server 0": FAR})
    larger = sized(cluster, 8)
    assert larger.slowdowns == {6: 2.0, 7: 2.0} and larger.price == {0: 1.0, 1: 1.0, 6: 5.0, 7: 5.0}
    assert larger.links == {"worker 6": FAR, "worker 7": FAR, "server 0": FAR}
    assert sized(cluster, 4) is cluster


def test_whoever_shares_cores_is_slower() -> None:
    cluster = Cluster(machines=(Machine(cores=2), Machine(cores=1)), threads=1, slowdowns={1: 3.0})
    assert slowness(cluster, 4) == [1.0, 3.0 * 2, 1.0, 2.0]
    assert fastest(cluster, 4)[0].machines == (Machine(cores=2),)

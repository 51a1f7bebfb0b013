"""The same kind of cluster with more or fewer workers, and the machine that covey runs on as a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from covey.simulate import BytesPerSecond, Cluster, Host, Link, Seconds

MEMORY = Link(bandwidth=BytesPerSecond(2e9), latency=Seconds(5e-5))  # what processes of one machine see of each other


def sized(cluster: Cluster, workers: int) -> Cluster:
    """A cluster of this many workers, of the groups that this one has, in the same proportions."""
    if cluster.workers is None or cluster.workers == workers:
        return cluster
    like = [rank * cluster.workers // workers for rank in range(workers)]
    links: dict[Host, Link] = {host: link for host, link in cluster.links.items() if not host.startswith("worker ")}
    for rank, model in enumerate(like):
        if f"worker {model}" in cluster.links:
            links[f"worker {rank}"] = cluster.links[f"worker {model}"]
    return replace(
        cluster, workers=workers, links=links, kills={},
        slowdowns={rank: cluster.slowdowns[model] for rank, model in enumerate(like) if model in cluster.slowdowns},
        price={rank: cluster.price[model] for rank, model in enumerate(like) if model in cluster.price},
        spot_price={rank: cluster.spot_price[model] for rank, model in enumerate(like) if model in cluster.spot_price},
        watts={rank: cluster.watts[model] for rank, model in enumerate(like) if model in cluster.watts},
    )  # fmt: skip


def slowness(cluster: Cluster, workers: int) -> list[float]:
    """How many times as long as the cluster says each worker takes for a batch: it may have less than its cores."""
    slow, machines = [cluster.slowdowns.get(rank, 1.0) for rank in range(workers)], cluster.machines
    if not machines:
        return slow
    homes = [rank % len(machines) for rank in range(workers)]  # as roles are spread where nobody places them
    crowd = Counter(homes)
    strain = [max(1.0, cluster.threads * crowd[home] / machines[home].cores) for home in homes]
    return [own * more for own, more in zip(slow, strain, strict=True)]


def fastest(cluster: Cluster, workers: int) -> tuple[Cluster, int]:
    """The fastest of these workers as a cluster of its own, and which it is; of equal ones the cheapest."""
    slow, price, machines = slowness(cluster, workers), cluster.price, cluster.machines
    best = min(range(workers), key=lambda rank: (slow[rank], price.get(rank, 0.0), rank))
    links = {host: link for host, link in cluster.links.items() if not host.startswith("worker ")}
    alone = replace(
        cluster, workers=1, kills={}, links=links, slowdowns={0: cluster.slowdowns.get(best, 1.0)},
        machines=(machines[best % len(machines)],) if machines else (),
        price={0: price[best]} if best in price else {},
        spot_price={0: cluster.spot_price[best]} if best in cluster.spot_price else {},
        watts={0: cluster.watts[best]} if best in cluster.watts else {},
    )  # fmt: skip
    return alone, best


def this_machine(compute: Seconds) -> Cluster:
    """Workers as processes of one machine, a core for each."""
    return Cluster(compute=compute, link=MEMORY, jitter=0.05)

"""The same kind of cluster with more or fewer workers, and the machine that covey runs on as a cluster."""

from __future__ import annotations

from dataclasses import replace

from covey.simulate import BytesPerSecond, Cluster, Host, Link, Seconds

MEMORY = Link(bandwidth=BytesPerSecond(2e9), latency=Seconds(5e-5))  # what processes of one machine see of each other


def sized(cluster: Cluster, workers: int) -> Cluster:
    """A cluster of so many workers, of the groups that this one has, in the same proportions."""
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
        watts={rank: cluster.watts[model] for rank, model in enumerate(like) if model in cluster.watts},
    )  # fmt: skip


def fastest(cluster: Cluster, workers: int) -> tuple[Cluster, int]:
    """The fastest of these workers as a cluster of its own, and which it is; of equal ones the cheapest."""
    slow, price = cluster.slowdowns, cluster.price
    best = min(range(workers), key=lambda rank: (slow.get(rank, 1.0), price.get(rank, 0.0), rank))
    links = {host: link for host, link in cluster.links.items() if not host.startswith("worker ")}
    alone = replace(
        cluster, workers=1, kills={}, links=links, slowdowns={0: slow.get(best, 1.0)},
        price={0: price[best]} if best in price else {},
        watts={0: cluster.watts[best]} if best in cluster.watts else {},
    )  # fmt: skip
    return alone, best


def this_machine(compute: Seconds) -> Cluster:
    """Workers as processes of one machine, a core for each."""
    return Cluster(compute=compute, link=MEMORY, jitter=0.05)

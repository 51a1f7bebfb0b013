"""Who may speak to whom?"""

from covey.topology.graph import Graph
from covey.topology.graphs import (
    GRAPHS,
    build,
    chain,
    complete,
    exponential,
    random_regular,
    ring,
    star,
    torus,
    tree,
)

__all__ = [
    "GRAPHS",
    "Graph",
    "build",
    "chain",
    "complete",
    "exponential",
    "random_regular",
    "ring",
    "star",
    "torus",
    "tree",
]

"""Who may speak to whom?"""

from covey.topology.graph import Graph, Varying
from covey.topology.graphs import (
    GRAPHS,
    bipartite,
    build,
    chain,
    complete,
    exponential,
    halton,
    matrix,
    one_peer_exponential,
    random_regular,
    ring,
    star,
    torus,
    tree,
)

__all__ = [
    "GRAPHS",
    "Graph",
    "Varying",
    "bipartite",
    "build",
    "chain",
    "complete",
    "exponential",
    "halton",
    "matrix",
    "one_peer_exponential",
    "random_regular",
    "ring",
    "star",
    "torus",
    "tree",
]

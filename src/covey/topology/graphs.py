"""The graphs with a name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from covey.errors import PlanError
from covey.names import meant
from covey.topology.graph import Graph, Varying
from covey.topology.weights import read_weights

Edges = set[tuple[int, int]]  # each as (smaller, larger)


def ring(size: int) -> Graph:
    """Each rank hears itself and its two neighbours equally; two ranks hear each other."""
    return _uniform({r: {(r - 1) % size, r, (r + 1) % size} for r in range(size)})


def chain(size: int) -> Graph:
    """A ring that is cut open: the ends hear one neighbour."""
    return _metropolis(size, ((r, r + 1) for r in range(size - 1)))


def complete(size: int) -> Graph:
    """Everyone hears everyone equally: one round reaches the mean."""
    return _uniform({r: set(range(size)) for r in range(size)})


def star(size: int) -> Graph:
    """Rank 0 hears everyone, the others hear only rank 0."""
    return _metropolis(size, ((0, r) for r in range(1, size)))


def tree(size: int, fanout: int = 2) -> Graph:
    """Rank 0 is the root, and each rank has up to `fanout` children, level by level."""
    _at_least("tree", "fanout", fanout, 1)
    return _metropolis(size, (((r - 1) // fanout, r) for r in range(1, size)))


def exponential(size: int) -> Graph:
    """Each rank hears the ranks 1, 2, 4, 8 ... before and after it."""
    hops = [1 << k for k in range(size.bit_length()) if 1 << k < size]
    return _uniform({r: {r, *((r + h) % size for h in hops), *((r - h) % size for h in hops)} for r in range(size)})


def bipartite(size: int) -> Graph:
    """Two sides, the even and the odd ranks: each rank hears everyone on the other side."""
    return _metropolis(size, ((one, other) for one in range(0, size, 2) for other in range(1, size, 2)))


def halton(size: int) -> Graph:
    """Directed: each rank speaks to those 1/2, 1/4, 3/4, 1/8 ... of the way around the ring (Li et al. 2015)."""
    terms = range(1, (size - 1).bit_length() + 1)
    hops = {math.floor(_van_der_corput(index) * size) for index in terms} - {0}
    if math.gcd(size, *hops) > 1:  # always so for multiples of 8: even hops alone would leave islands
        hops.add(1)
    return _uniform({r: {r, *((r - hop) % size for hop in hops)} for r in range(size)})


def one_peer_exponential(size: int) -> Graph:
    """Directed, another at every step: each rank speaks to the one 1, 2, 4, 8 ... after it (Assran et al. 2019)."""
    hops = [1 << k for k in range((size - 1).bit_length())] or [0]
    return Varying.of([_uniform({r: {r, (r - hop) % size} for r in range(size)}) for hop in hops])


def torus(size: int) -> Graph:
    """A grid as square as the size allows, closed at its edges; a prime number of ranks is a ring."""
    rows = max(n for n in range(1, size + 1) if size % n == 0 and n * n <= size)
    columns = size // rows

    def heard(rank: int) -> set[int]:
        row, column = divmod(rank, columns)
        across = {row * columns + (column + hop) % columns for hop in (-1, 1)}
        along = {(row + hop) % rows * columns + column for hop in (-1, 1)}
        return {rank} | across | along

    return _uniform({rank: heard(rank) for rank in range(size)})


def random_regular(size: int, degree: int = 4, seed: int = 0) -> Graph:
    """Each rank hears `degree` others, drawn at random, and every rank can reach all others."""
    _check_regular(size, degree)
    edges = _circulant(size, degree if size > 1 else 0)
    draw = Random(seed)
    _shuffle(edges, draw)
    graph = _metropolis(size, edges)
    while len(graph.islands()) > 1:
        _shuffle(edges, draw)
        graph = _metropolis(size, edges)
    return graph


def matrix(size: int, file: str = "") -> Graph:
    """A person's own weights: row r of the file says how much rank r hears each rank."""
    return Graph(read_weights(file, size))


GRAPHS: Mapping[str, Callable[..., Graph]] = {
    "ring": ring,
    "chain": chain,
    "complete": complete,
    "star": star,
    "tree": tree,
    "exponential": exponential,
    "torus": torus,
    "random_regular": random_regular,
    "bipartite": bipartite,
    "halton": halton,
    "one_peer_exponential": one_peer_exponential,
    "matrix": matrix,
}


def build(name: str, settings: Mapping[str, object], size: int) -> Graph:
    """The graph with this name and these settings, for this many ranks."""
    if name not in GRAPHS:
        raise PlanError(f"no topology '{name}'{meant(name, GRAPHS)}")
    if size < 1:
        raise PlanError(f"{name} needs at least 1 rank, not {size}")
    known = settings_of(name)
    for key, value in settings.items():
        if key not in known:
            has = ", ".join(f"{k}={v}" for k, v in known.items()) or "no settings"
            raise PlanError(f"topology '{name}' has no setting '{key}'. It has: {has}")
        if not isinstance(value, type(known[key])):
            kind = "a whole number" if isinstance(known[key], int) else "a file's name"
            raise PlanError(f"{name}({key}={value}): {key} must be {kind}")
    return replace(GRAPHS[name](size, **settings), of_size=partial(build, name, settings))


def settings_of(name: str) -> dict[str, int | str]:
    """The settings of a named graph, with their defaults."""
    parameters = inspect.signature(GRAPHS[name]).parameters
    return {key: parameter.default for key, parameter in parameters.items() if key != "size"}


def _van_der_corput(index: int) -> float:
    """The digits of the index in base 2, mirrored at the point: 1/2, 1/4, 3/4, 1/8 ..."""
    return int(f"{index:b}"[::-1], 2) / (1 << index.bit_length())


def _uniform(heard: Mapping[int, set[int]]) -> Graph:
    """Equal weights; doubly stochastic when every rank hears equally many."""
    return Graph({r: {p: 1 / len(peers) for p in sorted(peers)} for r, peers in heard.items()})


def _metropolis(size: int, edges: Iterable[tuple[int, int]]) -> Graph:
    """Weights that keep the mean on any undirected graph."""
    # Xiao & Boyd 2004: w_ij = 1 / (1 + max(degree_i, degree_j)), and what remains is one's own.
    heard: dict[int, set[int]] = {r: set() for r in range(size)}
    for one, other in edges:
        heard[one].add(other)
        heard[other].add(one)
    rows: dict[int, dict[int, float]] = {}
    for rank, peers in heard.items():
        row = {peer: 1 / (1 + max(len(peers), len(heard[peer]))) for peer in sorted(peers)}
        rows[rank] = {**row, rank: 1 - sum(row.values())}
    return Graph(rows)


def _circulant(size: int, degree: int) -> Edges:
    """A regular graph to start from: each rank is linked to the nearest ones, and to the opposite one if odd."""
    hops = [*range(1, degree // 2 + 1), *([size // 2] if degree % 2 else [])]
    return {_edge(r, (r + hop) % size) for r in range(size) for hop in hops}


def _shuffle(edges: Edges, draw: Random) -> None:
    """Exchange the ends of random pairs of edges, which keeps every degree."""
    order = sorted(edges)
    for _ in range(10 * len(order)):
        i, j = draw.randrange(len(order)), draw.randrange(len(order))
        (a, b), (c, d) = order[i], order[j] if draw.random() < 0.5 else order[j][::-1]
        new = _edge(a, d), _edge(c, b)
        if len({a, b, c, d}) == 4 and edges.isdisjoint(new):
            edges -= {order[i], order[j]}
            edges |= set(new)
            order[i], order[j] = new


def _edge(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)


def _check_regular(size: int, degree: int) -> None:
    """Refuse a degree that no connected graph of this size has."""
    if size == 1:
        return
    asked = f"random_regular(degree={degree}) with {size} ranks"
    works = [d for d in range(1, size) if d * size % 2 == 0 and (d > 1 or size == 2)]
    if degree not in works:
        nearest = min(works, key=lambda d: (abs(d - degree), d))
        raise PlanError(f"{asked}: no connected graph gives every rank {degree} neighbours; degree={nearest} works")


def _at_least(graph: str, key: str, value: int, least: int) -> None:
    if value < least:
        raise PlanError(f"{graph}({key}={value}): {key} must be at least {least}")

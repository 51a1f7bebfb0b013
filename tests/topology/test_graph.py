"""What every graph keeps, whatever its size."""

from __future__ import annotations

import math
import tracemalloc

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.topology import (
    GRAPHS,
    Graph,
    bipartite,
    build,
    chain,
    complete,
    exponential,
    halton,
    random_regular,
    ring,
    star,
    torus,
    tree,
)

sizes = st.integers(1, 40)
DIRECTED = {"halton", "one_peer_exponential"}
named = st.sampled_from(sorted(GRAPHS.keys() - {"random_regular", "matrix"} - DIRECTED))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any named graph that can be built, with any settings."""
    if draw(st.booleans()):
        return build(draw(named), {}, draw(sizes))
    if draw(st.booleans()):
        return tree(draw(sizes), fanout=draw(st.integers(1, 6)))
    degree = draw(st.integers(2, 6))
    size = draw(st.integers(degree + 1, 40).filter(lambda size: size * degree % 2 == 0))
    return random_regular(size, degree=degree, seed=draw(st.integers(0, 99)))


@settings(deadline=None)
@given(graphs())
def test_doubly_stochastic_and_connected(graph: Graph) -> None:
    graph.check()


@settings(deadline=None)
@given(graphs())
def test_neighbours_hear_each_other_equally(graph: Graph) -> None:
    for rank in graph.ranks:
        assert rank not in graph.neighbours(rank)
        assert graph.degree(rank) == len(graph.neighbours(rank))
        for peer in graph.neighbours(rank):
            assert graph.weight(rank, peer) == graph.weight(peer, rank) > 0


@settings(deadline=None)
@given(graphs(), st.integers(0, 99))
def test_mixing_keeps_the_mean_and_narrows_the_rest(graph: Graph, seed: int) -> None:
    values = numpy.random.default_rng(seed).normal(size=graph.size)
    mixed = graph.matrix() @ values
    assert mixed.mean() == pytest.approx(values.mean(), abs=1e-9)
    # For symmetric weights the distance to the mean shrinks by 1 - gap, at least.
    assert mixed.std() <= (1 - graph.gap()) * values.std() + 1e-9


@settings(deadline=None)
@given(graphs(), st.data())
def test_those_who_remain_still_keep_the_mean(graph: Graph, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(graph.ranks), max_size=graph.size - 1))
    rest = graph.without(gone)
    assert rest.ranks == [rank for rank in graph.ranks if rank not in gone]
    matrix = rest.matrix()
    assert matrix.sum(axis=0) == pytest.approx(1)
    assert matrix.sum(axis=1) == pytest.approx(1)


@given(st.integers(3, 40))
def test_the_gap_of_a_ring(size: int) -> None:
    eigenvalues = [(1 + 2 * math.cos(2 * math.pi * k / size)) / 3 for k in range(1, size)]
    assert ring(size).gap() == pytest.approx(1 - max(map(abs, eigenvalues)), abs=1e-9)


def test_the_gap_counts_what_changes_its_sign_or_turns() -> None:
    """Eigenvalues: of three on either side 1, 1/4 and -1/2; of three one way round 1 and 1/4 +- i sqrt(3)/4."""
    assert bipartite(6).gap() == pytest.approx(1 - 1 / 2)
    assert halton(3).gap() == pytest.approx(1 - 1 / 2)


@given(sizes)
def test_one_round_on_a_complete_graph_reaches_the_mean(size: int) -> None:
    assert complete(size).gap() == pytest.approx(1)


def test_small_rings() -> None:
    assert ring(1).weights == {0: {0: 1.0}}
    assert ring(2).weights == {0: {0: 0.5, 1: 0.5}, 1: {0: 0.5, 1: 0.5}}
    assert ring(5).neighbours(0) == [1, 4]


def test_shapes() -> None:
    assert chain(4).neighbours(0) == [1]
    assert star(5).degree(0) == 4
    assert star(5).neighbours(3) == [0]
    assert tree(7, fanout=2).neighbours(1) == [0, 3, 4]
    assert exponential(16).neighbours(0) == [1, 2, 4, 8, 12, 14, 15]
    assert exponential(7).neighbours(0) == [1, 2, 3, 4, 5, 6]
    assert torus(12).neighbours(0) == [1, 3, 4, 8]
    assert torus(7) == ring(7)


def test_a_random_graph_follows_its_seed() -> None:
    assert random_regular(20, seed=3) == random_regular(20, seed=3)
    assert random_regular(20, seed=3) != random_regular(20, seed=4)
    assert {random_regular(20, degree=3).degree(rank) for rank in range(20)} == {3}


def test_exponential_mixes_faster_than_a_ring() -> None:
    assert exponential(32).gap() > 5 * ring(32).gap()


def test_a_broken_graph_is_refused() -> None:
    with pytest.raises(PlanError, match=r"rank 0 hears 0\.5 in total"):
        Graph({0: {0: 0.5}}).check()
    with pytest.raises(PlanError, match=r"rank 0 is heard 1\.5 in total"):
        Graph({0: {0: 1.0}, 1: {0: 0.5, 1: 0.5}}).check()
    with pytest.raises(PlanError, match=r"ranks \[0\] cannot reach ranks \[1, 2\]"):
        Graph({0: {0: 1.0}, 1: {1: 0.5, 2: 0.5}, 2: {1: 0.5, 2: 0.5}}).check()
    with pytest.raises(PlanError, match="cannot be negative"):
        Graph({0: {0: 2.0, 1: -1.0}, 1: {0: -1.0, 1: 2.0}}).check()


def test_checking_many_ranks_takes_no_matrix() -> None:
    graph = ring(2000)
    tracemalloc.start()
    graph.check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2000**2 / 4, "a matrix of them takes 32 MB"


def test_a_cut_chain_is_no_longer_connected() -> None:
    assert chain(4).without([1]).islands() == [[0], [2, 3]]


@pytest.mark.parametrize(
    ("name", "given_settings", "size", "why"),
    [
        ("rign", {}, 4, "no topology 'rign'; did you mean 'ring'"),
        ("ring", {}, 0, "at least 1 rank"),
        ("ring", {"fanout": 2}, 4, "has no setting 'fanout'. It has: no settings"),
        ("tree", {"degree": 2}, 4, "It has: fanout=2"),
        ("tree", {"fanout": 0.5}, 4, "fanout must be a whole number"),
        ("tree", {"fanout": 0}, 4, "fanout must be at least 1"),
        ("random_regular", {}, 3, "degree=2 works"),
        ("random_regular", {"degree": 3}, 5, "degree=2 works"),
        ("random_regular", {"degree": 1}, 4, "degree=2 works"),
    ],
)
def test_what_cannot_be_built_is_explained(name: str, given_settings: dict[str, object], size: int, why: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(name, given_settings, size)
    assert why in str(caught.value)

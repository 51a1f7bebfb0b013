"""Graphs on which hearing is not mutual, graphs with two sides, and graphs out of a file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest

from covey.errors import PlanError
from covey.topology import (
    Graph,
    Varying,
    bipartite,
    build,
    chain,
    halton,
    one_peer_exponential,
    ring,
    star,
    torus,
    tree,
)
from covey.topology.weights import read_weights

SIZES = range(2, 65)


@pytest.mark.parametrize("size", SIZES)
def test_halton_is_strongly_connected_with_few_hops(size: int) -> None:
    """Also for 8, 16, 24…, where log2(n) terms of the sequence have even hops only."""
    graph = halton(size)
    graph.check_push()
    assert all(graph.degree(rank) == len(graph.hearers(rank)) <= math.ceil(math.log2(size)) + 1 for rank in graph.ranks)


def test_halton_hops() -> None:
    assert halton(8).hearers(0) == [1, 2, 4, 6]  # 1/2, 1/4, 3/4 of the way, and 1
    assert halton(7).hearers(0) == [1, 3, 5]
    assert halton(1).hearers(0) == []


@pytest.mark.parametrize("size", SIZES)
def test_one_peer_at_a_time(size: int) -> None:
    graph = one_peer_exponential(size)
    graph.check_push()
    hops = [1 << k for k in range((size - 1).bit_length())]
    for step in range(2 * len(hops)):
        hop = hops[step % len(hops)]
        assert [graph.at(step).hearers(rank) for rank in range(size)] == [[(rank + hop) % size] for rank in range(size)]


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_one_peer_exponential_reaches_the_mean_of_a_power_of_two_in_one_round(size: int) -> None:
    graph = one_peer_exponential(size)
    mixed = numpy.linalg.multi_dot([numpy.eye(size), *(phase.matrix() for phase in graph.phases), numpy.eye(size)])
    assert mixed == pytest.approx(numpy.full((size, size), 1 / size))


def test_directed_graphs_are_refused_where_hearing_must_be_mutual() -> None:
    with pytest.raises(PlanError, match="do not hear each other equally"):
        halton(8).check()
    with pytest.raises(PlanError, match="do not hear each other equally"):
        one_peer_exponential(5).check_mutual()


def test_push_needs_columns_and_ways() -> None:
    Graph({0: {0: 0.5, 1: 0.5}, 1: {0: 0.5, 2: 1.0}, 2: {1: 0.5}}).check_push()  # rows need not sum to 1
    with pytest.raises(PlanError, match=r"rank 1 is heard 0\.5 in total.*every column"):
        Graph({0: {0: 1.0, 1: 0.5}, 1: {1: 0.0}}).check_push()
    with pytest.raises(PlanError, match="rank 0 can never hear of rank 1"):
        Graph({0: {0: 0.5}, 1: {0: 0.5, 1: 1.0}}).check_push()
    with pytest.raises(PlanError, match="rank 0 can never reach rank 1"):
        Graph({0: {0: 1.0, 1: 0.5}, 1: {1: 0.5}}).check_push()


def test_push_needs_the_columns_of_every_turn() -> None:
    """In the mean of both graphs each rank gives away and keeps 1, at each step more or less."""
    more = Graph({0: {0: 0.75, 1: 0.5}, 1: {0: 0.75, 1: 0.0}})
    less = Graph({0: {0: 0.25, 1: 0.5}, 1: {0: 0.25, 1: 1.0}})
    assert Varying.of([more, less]).matrix().sum(axis=0) == pytest.approx([1, 1])
    with pytest.raises(PlanError, match=r"rank 0 is heard 1\.5 in total.*every column"):
        Varying.of([more, less]).check_push()


@pytest.mark.parametrize("graph", [bipartite(7), chain(5), star(6), tree(9), ring(8), torus(16), ring(2), ring(1)])
def test_two_sides(graph: Graph) -> None:
    one, other = graph.sides()
    assert sorted(one + other) == graph.ranks and 0 in one
    for rank in graph.ranks:
        assert not set(graph.neighbours(rank)) & set(one if rank in one else other)


@pytest.mark.parametrize("graph", [ring(3), ring(7), torus(9), halton(8)])
def test_odd_cycles_have_no_two_sides(graph: Graph) -> None:
    with pytest.raises(PlanError, match="odd length.*ring with an even number of workers"):
        graph.sides()


def test_a_row_of_a_matrix_says_whom_its_rank_hears(tmp_path: Path) -> None:
    file = tmp_path / "directed.csv"
    file.write_text("0.5, 0.5, 0\n0, 0.5, 0.5\n0.5, 0, 0.5\n", encoding="utf-8")
    graph = build("matrix", {"file": str(file)}, 3)
    assert [list(graph.neighbours(rank)) for rank in range(3)] == [[1], [2], [0]]
    assert graph.weight(0, 1) == 0.5 and list(graph.hearers(0)) == [2]


def test_a_matrix_from_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "weights.csv"
    lines.write_text("# who hears whom\n1/3, 1/3, 1/3\n1/3 1/3 1/3\n\n1/3,1/3,1/3  # the last\n")
    toml = tmp_path / "weights.toml"
    toml.write_text('weights = [[0.5, 0.5, 0], [0.5, 0, "1/2"], [0, 0.5, 0.5]]\n')
    assert build("matrix", {"file": str(lines)}, 3).gap() == pytest.approx(1)
    graph = build("matrix", {"file": str(toml)}, 3)
    graph.check()
    assert graph.neighbours(0) == [1] and graph.weight(1, 1) == 0


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("w.csv", "1 0\n0 1\n", "2 rows of 2 numbers; 3 workers need 3 rows of 3"),
        ("w.csv", "1 0 0\n0 one 0\n0 0 1\n", "line 2 is not a row of numbers"),
        ("w.csv", "1 0 0\n0 1/0 0\n0 0 1\n", "line 2 is not a row of numbers"),
        ("w.csv", "1 0 0\n0 -1 0\n0 0 1\n", "row 1 holds -1"),
        ("w.csv", "1 0 0\n0 nan 0\n0 0 1\n", "row 1 holds nan"),
        ("w.toml", "rows = 3", "weights = "),
        ("w.toml", "weights = [[", "not a TOML file"),
        ("w.toml", 'weights = [["x"]]', "must be numbers"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(tmp_path: Path, name: str, text: str, why: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(PlanError) as caught:
        build("matrix", {"file": str(file)}, 3)
    assert why in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(PlanError, match=r"matrix needs file="):
        build("matrix", {}, 3)
    with pytest.raises(PlanError, match="cannot be read"):
        build("matrix", {"file": "/nowhere.csv"}, 3)
    with pytest.raises(PlanError, match="file must be a file's name"):
        build("matrix", {"file": 3}, 3)


def test_a_rank_of_a_matrix_hears_itself_if_only_with_a_weight_of_0(tmp_path: Path) -> None:
    file = tmp_path / "swap.txt"
    file.write_text("0 1\n1 0\n")
    assert read_weights(str(file), 2) == {0: {0: 0.0, 1: 1.0}, 1: {0: 1.0, 1: 0.0}}

"""Consistent hashing: a further server takes its share from everybody, and nothing else moves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import catalog
from covey.central.hashing import owned
from covey.errors import PlanError
from covey.vector import chunk
from tests.pages.compatibility import Lars
from tests.worlds import mlp, run, server

LENGTH = 10_000


def owners(servers: int, points: int, length: int = LENGTH) -> list[int]:
    """The server of every number."""
    found = [-1] * length
    for who, ranges in enumerate(owned(servers, points, length)):
        for start, stop in ranges:
            assert all(number == -1 for number in found[start:stop]), "two servers own a number"
            found[start:stop] = [who] * (stop - start)
    assert -1 not in found
    return found


@pytest.mark.parametrize("servers", [1, 2, 4, 8])
def test_one_more_server_takes_its_share_from_all_and_nothing_else_moves(servers: int) -> None:
    before, after = owners(servers, 64), owners(servers + 1, 64)
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {servers}, "only to the new one"
    assert {old for old, _ in moved} == set(range(servers)), "and from everybody"
    assert len(moved) / LENGTH == pytest.approx(1 / (servers + 1), rel=0.3)


def test_equal_slices_would_move_half_of_everything() -> None:
    def sliced(servers: int) -> list[int]:
        return [who for who in range(servers) for _ in range(*chunk(LENGTH, servers, who))]

    assert sum(old != new for old, new in zip(sliced(8), sliced(9), strict=True)) > 0.4 * LENGTH


@settings(max_examples=30, deadline=None)
@given(servers=st.integers(1, 9), points=st.integers(1, 40), length=st.integers(0, 300))
def test_every_number_has_one_owner(servers: int, points: int, length: int) -> None:
    owners(servers, points, length)


def test_owners_are_the_same_in_every_process_and_version() -> None:
    """Roles agree without a message, and a checkpoint names no owners: what hashing gives may never change."""
    assert owned(3, 2, 1000) == [[(0, 392), (992, 1000)], [(392, 431), (786, 992)], [(431, 786)]]


@pytest.mark.parametrize("spec", ["bsp", "bsp + bf16", "quorum(size=3)"])
def test_who_holds_a_number_makes_no_difference(spec: str) -> None:
    """Bit by bit, also with momentum, whose state lies where its number does."""
    optimizer = lambda pairs: torch.optim.SGD(pairs, lr=0.1, momentum=0.9)  # noqa: E731
    ring, slices = (run(mlp(optimizer), f"{spec} over {over}", 3, steps=6) for over in ("hashed(count=3)", "servers"))
    assert all(torch.equal(ring.scored[name], slices.scored[name]) for name in slices.scored)
    held = [len(ring.replicas[server(index)].trained[0]) // 2 for index in range(3)]
    assert min(held) > 1, "several arcs each"


def test_layerwise_optimizers_get_whole_parameters() -> None:
    world = run(mlp(lambda pairs: Lars(pairs, lr=0.1)), "bsp over hashed", 2, steps=4)
    one = run(mlp(lambda pairs: Lars(pairs, lr=0.1)), "bsp", 2, steps=4)
    assert all(torch.allclose(world.scored[name], one.scored[name], atol=1e-12) for name in one.scored)
    held = [
        p.shape for index in range(2) for g in world.replicas[server(index)].optimizer.param_groups for p in g["params"]
    ]
    assert sorted(held) == sorted([(8, 6), (8,), (3, 8), (3,)])


def test_what_cannot_work_is_refused() -> None:
    for wrong in ("count=0", "points=0"):
        with pytest.raises(PlanError, match="at least 1 server, with 1 point or more"):
            catalog.resolve(f"bsp over hashed({wrong})", 2)
    assert catalog.resolve("ssp over hashed(count=4)", 2).text.endswith("over hashed(count=4, points=16)")

"""What tells bosen from petuum: rows that leave one by one, the relatively most changed first, within a budget."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from covey.central.cached.rows import RowChanges
from covey.errors import PlanError
from covey.task import Task
from tests.worlds import INSTANT, World, mlp, paced, quadratic, run, server, sgd, slowed, worker


def rows(world: World, rank: int = 0) -> list[tuple[float, list[int], int]]:
    """When a worker sent which rows, and how many bytes they were."""
    sent = [event for event in world.log.kinds(RowChanges) if event.sender == worker(rank)]
    return [(event.at, event.message.rows, event.size) for event in sent]  # type: ignore[attr-defined]


def test_no_more_leaves_than_the_budget_but_what_the_bound_forces() -> None:
    """8 numbers of 8 bytes a row at 6,400 bytes per second: a row each 10 ms, a step has 4 of them."""
    world = run(quadratic(size=32), "bosen(bound=1000, rate=51.2kbit, row=8)", 1, steps=30, cluster=INSTANT)
    early = [(at, size) for at, _, size in rows(world) if at < 0.299]
    for count, (at, _) in enumerate(early):
        assert sum(size for _, size in early[:count]) <= 6400 * at + 1e-6
    assert len(early) == 29, "the budget is used up: one row a step, and nothing in the first, which is being computed"
    assert "forced" not in {note.kind for note in world.log.notes}


def test_changes_gather_while_they_wait_and_none_is_lost() -> None:
    """Every row is sent far more rarely than it changes; in the end the server has what the only worker has."""
    world = run(quadratic(size=32), "bosen(bound=1000, rate=25.6kbit, row=8)", 1, steps=30, cluster=INSTANT)
    assert sum(len(which) for _, which, _ in rows(world)) < 30
    assert torch.allclose(world.flat(server(0)), world.flat(worker(0)), rtol=1e-12, atol=0)
    alone = run(quadratic(size=32), "petuum", 1, steps=30)
    assert torch.allclose(alone.scored["w"], world.scored["w"], rtol=1e-12, atol=0)


class Uneven(nn.Module):
    """Two rows that change by the same, of which one is a hundred times larger."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([100.0] * 4 + [1.0] * 4, dtype=torch.float64))


def pull(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model.get_parameter("w").sum() + 0 * batch[0].sum()


@pytest.mark.parametrize(("policy", "first"), [("magnitude", [1]), ("fifo", [0])])
def test_the_row_goes_first_that_has_changed_most_for_what_it_is(policy: str, first: list[int]) -> None:
    task = Task(model=Uneven, data=(torch.zeros(64, 1),), optimizer=sgd(0.01), step=pull, batch_size=4)
    world = run(task, f"bosen(bound=1000, rate=8kbit, row=4, policy={policy})", 1, steps=5, cluster=INSTANT)
    assert rows(world)[0][1] == first


@pytest.mark.parametrize(("policy", "in_turn"), [("fifo", True), ("random", False)])
def test_the_longest_waiting_row_goes_first_or_any(policy: str, in_turn: bool) -> None:
    """A row each step of 10 ms, which all rows change: what was sent last has waited least."""
    spec = f"bosen(bound=1000, rate=51.2kbit, row=8, policy={policy})"
    world = run(quadratic(size=32), spec, 1, steps=12, cluster=INSTANT)
    early = [which for at, which, _ in rows(world) if at < 0.1]
    assert (early[:8] == [[0], [1], [2], [3]] * 2) == in_turn
    assert {row for which in early for row in which} == {0, 1, 2, 3}


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_is_kept_whatever_the_budget(bound: int) -> None:
    """A budget of nearly nothing: all that leaves is forced, and no copy is older than the bound."""
    spec = f"bosen(bound={bound}, rate=1bit/s, row=8)"
    world = run(mlp(), spec, 3, steps=8, cluster=slowed(INSTANT, w1=3))
    assert max(world.log.values("staleness")) <= bound
    assert len(world.log.values("forced")) >= 3 * (8 // (bound + 1))
    assert len({event.at for event in world.log.kinds(RowChanges)}) > 3


def test_random_rows_on_two_servers_sum_up() -> None:
    spec = "bosen(bound=2, rate=80kbit, row=5, policy=random)"
    world, again = (run(mlp(), spec, 3, steps=6, servers=2, cluster=paced([1, 2, 1])) for _ in range(2))
    assert world.trace == again.trace
    assert all(torch.isfinite(tensor).all() for tensor in world.scored.values())


def test_what_cannot_be() -> None:
    with pytest.raises(PlanError, match="cannot read the rate '40miles'"):
        run(mlp(), "bosen(rate=40miles)", 1, steps=1)
    with pytest.raises(PlanError, match="at least 1 number"):
        run(mlp(), "bosen(row=0)", 1, steps=1)

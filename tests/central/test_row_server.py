"""What Bösen's servers do: rows go back unasked, the most changed first, within a budget, and by the bound anyway."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from covey.central.cached.cache import ParameterCopy, ReadParameters
from covey.central.cached.petuum import WorkerClocks
from covey.central.cached.row_server import ManagedTable, RowReader, Waiting
from covey.central.cached.rows import Renewed
from covey.task import Task
from tests.central.test_bosen import Uneven, pull
from tests.worlds import INSTANT, World, mlp, paced, quadratic, run, server, sgd, slowed, worker


def renewed(world: World, rank: int | None = None) -> list[tuple[float, Renewed]]:
    """When servers sent which rows, to this worker or to anybody."""
    sent = [event for event in world.log.kinds(Renewed) if rank in (None, event.to.rank)]
    return [(event.at, event.message) for event in sent]  # type: ignore[misc]


def test_rows_come_unasked_and_petuum_would_ask() -> None:
    """The bound never requires anything: after its first read a worker asks for nothing, and still hears of others."""
    task = quadratic(size=32, samples=400)
    bosen = run(task, "bosen(bound=1000, rate=1mbit, row=8)", 2, steps=30, cluster=INSTANT)
    assert len(bosen.log.kinds(ReadParameters)) == len(bosen.log.kinds(ParameterCopy)) == 2
    assert len(renewed(bosen, 0)) > 30 and len(renewed(bosen, 1)) > 30
    assert "forced back" not in {note.kind for note in bosen.log.notes}
    petuum = run(task, "petuum(bound=1000)", 2, steps=30, cluster=INSTANT)
    apart = [(world.flat(worker(0)) - world.flat(worker(1))).norm() for world in (bosen, petuum)]
    assert apart[0] < 0.75 * apart[1], "which knows its own changes only"


def test_a_row_goes_to_those_who_did_not_change_it() -> None:
    """The only worker has all that there is."""
    assert not renewed(run(quadratic(size=32), "bosen(bound=1000, row=8)", 1, steps=10, cluster=INSTANT))


@pytest.mark.parametrize(("policy", "order"), [("magnitude", [[1], [0]]), ("fifo", [[0], [1]])])
def test_the_row_comes_first_that_has_changed_most_for_what_it_is(policy: str, order: list[list[int]]) -> None:
    """By the bound worker 0 sends both rows of 32 bytes together; while worker 1 computes, one comes back in 32 ms."""
    task = Task(model=Uneven, data=(torch.zeros(64, 1),), optimizer=sgd(0.01), step=pull, batch_size=4)
    spec = f"bosen(bound=0, rate=8kbit, row=4, policy={policy})"
    world = run(task, spec, 2, steps=2, cluster=slowed(INSTANT, w1=20))
    assert [message.rows for at, message in renewed(world, 1) if 0.01 <= at < 0.2] == order


@pytest.mark.parametrize(("policy", "in_turn"), [("fifo", True), ("random", False)])
def test_the_longest_waiting_row_comes_first_or_any(policy: str, in_turn: bool) -> None:
    """By the bound worker 0 sends its 8 rows together; while worker 1 computes, one comes back each 10 ms."""
    spec = f"bosen(bound=0, rate=51.2kbit, row=8, policy={policy})"
    world = run(quadratic(size=64), spec, 2, steps=2, cluster=slowed(INSTANT, w1=20))
    came = [message.rows for at, message in renewed(world, 1) if at < 0.2]
    assert sorted(came) == [[row] for row in range(8)]
    assert (came == sorted(came)) == in_turn


def test_what_a_row_was_worth_before_counts_when_it_changes_again() -> None:
    table = object.__new__(ManagedTable)  # without a run: what a choice looks at, and no more
    table.policy, table.serial, table.line, table.known = "magnitude", 0, [], {1: RowReader()}
    table.clocks = WorkerClocks({0: 3, 1: 3})
    table.miss(1, row=0, worth=0.5)
    table.miss(1, row=7, worth=0.6)
    assert table.best() == (1, 7)
    table.miss(1, row=0, worth=0.2)
    assert table.best() == (1, 0), "0.7 in all"


def test_no_more_leaves_than_the_budget_but_what_the_bound_forces() -> None:
    """8 numbers of 8 bytes a row at 6,400 bytes per second, for all workers together: a row each 10 ms."""
    world = run(quadratic(size=32), "bosen(bound=1000, rate=51.2kbit, row=8)", 3, steps=30, cluster=INSTANT)
    times = [at for at, _ in renewed(world)]
    assert len(times) >= 25, "the budget is used up"
    assert min(later - early for early, later in pairwise(times)) >= 0.01 - 1e-9


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("budget", ["1bit/s", "51.2kbit", "1gbit"])
def test_the_bound_is_kept_whatever_the_budget(bound: int, budget: str) -> None:
    world = run(mlp(), f"bosen(bound={bound}, rate={budget}, row=8)", 3, steps=8, cluster=slowed(INSTANT, w1=3))
    assert max(world.log.values("staleness")) <= bound
    forced = sum(world.log.values("forced back"))
    rows = sum(len(message.rows) for _, message in renewed(world))
    assert forced > 0.9 * rows - 3 if budget == "1bit/s" else forced < rows
    assert len(world.log.kinds(ParameterCopy)) == 3, "later answers are of what has changed"


def test_an_answer_has_only_what_may_not_be_missed_any_longer() -> None:
    """A row lacks the steps from the slowest worker's clock on, as it was when the row was first changed."""
    reader = RowReader()
    for row, since in ((7, 2), (3, 4), (5, 2)):
        reader.lack(row, Waiting(since, 0.0))
    assert reader.clock(9) == 2
    reader.lack(7, Waiting(2, -1.0))
    reader.have(7)
    assert reader.clock(9) == 2
    reader.have(5)
    assert reader.clock(9) == 4
    reader.have(3)
    assert reader.clock(9) == 9


def test_with_no_budget_and_no_bound_it_is_petuum() -> None:
    """All leaves by force, both ways, and everybody computes on the same copies."""
    bosen, petuum = (run(mlp(), spec, 3, steps=6, cluster=INSTANT) for spec in SAME)
    for name, tensor in petuum.scored.items():
        assert torch.allclose(tensor, bosen.scored[name], rtol=1e-10, atol=1e-12)


SAME = ("bosen(bound=0, rate=1bit/s, row=8)", "petuum(bound=0)")


@pytest.mark.parametrize("policy", ["magnitude", "random", "fifo"])
def test_copies_hold_what_the_servers_hold(policy: str) -> None:
    """Two servers, workers of any pace. The last worker, when all others have ended, has all there is."""
    spec = f"bosen(bound=1, rate=200kbit, row=5, policy={policy})"
    world = run(mlp(samples=49), spec, 3, epochs=3, servers=2, cluster=paced([1, 2, 1.3], 0.2))
    pieces = world.replicas[worker(0)].pieces(2)
    for index, piece in enumerate(pieces):
        theirs = world.replicas[server(index)].flat.cut(piece)
        mine = world.replicas[worker(0)].flat.cut(piece)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(mine.parts, theirs.parts, strict=True))

"""`member.clip` holds for the gradient that is stepped on: the mean of all workers' where there is one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from covey import catalog
from covey.engines.process.contacts import Contacts
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.run.own_loop.joined_role import JoinedRole
from covey.run.roles import RoleWork
from covey.spec import parse
from tests.run.loops import differentiate, fresh, plain_sgd, sgd, train
from tests.run.test_loop_settings import many, names, one_batch, start

NORM = 0.05


def every_other(replica: Replica, rank: int, step: int) -> None:
    """As a member does before its gradient is given."""
    replica.updates.clip_norm = NORM if step % 2 == 0 else None


def tiny(replica: Replica, rank: int, step: int) -> None:
    replica.updates.clip_norm = 1e-9


def plain(workers: int, steps: int) -> Tensor:
    """The loop that people write, with the batches of all workers as one."""
    module = fresh()
    optimizer = sgd(module)
    for step in range(steps):
        differentiate(module, range(workers), step)
        if step % 2 == 0:
            assert nn.utils.clip_grad_norm_(module.parameters(), NORM) > 2 * NORM, "the test clips something"
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def clipping(spec: str) -> list[int | None]:
    """The numbers of servers with which the strategy can clip."""
    strategy = catalog.resolve(spec, 2)
    if strategy.terms.clips == "never":
        return []
    return [count for count in many(spec) if strategy.terms.clips != "each update of one server" or (count or 1) == 1]


def clips_means(spec: str) -> bool:
    """Not so where each worker clips its own gradient, as with proteus."""
    return one_batch(spec) and catalog.resolve(spec, 2).terms.clips != "each gradient"


@pytest.mark.parametrize("spec", [spec for spec in names() if clips_means(spec)])
def test_where_workers_step_together_the_mean_is_clipped(spec: str) -> None:
    for servers in clipping(spec):
        found = train(spec, every_other, servers=servers, steps=5)
        torch.testing.assert_close(found.weights, plain(2, 5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", [spec for spec in names() if spec != "downpour"])  # Adagrad undoes any clipping
def test_everywhere_what_is_stepped_on_is_clipped(spec: str) -> None:
    for servers in clipping(spec):
        found = train(spec, tiny, servers=servers, make=plain_sgd)
        torch.testing.assert_close(found.weights, start(), rtol=0, atol=1e-7)


def test_where_a_strategy_cannot_clip_it_says_so() -> None:
    work = RoleWork(
        task="", strategy=parse("quorum(size=1)"), text="quorum(size=1)", workers=2, servers=2, limits=[None, None],
        seed=0, threads=1,
        contacts=Contacts(book={}, launcher=""),
    )  # fmt: skip
    with pytest.raises(PlanError, match="quorum with 2 servers cannot clip.*use 1 server, or bsp"):
        JoinedRole(work, work.chosen(None), Address("worker", 0)).check_clip()

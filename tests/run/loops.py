"""Loops of the user's own in virtual time: any strategy's programs, and workers whose loop changes its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covey import catalog
from covey.engines.virtual import VirtualEngine
from covey.message import Address
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.model.threads import one_thread
from covey.observe.referee import Referee
from covey.run.own_loop.settings import replica_of
from covey.simulate import Cluster
from covey.strategy import Plan, Strategy
from tests.worlds import CLUSTER, Recorder

SIZE = 4  # samples of a worker's batch
Make = Callable[[nn.Module], Optimizer | Sequence[Optimizer]]
Turn = Callable[[Replica, int, int], None]
"""What a loop does before a step: (its replica, its rank, the step)."""


def sgd(module: nn.Module) -> Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)


def plain_sgd(module: nn.Module) -> Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def adam(module: nn.Module) -> Optimizer:
    return torch.optim.Adam(module.parameters(), lr=0.01)


def rate(value: Callable[[int], float]) -> Turn:
    """A schedule of the rate, for all groups."""

    def turn(replica: Replica, rank: int, step: int) -> None:
        assert replica.updates.settings
        for group in replica.updates.settings.live.param_groups:
            group["lr"] = value(step)

    return turn


def fresh() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """What a worker sees in a step."""
    chance = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(SIZE, 6, dtype=torch.float64, generator=chance)
    return x, torch.randint(3, (SIZE,), generator=chance)


def differentiate(module: nn.Module, ranks: Sequence[int], step: int) -> float:
    """One forward and backward of a loop, on the batches of these workers together."""
    module.zero_grad()
    pairs = [batch(rank, step) for rank in ranks]
    x, y = (torch.cat(column) for column in zip(*pairs, strict=True))
    loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    return float(loss.detach())


@dataclass
class Loop:
    """A run that is over."""

    scored: nn.Module
    replicas: dict[Address, Replica]
    log: Recorder
    rates: dict[Address, list[list[float]]] = field(default_factory=dict)  # of each update, before shares of it

    @property
    def weights(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.scored.parameters()])


def launched(spec: str, workers: int) -> Strategy | None:
    """The strategy, if `covey launch` takes it: it leaves the batches to the loop, and the model whole."""
    strategy = catalog.resolve(spec, workers)
    refused = strategy.terms.chooses or any(role.part for role in strategy.layout(workers, None))
    return None if refused else strategy


def train(
    spec: str, turn: Turn = lambda replica, rank, step: None, *, workers: int = 2, servers: int | None = None,
    steps: int = 6, make: Make = sgd, model: Callable[[], nn.Module] = fresh, cluster: Cluster = CLUSTER,
    loss: Callable[[nn.Module, Sequence[int], int], float] = differentiate,
) -> Loop:  # fmt: skip
    """Train with a strategy as `covey launch` does."""
    strategy = launched(spec, workers)
    assert strategy is not None
    roles = tuple(strategy.layout(workers, servers if strategy.servers.count and not strategy.servers.fixed else None))
    replicas, owners = dict[Address, Replica](), dict[int, Address]()
    for role in roles:
        module = model()
        replica = replica_of(module, make(module), strategy.terms.accept)
        own = _own(replica, turn, role.address.rank, loss) if role.trains else None
        replica.batch_source = BatchSource(own=own, samples=lambda rank, step: SIZE)
        replicas[role.address], owners[id(replica)] = replica, role.address
    log, rates = Recorder(), dict[Address, list[list[float]]]()
    plan = Plan(roles=roles, limits=(steps,) * workers, lockstep=strategy.lockstep)
    with watched(owners, rates), one_thread():
        outcome = VirtualEngine(plan, replicas, cluster, [log], Referee(10**9)).run()
    scored = ScoredModel(model(), None)
    scored.assemble(outcome.snapshots)
    module = model()
    module.load_state_dict(scored.state())
    return Loop(module, replicas, log, rates)


def _own(replica: Replica, turn: Turn, rank: int, loss: Callable[..., float]) -> Callable[[int], Batch]:
    def own(step: int) -> Batch:
        turn(replica, rank, step)
        return Batch(loss(replica.module, [rank], step), SIZE)

    return own


@contextmanager
def watched(owners: dict[int, Address], rates: dict[Address, list[list[float]]]) -> Iterator[None]:
    """Write down the rates that every optimizer has when it steps."""
    update = Replica.update

    def updating(self: Replica, scale: float = 1.0) -> None:
        found = rates.setdefault(owners[id(self)], [])
        found.append([group["lr"] for group in self.optimizer.param_groups])
        update(self, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "update", updating)
        yield


def alone(turn: Turn, *, workers: int, steps: int, make: Make = sgd, model: Callable[[], nn.Module] = fresh) -> Tensor:
    """The same loop in one process, with the batches of all workers as one."""
    module = model()
    optimizer = make(module)
    replica = replica_of(module, optimizer)
    for step in range(steps):
        turn(replica, 0, step)
        differentiate(module, range(workers), step)
        if replica.updates.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), replica.updates.clip_norm)
        replica.optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

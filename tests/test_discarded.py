"""Steps that leave no trace: whatever training changes is as it was before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from covey.data.shards import Shards
from covey.message import Address
from covey.model import build
from covey.model.discarded import discarded
from covey.model.replica import Replica
from covey.task import Task

SAMPLES = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2


class Net(nn.Module):
    """A model with all that a step may change: statistics, counters, attributes, frozen weights, caches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.slow = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.calls, self.memory, self.cache = 0, torch.zeros(2), None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.batches = self.batches + 1
        self.slow.data.add_(1)
        self.memory.add_(1)
        self.cache = x.detach()
        self.register_buffer("late", x.detach().mean())
        random.random(), np.random.rand()
        out: Tensor = self.layers(x) + self.slow * self.calls
        return out


def replica(rank: int = 0, data: Any = SAMPLES, **more: Any) -> Replica:
    task = Task(
        model=Net, data=data, optimizer=lambda params: torch.optim.Adam(params, lr=0.1),
        loss=nn.functional.cross_entropy, batch_size=4, **more,
    )  # fmt: skip
    return build.replica(task, Address("worker", rank), True, Shards(24, 2, 4), 24)


def train(replica: Replica, steps: range) -> None:
    for step in steps:
        replica.compute.batch = replica.differentiate(step)
        replica.progress.begin(replica.batch.samples)
        replica.update()


def facts(replica: Replica) -> list[Any]:
    """All that a later step could depend on, as values."""
    net = replica.module
    assert isinstance(net, Net)
    return [
        {name: tensor.tolist() for name, tensor in net.state_dict().items()}, net.calls, net.memory.tolist(),
        net.cache is None, "late" in net._buffers, str(replica.optimizer.state_dict()), replica.progress.seen,
        replica.compute.losses.count, torch.get_rng_state().tolist(), random.getstate(),
        [*np.random.get_state()[1].tolist(), np.random.get_state()[2]],
        [part.tolist() for part in (*replica.grad.parts, *replica.buffers.parts)],
    ]  # fmt: skip


def test_everything_is_as_it_was() -> None:
    mine = replica()
    before = facts(mine)
    with discarded(mine, 0):
        train(mine, range(2))
        assert [now == then for now, then in zip(facts(mine), before, strict=True)] == [False] * len(before)
    assert facts(mine) == before


def test_the_steps_afterwards_are_those_of_a_replica_that_did_none() -> None:
    plain, warm = replica(), replica()
    chance = torch.get_rng_state()
    train(plain, range(3))
    torch.set_rng_state(chance)
    with discarded(warm, 0):
        train(warm, range(2))
    train(warm, range(3))
    assert facts(plain)[:3] == facts(warm)[:3] and facts(plain)[5] == facts(warm)[5]


def moved(replica: Replica) -> None:
    replica.move(replica.flat.clone())


def sharded(replica: Replica) -> None:
    replica.keep(replica.pieces(2)[1], buffers=False)


def shown(replica: Replica) -> None:
    replica.show(replica.model.clone().mul_(2))
    replica.weigh(3.0)


@pytest.mark.parametrize("change", [Replica.shield, moved, sharded, shown])
def test_a_program_may_move_divide_and_shield_a_replica_and_begins_again(change: Callable[[Replica], None]) -> None:
    mine = replica()
    before, optimizer, flat = facts(mine), mine.optimizer, mine.flat
    with discarded(mine, 0):
        change(mine)
        train(mine, range(2))
    assert facts(mine) == before and mine.optimizer is optimizer and mine.flat is flat
    assert mine.snapshot().weight == 1.0 and mine.snapshot().params.numel == mine.flat.numel
    assert all(p.data_ptr() == slot.view(flat).data_ptr() for slot, p in zip(
        mine.layout.slots, mine.layout.parameters.values(), strict=True
    ))  # fmt: skip
    change(mine)
    train(mine, range(1))


class Loaded(torch.utils.data.Dataset[Any]):
    """Data that is loaded sample by sample."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return SAMPLES[0][number], SAMPLES[1][number]


@pytest.mark.parametrize("loaders", [0, 1])
def test_the_position_in_the_data_is_that_of_the_next_step(loaders: int) -> None:
    plain, warm = replica(data=Loaded(), loaders=loaders), replica(data=Loaded(), loaders=loaders)
    chance = torch.get_rng_state()
    train(plain, range(4, 6))
    torch.set_rng_state(chance)
    with discarded(warm, 4):
        train(warm, range(2))
    assert warm.batch_source.own.next == (4 if loaders else -1)  # type: ignore[union-attr]  # its process loads already
    train(warm, range(4, 6))
    assert facts(plain)[0] == facts(warm)[0]

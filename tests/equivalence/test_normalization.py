"""Batch-norm: synchronized, n workers are one with a large batch; local, each worker has its own statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import catalog
from covey.data.shards import Shards
from covey.errors import PeerLost, PlanError
from covey.model.norm import BatchMoments, SynchronizedNorm
from covey.simulate.units import Seconds
from covey.task import Task
from tests.promises.specs import SPECS
from tests.worlds import CLUSTER, World, adam, alone, cloud, run, sgd, slowed, worker

TOGETHER = [
    "bsp", "allreduce", "poseidon", "firecaffe", "sliced", "caffeonspark", "p3", "tictac", "bytescheduler", "staggered",
    "one_weird_trick", "litz", "proteus",
]  # fmt: skip
"""Strategies in which n workers with b are one with n * b, exactly; bigdl rounds what it sends."""


STEPS = 10  # an epoch has 4: it ends in the middle of the third


def net(convert: bool = True) -> nn.Module:
    """Two layers of batch-norm in float64, of which the second has no parameters of its own."""
    layers = [
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)
    ]  # fmt: skip
    model = nn.Sequential(*layers).double()
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if convert else model


def task(samples: int = 128, **more: Any) -> Task:
    given: dict[str, Any] = {
        "model": net, "data": cloud(samples), "optimizer": sgd(0.1, momentum=0.9),
        "loss": nn.functional.cross_entropy, "batch_size": 8,
    }  # fmt: skip
    return Task(**(given | more))


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], within: float = 1e-9) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if "num_batches" not in name:
            torch.testing.assert_close(tensor, other[name], atol=within, rtol=0, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adam(0.01)], ids=["momentum", "adam"])
@pytest.mark.parametrize("strategy", [*TOGETHER, "bsp over servers(count=3)", "bsp over colocated"])
def test_four_workers_with_8_are_one_with_32(strategy: str, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    given = task(optimizer=optimizer)
    assert_same(run(given, strategy, 4, steps=STEPS).scored, alone(given, steps=STEPS, batch_size=32))


@pytest.mark.parametrize("strategy", TOGETHER)
def test_also_when_batches_differ_and_some_have_one_sample(strategy: str) -> None:
    """101 samples: the fourth batches have 2, 1, 1 and 1; a batch counts by its samples, in the statistics too."""
    given = task(samples=101)
    assert_same(run(given, strategy, 4, steps=STEPS).scored, alone(given, steps=STEPS, batch_size=32))


def test_local_statistics_are_something_else() -> None:
    """Else the tests above could not fail."""
    given = task(model=lambda: net(convert=False))
    with pytest.raises(AssertionError):
        assert_same(run(given, "bsp", 4, steps=20).scored, alone(given, steps=20, batch_size=32), within=1e-3)


def test_pictures_too() -> None:
    x = torch.randn(48, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pictures = (x, (x.mean((1, 2, 3)) > 0).long())

    def model() -> nn.Module:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.Flatten(), nn.Linear(16, 2))
        return nn.SyncBatchNorm.convert_sync_batchnorm(net.double())

    given = task(model=model, data=pictures, batch_size=4)
    assert_same(run(given, "allreduce", 3, steps=20).scored, alone(given, steps=20, batch_size=12))


def test_chance_inside_the_model_is_each_workers_own() -> None:
    """Workers stand still in the middle of their forward; dropout after it draws on as if they had not."""

    def model() -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(
            nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
        )

    drawn: dict[int, list[Tensor]] = {}

    def before(replicas: Any) -> None:
        for who, replica in replicas.items():
            if who.role == "worker":
                replica.module[1].register_forward_hook(
                    lambda _, x, y, rank=who.rank: drawn.setdefault(rank, []).append((y != 0).clone())
                )

    run(task(model=model), "allreduce", 3, steps=2, before=before)
    for rank in range(3):
        for step in range(2):
            torch.manual_seed(rank * 1_000_003 + step)
            assert torch.equal(drawn[rank][step], nn.functional.dropout(torch.ones(8, 6).double(), 0.5) != 0)


def test_the_workers_agree_to_the_bit_and_everybody_speaks_in_its_turn() -> None:
    world = run(task(), "bsp", 3, steps=5, cluster=slowed(w1=4))
    first, *others = [world.replicas[worker(rank)].buffers.parts[0] for rank in range(3)]
    assert all(torch.equal(first, other) for other in others)
    sent = world.log.kinds(BatchMoments)
    assert len(sent) == 5 * 4 * 3 * 2, "each of two layers, forward and back, from each worker to both others"
    assert {event.size for event in sent} == {8 * (2 * 8 + 1), 8 * (2 * 5 + 1), 8 * 2 * 8, 8 * 2 * 5}


def test_waiting_for_a_slow_worker_takes_time_and_is_told() -> None:
    """Nobody's forward ends before the slowest has come to its last synchronized layer."""
    even, uneven = (run(task(), "allreduce", 2, steps=4, cluster=c) for c in (CLUSTER, slowed(w1=3)))
    assert uneven.outcome.seconds > even.outcome.seconds + 4 * 0.019
    assert computed(uneven, 0) == pytest.approx(computed(even, 0))
    assert any(wait.who == worker(0) and "an answer for its work" in wait.what for wait in uneven.log.waits)


def computed(world: World, rank: int) -> float:
    return sum(end - begin for begin, end, who in world.log.computes if who == worker(rank))


@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in (*TOGETHER, "bigdl")])
def test_others_refuse_it(name: str) -> None:
    with pytest.raises(PlanError, match="SyncBatchNorm has no meaning here.*use nn.BatchNorm"):
        run(task(optimizer=sgd()), SPECS.get(name, name), 4, steps=2)


def test_alone_it_is_batch_norm() -> None:
    given = task()
    assert_same(run(given, "bsp", 1, steps=10).scored, alone(given, steps=10, batch_size=8))
    layer = nn.SyncBatchNorm(3)
    assert type(layer) is not SynchronizedNorm and layer(torch.randn(4, 3)).shape == (4, 3)


def test_a_run_that_breaks_leaves_no_work_behind() -> None:
    """Worker 1 is killed while worker 0 stands still in its forward."""
    with pytest.raises(PeerLost):
        run(task(), "allreduce", 2, steps=9, cluster=replace(slowed(w1=100), kills={"worker 1": Seconds(0.5)}))
    assert not [thread for thread in enumerate_threads() if thread.name == "work"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_on_processes(strategy: str) -> None:
    """The same on real processes, with scores in between, at which every role stands still in the middle of a step."""
    given = task(evaluate=covey.accuracy(cloud(64)))
    result = covey.fit(given, strategy, workers=3, steps=20)
    assert_same(result.weights, alone(given, steps=20, batch_size=24))
    assert len(result.history) > 1


class Odd(nn.Module):
    """A model that fails on one worker, whose peers wait for it in the middle of their forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.SyncBatchNorm(6).double()
        self.out = nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e6:
            raise ValueError("these numbers are too large")
        return self.out(self.norm(x))  # type: ignore[no-any-return]


@pytest.mark.timeout(120)
def test_a_failure_on_processes_is_told_although_others_wait() -> None:
    x, y = cloud(64)
    x[Shards(64, 2, 8, 0).indices(1, 1)] = 1e6
    with pytest.raises(Exception, match="too large"):
        covey.fit(task(model=Odd, data=(x, y)), "allreduce", workers=2, steps=20)


# -- batches of one sample --------------------------------------------------------------------------------------------


def plain(samples: int = 128, batch_size: int = 8) -> Task:
    return task(samples=samples, model=lambda: net(convert=False), batch_size=batch_size, optimizer=sgd())


@pytest.mark.parametrize(
    ("strategy", "given", "why"),
    [
        ("a_bsp", plain(batch_size=4), "worker 0 would get 1 at step 0, as batches are computed in 4 parts"),
        ("specsync", plain(batch_size=7), "worker 0 would get 1 at step 0, as batches are computed in 4 parts"),
        ("a_bsp", plain(samples=101), "worker 0 would get 1 at step 3, as batches are computed in 4 parts"),
        ("bsp", plain(samples=97), "worker 0 would get 1 at step 3: choose another batch_size"),
    ],
)
def test_a_batch_norm_of_one_sample_is_refused(strategy: str, given: Task, why: str) -> None:
    with pytest.raises(PlanError, match=f"batch-norm needs 2 samples, and {why}"):
        run(given, strategy, 4, epochs=1)


@pytest.mark.parametrize(
    ("strategy", "given", "steps"),
    [
        ("a_bsp", plain(), 8),
        ("specsync", plain(), 8),
        ("a_bsp(chunks=2)", plain(batch_size=4), 8),
        ("bsp", plain(samples=97), 3),  # ends before the batch of one sample comes
        ("bsp", task(samples=97), 8),  # synchronized: there are others to take a mean with
    ],
)
def test_else_it_runs(strategy: str, given: Task, steps: int) -> None:
    assert run(given, strategy, 4, steps=steps).outcome.samples > 0


def test_a_sample_that_is_a_picture_is_many_values() -> None:
    pictures = (torch.randn(32, 3, 4, 4), torch.zeros(32, dtype=torch.long))
    model = lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))  # noqa: E731
    assert run(task(model=model, data=pictures, batch_size=4), "a_bsp", 2, steps=4).outcome.samples > 0

"""Many workers with small batches are one process with a large one, where a strategy says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from covey import catalog
from covey.task import Task
from tests.pages.compatibility import OPTIMIZERS
from tests.promises.specs import ALONE_AS, PULLED
from tests.worlds import CLUSTER, adam, alone, mlp, run, sgd, slowed

MOMENTUM = sgd(0.1, momentum=0.9, weight_decay=0.01)
ADAM = adam(0.01, weight_decay=0.01)

optimizers = pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
synchronous = pytest.mark.parametrize(
    ("strategy", "servers"), [("bsp", 1), ("bsp", 2), ("bsp", 3), ("allreduce", None)]
)  # fmt: skip


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], within: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=within, rtol=0)


STEPS = 18  # an epoch has 4: it ends in the middle of the fifth


def moved(task: Task, weights: dict[str, torch.Tensor]) -> bool:
    """Whether there was any training to be compared."""
    start = task_start(task)
    return all((weights[name] - start[name]).abs().max() > 0.01 for name in start)


@synchronous
@optimizers
def test_four_workers_with_8_are_one_with_32(
    strategy: str, servers: int | None, optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    task = mlp(optimizer, samples=128)
    reference = alone(task, steps=STEPS, batch_size=32)
    assert moved(task, reference)
    assert_same(run(task, strategy, 4, servers=servers, steps=STEPS).scored, reference, within=1e-10)


@synchronous
@optimizers
def test_also_when_the_last_batches_are_short(
    strategy: str, servers: int | None, optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    """101 samples: the fourth batches have 2, 1, 1 and 1, as the one large one has 5; a batch counts by its samples."""
    task = mlp(optimizer, samples=101)
    reference = alone(task, steps=STEPS, batch_size=32)
    assert_same(run(task, strategy, 4, servers=servers, steps=STEPS).scored, reference, within=1e-10)


@synchronous
def test_also_when_a_worker_has_a_batch_more(strategy: str, servers: int | None) -> None:
    """97 samples: only worker 0 has a fourth batch, of one sample."""
    task = mlp(MOMENTUM, samples=97)
    assert_same(
        run(task, strategy, 4, servers=servers, epochs=1).scored, alone(task, steps=4, batch_size=32), within=1e-9
    )


@synchronous
@pytest.mark.parametrize("samples", [128, 101])
def test_also_with_a_schedule_of_the_learning_rate(strategy: str, servers: int | None, samples: int) -> None:
    task = mlp(MOMENTUM, samples=samples, rate=lambda progress: (1 - progress) ** 2)
    reference = alone(task, steps=STEPS, batch_size=32)
    assert_same(run(task, strategy, 4, servers=servers, steps=STEPS).scored, reference, within=1e-10)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "strategy", ["bsp over servers(count=3)", "bsp over colocated", "allreduce", "sliced", "firecaffe"]
)
def test_also_with_groups_and_with_optimizers_that_look_at_whole_parameters(strategy: str, optimizer: str) -> None:
    """Rates and decays by group, LARS and LAMB on shards of whole parameters; all of it scheduled."""
    task = mlp(OPTIMIZERS[optimizer], samples=101, rate=lambda progress: (1 - progress) ** 2)
    reference = alone(task, steps=20, batch_size=32)
    assert_same(run(task, strategy, 4, steps=20).scored, reference, within=1e-9)
    assert any((tensor - task_start(task)[name]).abs().max() > 1e-3 for name, tensor in reference.items())


def task_start(task: Task) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return task.model().state_dict()


@pytest.mark.parametrize("samples", [128, 101, 97])
def test_replicas_of_allreduce_stay_identical_to_the_bit(samples: int) -> None:
    """Whatever the schedule does, and however unequal the batches are."""
    world = run(mlp(ADAM, samples=samples, rate=lambda progress: 1 - progress / 2), "allreduce", 4, steps=30)
    first, *others = world.workers()
    for other in others:
        assert torch.equal(first.flat.parts[0], other.flat.parts[0])
        assert first.progress.seen == other.progress.seen


@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_order_of_arrival_makes_no_difference(strategy: str) -> None:
    task = mlp(MOMENTUM)
    even = run(task, strategy, 4, steps=20, cluster=CLUSTER)
    uneven = run(task, strategy, 4, steps=20, cluster=slowed(w0=7, w2=3))
    assert_same(even.scored, uneven.scored, within=0.0)


def test_number_of_servers_makes_no_difference() -> None:
    task = mlp(ADAM)
    one, three = (run(task, "bsp", 4, servers=servers, steps=20).scored for servers in (1, 3))
    assert_same(one, three, within=0.0)


# -- one worker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [sgd(), MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in PULLED])
def test_one_worker_is_a_plain_loop(name: str, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    task = mlp(optimizer, samples=101, rate=lambda progress: 1 - progress / 2)
    scored = run(task, ALONE_AS.get(name, name), 1, steps=18).scored  # the second epoch begins with the 14th
    assert_same(scored, alone(task, steps=18, batch_size=8), within=1e-12)


def test_one_worker_of_easgd_is_none() -> None:
    """Not even one worker trains alone: the centre, which is scored, follows it and pulls it back."""
    task = mlp(sgd())
    scored = run(task, "easgd", 1, steps=30).scored
    plain = alone(task, steps=30, batch_size=8)
    assert max(float((scored[name] - plain[name]).abs().max()) for name in plain) > 1e-3


# -- neighbours that meet ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [sgd(), MOMENTUM], ids=["sgd", "momentum"])
def test_local_sgd_of_period_1_is_bsp(optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Momentum is linear in the gradients, so the mean of each worker's own is the momentum of the mean."""
    task = mlp(optimizer)
    assert_same(run(task, "local_sgd(period=1)", 4, steps=50).scored, run(task, "bsp", 4, steps=50).scored, within=1e-9)


def test_local_sgd_of_period_1_is_not_bsp_with_adam() -> None:
    """Each worker's Adam divides by its own gradients, before and not after averaging."""
    task = mlp(ADAM)
    local, central = (run(task, name, 4, steps=50).scored for name in ("local_sgd(period=1)", "bsp"))
    assert max(float((local[name] - central[name]).abs().max()) for name in local) > 1e-3


def test_dpsgd_over_complete_moves_the_mean_as_bsp_does() -> None:
    """On a quadratic the mean gradient is the gradient at the mean; on the complete graph one round mixes fully."""
    task = mlp(sgd())
    mixed, central = run(task, "dpsgd over complete", 4, steps=1).scored, run(task, "bsp", 4, steps=1).scored
    assert_same(mixed, central, within=1e-12)

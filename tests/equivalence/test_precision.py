"""Half precision: a task's gradients are those of a plain loop under autocast, whatever the strategy does with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import catalog
from covey.data.shards import Shards
from covey.errors import CoveyError, PlanError
from covey.message import Address
from covey.model import build
from covey.model.batches import GROWTH, LARGEST_SCALE, LossScale
from covey.model.randomness import seed_of, seed_torch
from covey.task import Task
from tests.promises.specs import SPECS, workable

torch.manual_seed(5)
X, Y = torch.randn(48, 6), torch.arange(48) % 3
SMALL = 2.0**-22  # of a loss whose gradients are below the smallest number of fp16


class Net(nn.Module):
    """With statistics of its batches, which a batch that is computed twice must not count twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x)
        return made


def task(precision: Any, factor: float = 1.0, rate: float = 0.5, **others: Any) -> Task:
    return Task(
        model=Net, data=(X, Y), batch_size=8, precision=precision,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate / factor, momentum=0.9),
        loss=lambda output, y: nn.functional.cross_entropy(output, y) * factor, **others,
    )  # fmt: skip


def trained(given: Task, strategy: str = "bsp", workers: int = 1, **others: Any) -> dict[str, Tensor]:
    return covey.fit(given, strategy, workers, engine="simulated", epochs=2, **others).weights


def by_hand(dtype: torch.dtype | None, scaler: Any = None, factor: float = 1.0) -> dict[str, Tensor]:
    """The plain loop, as PyTorch's own pages write it; chance and order are covey's."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 / factor, momentum=0.9)
    deal = Shards(48, 1, 8, 0)
    for step in range(12):
        chosen = deal.indices(0, step)
        seed_torch(seed_of(0, 0, step))
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(X[chosen]), Y[chosen]) * factor
        optimizer.zero_grad()
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return model.state_dict()


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def test_bf16_is_the_plain_loop_under_autocast() -> None:
    found = trained(task("bf16"))
    assert apart(found, by_hand(torch.bfloat16)) == 0
    assert 0 < apart(found, by_hand(None)) < 0.2, "it is not fp32, and learns the same"
    assert {value.dtype for value in found.values() if value.is_floating_point()} == {torch.float32}


def test_fp16_is_the_plain_loop_with_a_scaler() -> None:
    found = trained(task("fp16"))
    assert apart(found, by_hand(torch.float16, torch.amp.GradScaler("cpu"))) == 0
    assert apart(found, by_hand(torch.bfloat16)) > 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("factor", [1.0, 2.0**10], ids=["", "overflow"])
def test_processes_are_the_plain_loop_too(precision: str, factor: float) -> None:
    """A loss that overflows in the first batch is computed again, where a scaler would skip that step."""
    found = covey.fit(task(precision, factor), "allreduce", 1, epochs=2, threads=1, runs=False).weights
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**6) if precision == "fp16" else None
    alone = by_hand(torch.float16 if scale else torch.bfloat16, scale, factor)
    assert apart(found, alone) == 0


def test_gradients_that_are_too_small_for_fp16_count() -> None:
    without, exact = by_hand(torch.float16, factor=SMALL), by_hand(None, factor=SMALL)
    found = trained(task("fp16", SMALL))
    assert apart(found, exact) < 0.05 < apart(without, exact)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "local_sgd(period=2)", "easgd(period=2)", "asynchronous"])
def test_an_overflow_costs_no_step_and_changes_nothing(strategy: str) -> None:
    """Gradients of 2^16 times this loss are infinite, those of the loss itself are not."""
    results = [
        covey.fit(task("fp16", factor), strategy, 2, engine="simulated", epochs=2) for factor in (1.0, 2.0**10)
    ]
    assert results[0].samples == results[1].samples == 96
    assert results[0].updates == results[1].updates
    # A power of two in the loss, undone by the rate, changes no bit but of numbers that nearly vanish.
    assert apart(results[0].weights, results[1].weights) < 2e-3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_loss_that_is_lost_ends_as_in_fp32(precision: str) -> None:
    poisoned = replace(task(precision), loss=lambda output, y: output.sum() * float("nan"))
    with pytest.raises(CoveyError, match="worker 0 .* step 0 with NaN or infinite numbers"):
        trained(poisoned)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_of_parts_of_a_batch_add_up(precision: str) -> None:
    plain = replace(task(precision), model=lambda: nn.Linear(6, 3))
    parts = replace(plain, batch_size=2, accumulate=4)
    assert apart(trained(plain), trained(parts)) < 2e-2


class Bag(nn.Module):
    """Its gradients are sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(3, 3, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.bag(x.abs().argmax(1, keepdim=True) % 3)
        return made


def test_sparse_gradients_are_scaled_too() -> None:
    bags = [replace(task("fp16"), model=lambda sparse=sparse: Bag(sparse)) for sparse in (True, False)]
    assert apart(trained(bags[0]), trained(bags[1])) == 0


def test_many_workers_are_one_with_a_larger_batch() -> None:
    plain = replace(task("bf16"), model=lambda: nn.Linear(6, 3))
    assert apart(trained(plain, "allreduce", 2), trained(replace(plain, batch_size=16))) < 2e-2


def test_a_resumed_run_has_the_scale_that_it_had(tmp_path: Any) -> None:
    given = task("fp16", 2.0**10)
    whole_run = covey.fit(given, "allreduce", 2, engine="simulated", steps=12).seconds
    kept, virtual = str(tmp_path / "kept"), {"engine": "simulated", "steps": 12}
    whole = covey.fit(given, "allreduce", 2, checkpoint=kept, every=f"{whole_run * 400:.3f}ms", **virtual)
    resumed = covey.fit(given, "allreduce", 2, resume=kept, **virtual)
    assert apart(resumed.weights, whole.weights) == 0
    state = (tmp_path / "kept").rglob("worker-0.json")
    assert any('"loss_scale"' in path.read_text() for path in state)


def test_the_scale_is_part_of_a_replica() -> None:
    def made() -> Any:
        return build.replica(task("fp16"), Address("worker", 0), True, Shards(48, 1, 8, 0), 96)

    first, second = made(), made()
    first.batch_source.scale.scale, first.batch_source.scale.since = 2.0**9, 1999
    second.restore(first.state())
    assert (second.batch_source.scale.scale, second.batch_source.scale.since) == (2.0**9, 1999)
    second.differentiate(0)
    assert (second.batch_source.scale.scale, second.batch_source.scale.since) == (2.0**10, 0), "2000 steps went well"


@pytest.mark.parametrize(
    ("before", "grad", "loss", "after"),
    [
        ((8.0, GROWTH - 1), 1.0, 1.0, (16.0, 0)),
        ((8.0, GROWTH - 2), 1.0, 1.0, (8.0, GROWTH - 1)),
        ((8.0, GROWTH - 1), torch.inf, 1.0, (4.0, 0)),
        ((LARGEST_SCALE, GROWTH - 1), 1.0, 1.0, (LARGEST_SCALE, 0)),
        ((1.0, 7), torch.inf, 1.0, (1.0, 7)),
        ((8.0, 7), torch.nan, torch.nan, (8.0, 7)),
    ],
    ids=["doubles", "not yet", "overflow", "largest", "smallest", "lost"],
)
def test_one_step_of_the_scale(
    before: tuple[float, int], grad: float, loss: float, after: tuple[float, int]
) -> None:  # fmt: skip
    """It doubles after so many steps in a row without an overflow, and halves at each; then they are counted anew."""
    scale, weight = LossScale(), nn.Parameter(torch.zeros(2))
    scale.restore({"scale": before[0], "since": before[1]})
    weight.grad = torch.tensor([grad, 1.0])
    settled = scale.settle(torch.tensor(loss), [weight])
    assert (scale.scale, scale.since) == after
    assert settled == (after[0] >= before[0])
    assert float(weight.grad[1]) == (1 / before[0] if settled else 1.0), "gradients of a batch that counts are divided"


def test_the_result_says_the_precision() -> None:
    assert covey.fit(task("bf16"), "bsp", 1, engine="simulated", epochs=1).settings["precision"] == "bf16"


@pytest.mark.parametrize(
    ("strategy", "precision", "words"),
    [
        ("allreduce(bucket=1KB)", "fp16", "may repeat a batch.* use bucket=0"),
        ("gradient_coding(stragglers=1)", "fp16", "use precision='bf16' here"),
        ("bsp with mesh(stage=2)", "bf16", "a model that is cut"),
    ],
)
def test_what_cannot_work_is_refused(strategy: str, precision: str, words: str) -> None:
    with pytest.raises(CoveyError, match=words):
        trained(replace(task(precision), model=lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))), strategy, 2)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(PlanError, match="precision must be 'fp32' or 'bf16' or 'fp16', not str 'half'"):
        task("half")


EARLY = {"p3", "tictac", "bytescheduler", "staggered", "poseidon"}  # gradients leave during backward
CHOSEN = {"gradient_coding", "halp", "a_bsp", "specsync", "sandblaster"}  # several workers may compute one gradient
REFUSED = {"bf16": {"one_weird_trick"}, "fp16": {"one_weird_trick", *EARLY, *CHOSEN}}

# -- under every strategy ---------------------------------------------------------------------------------------------


def plain(dtype: torch.dtype | None = None, precision: Any = "fp32") -> Task:
    """Without chance or statistics; with a dtype its own `step` asks for autocast, and covey knows nothing of it."""

    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

    how: dict[str, Any] = {"step": step} if dtype else {"loss": nn.functional.cross_entropy}
    return Task(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), data=(X, Y), batch_size=4,
        precision=precision, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), **how,
    )  # fmt: skip


@pytest.mark.parametrize("name", catalog.for_any_model())
@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
def test_every_strategy_takes_the_gradients_of_autocast_or_refuses(name: str, precision: str) -> None:
    """The weights are those of a task that asks for autocast itself: gradients reach every strategy unscaled."""
    spec, workers = SPECS.get(name, name), workable(name, 2)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    if name in REFUSED[precision]:
        with pytest.raises(PlanError, match="precision="):
            trained(plain(precision=precision), spec, workers)
        return
    found = trained(plain(precision=precision), spec, workers)
    assert apart(found, trained(plain(dtype), spec, workers)) < (1e-6 if precision == "fp16" else 1e-7)
    assert apart(found, trained(plain(), spec, workers)) > 1e-6, "it was computed in fp32"

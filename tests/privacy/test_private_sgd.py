"""DP-SGD: which samples are drawn, what of each counts, how much noise there is, and what is spent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import covey
from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.model.private.private_batches import PrivateBatches
from covey.model.private.sample_gradients import SampleGradients
from covey.privacy.accountant import epsilon
from covey.task import PrivateSgd, Task

SAMPLES = 240


def data() -> TensorDataset:
    chance = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 5, dtype=torch.float64, generator=chance)
    return TensorDataset(x, (x @ torch.arange(5.0, dtype=torch.float64) > 0).long())


def task(private: PrivateSgd | None = None, **more: Any) -> Task:
    given: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double(), "data": data(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.5), "loss": nn.functional.cross_entropy,
        "batch_size": 24, "private": private, **more,
    }  # fmt: skip
    return Task(**given)


def by_hand(plain: Task, module: nn.Module, numbers: Tensor, clip: float) -> list[Tensor]:
    sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for number in numbers:
        batch = tuple(column[int(number)][None] for column in plain.data.tensors)  # type: ignore[union-attr]
        grads = torch.autograd.grad(plain.forward(module, batch), list(module.parameters()))
        norm = math.sqrt(sum(float(one.square().sum()) for one in grads))
        for total, one in zip(sums, grads, strict=True):
            total += one * min(1.0, clip / norm)
    return sums


def stubborn(model: nn.Module, batch: Any) -> Tensor:
    """A loss that torch.func cannot compute for many samples at once."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss * (2.0 if loss.item() > 1e9 else 1.0)


@pytest.mark.parametrize("step", [None, stubborn])
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_each_sample_counts_with_its_own_clipped_gradient(step: Any, clip: float) -> None:
    plain = task(step=step, loss=None) if step else task()
    torch.manual_seed(1)
    module, numbers = plain.model(), torch.arange(0, SAMPLES, 2)
    feed = Feed(plain.data, Shards(SAMPLES, 1, 24), 0)  # type: ignore[arg-type]
    gradients = SampleGradients(module, plain.forward, clip)
    found = gradients.total(numbers, feed.take)
    for one, other in zip(found, by_hand(plain, module, numbers, clip), strict=True):
        assert torch.allclose(one, other, rtol=2e-6, atol=1e-12)
    assert gradients.together == (step is None)
    if clip < 1:  # no sample moves the sum by more than the clip norm
        one = gradients.total(numbers[:1], feed.take)
        assert math.sqrt(sum(float(part.square().sum()) for part in one)) <= clip


def batches(private: PrivateSgd, workers: int = 1, rank: int = 0, **more: Any) -> PrivateBatches:
    made = task(private, **more)
    torch.manual_seed(1)
    return PrivateBatches(made, made.model(), Feed(made.data, Shards(SAMPLES, workers, made.batch_size), rank))  # type: ignore[arg-type]


def test_samples_are_drawn_by_chance_from_those_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    monkeypatch.setattr(SampleGradients, "total", lambda self, numbers, take: drawn.append(numbers) or self.parameters)
    source = batches(PrivateSgd(noise=1.0, seed=4), workers=2, rank=1)
    for step in range(300):
        source(step)
    sizes = torch.tensor([float(len(one)) for one in drawn])
    assert source.chance == 24 / 120
    assert 23 < float(sizes.mean()) < 25
    assert float(sizes.std()) == pytest.approx(math.sqrt(120 * 0.2 * 0.8), rel=0.15), "as of independent draws"
    seen = torch.cat(drawn)
    assert set(seen.tolist()) == set(Shards(SAMPLES, 2, 24).shard(0, 1).tolist()), "the same samples in all epochs"
    assert int(seen.bincount(minlength=SAMPLES).max()) < 2 * 60, "each in about every fifth batch"


def test_the_noise_covers_the_sum_and_does_not_depend_on_how_many_were_drawn() -> None:
    """Its deviation is z C / (q n); with a chance near 0 nobody is drawn at all."""
    wide: dict[str, Any] = {
        "model": lambda: nn.Linear(5, 4000, bias=False).double(), "step": lambda model, batch: 0 * model.weight.sum(),
        "loss": None,
    }  # fmt: skip
    for size in (1, 200):
        source = batches(PrivateSgd(noise=1.5, clip=0.4, seed=9), batch_size=size, **wide)
        source(0)
        (parameter,) = source.gradients.parameters
        assert parameter.grad is not None
        assert float(parameter.grad.std()) == pytest.approx(1.5 * 0.4 / size, rel=0.03)
    other = batches(PrivateSgd(noise=1.5, clip=0.4), batch_size=200, **wide)
    first, second = (_grad(other, 0).clone() for _ in range(2))
    assert not torch.equal(first, second), "without a seed no noise comes again"


def _grad(source: PrivateBatches, step: int) -> Tensor:
    source(step)
    found = source.gradients.parameters[0].grad
    assert found is not None
    return found


@pytest.mark.parametrize(("strategy", "workers"), [("bsp", 2), ("allreduce(bucket=0)", 3), ("asynchronous", 2)])
def test_the_result_tells_what_was_spent(strategy: str, workers: int) -> None:
    found = covey.fit(
        task(PrivateSgd(noise=1.2, delta=1e-4)), strategy, workers=workers, engine="simulated", steps=9, runs=False
    )
    told = found.privacy
    assert told and (told.rounds, told.rate, told.noise) == (9, 24 * workers / SAMPLES, 1.2)
    assert told.epsilon == epsilon(1.2, 24 * workers / SAMPLES, 9, 1e-4)
    assert "seed" in told.randomness and all(math.isnan(row.get("loss") or math.nan) for row in found.history)


# epsilon of opacus 1.6.0: of its PRVAccountant (with the usual precision of 0.01), and the bound of its RDPAccountant
OPACUS = [
    ((1.1, 256 / 60000, 3516, 1e-5), 1.1439580448, 1.2813000161),
    ((1.0, 0.01, 1000, 1e-5), 1.8383716378, 2.1013652716),
    ((0.8, 0.02, 500, 1e-6), 5.4506371148, 6.1645472788),
    ((2.0, 0.1, 300, 1e-5), 4.1935461069, 4.5642841402),
    ((1.5, 0.2, 72, 1e-4), 5.4545522498, 6.1011081177),
    ((0.6, 0.004, 2000, 1e-5), 4.4661054573, 5.4082396256),
    ((4.0, 1.0, 50, 1e-5), 8.6062725871, 9.2349589917),
    ((1.3, 0.05, 1000, 1e-6), 7.7347227596, 8.3138996871),
]


@pytest.mark.parametrize(("spent", "numerical", "bound"), OPACUS)
def test_what_is_spent_is_what_opacus_says(spent: tuple[Any, ...], numerical: float, bound: float) -> None:
    assert epsilon(*spent) == pytest.approx(numerical, rel=0.01)
    assert epsilon(*spent) < bound


def test_a_run_that_ends_early_is_counted_for_at_most_what_was_done() -> None:
    """A worker may have done more steps than another: all that were done count."""
    scores = iter([0.0, 0.0, 1.0])
    given = task(PrivateSgd(noise=1.2), evaluate=lambda model: {"accuracy": next(scores)})
    found = covey.fit(
        given, "bsp", workers=2, engine="simulated", steps=200, until="accuracy>=0.5", score_every="3 steps", runs=False
    )
    told = found.privacy
    assert found.stopped == "target" and told and told.rounds and found.samples / 24 <= told.rounds < 200


def test_the_same_seed_gives_the_same_run_in_virtual_time_only() -> None:
    private = task(PrivateSgd(noise=1.0))
    one, two, other = (
        covey.fit(private, "bsp", workers=2, engine="simulated", steps=4, seed=seed, runs=False) for seed in (0, 0, 1)
    )
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    assert not all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.mark.full
def test_on_real_processes_noise_comes_from_the_operating_system() -> None:
    one, two = (covey.fit("tests/privacy/private_task.py", "bsp", workers=2, steps=3, runs=False) for _ in range(2))
    assert one.privacy and one.privacy.randomness == "operating system" and one.privacy.rounds == 3
    assert not all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


@pytest.mark.parametrize(
    ("given", "asked", "told"),
    [
        ({"model": lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2)).double()}, {}, "float buffers.*GroupNorm"),
        ({"drop_last": True}, {}, "does not go with drop_last"),
        ({}, {"strategy": "allreduce(bucket=1)"}, "none may leave early"),
        ({}, {"strategy": "bsp with mesh(replica=1, shard=2)"}, "no role has a sample.s whole gradient"),
    ],
)
def test_what_would_let_samples_through_is_refused(given: dict[str, Any], asked: dict[str, Any], told: str) -> None:
    asked = {"strategy": "bsp", "workers": 2, "engine": "simulated", "steps": 2, "runs": False, **asked}
    with pytest.raises(PlanError, match=told):
        covey.fit(task(PrivateSgd(noise=1.0), **given), **asked)


@pytest.mark.parametrize("name", ["compile", "precision", "loaders"])
def test_settings_that_do_not_go_with_single_samples_are_refused(name: str) -> None:
    value = {"compile": True, "precision": "fp16", "loaders": 2}[name]
    with pytest.raises(PlanError, match=f"does not go with {name}"):
        batches(PrivateSgd(noise=1.0), **{name: value})


def test_settings_and_federated_runs_are_refused() -> None:
    for wrong in ({"noise": 0.0}, {"noise": 1.0, "clip": -1.0}, {"noise": 1.0, "delta": 2.0}):
        with pytest.raises(PlanError, match="PrivateSgd"):
            PrivateSgd(**wrong)
    with pytest.raises(PlanError, match="Task: private must be a PrivateSgd"):
        task("yes")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"hide who took part with '\+ dp'"):
        covey.federate(task(PrivateSgd(noise=1.0)), "fedavg", 4, per_round=2, rounds=1, runs=False)


def test_noise_and_clip_are_what_makes_it_differ_from_plain_training() -> None:
    """With a wide clip, hardly any noise and every sample drawn, it is gradient descent on all samples."""
    private = task(PrivateSgd(noise=1e-9, clip=100.0), batch_size=SAMPLES)
    found, plain = (
        covey.fit(one, "bsp", workers=1, engine="simulated", steps=5, runs=False)
        for one in (private, replace(private, private=None))
    )
    for name, value in plain.weights.items():
        assert torch.allclose(found.weights[name], value, atol=1e-6), name

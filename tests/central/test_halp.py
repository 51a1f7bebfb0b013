"""HALP: offsets of few bits on a scale that shrinks with the gradient, so that precision does not end at the scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from covey.catalog import resolve
from covey.central.replicated import halp
from covey.errors import PlanError
from covey.task import Task
from tests.worlds import Point, mlp, run, slowed, worker

SAMPLES, SIZE = 64, 6


def regression(lr: float = 0.2) -> tuple[Task, Tensor]:
    """Least squares with noise, so that gradients of batches differ at the optimum too; and where that is."""
    chance = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, SIZE, dtype=torch.float64, generator=chance)
    y = x @ torch.randn(SIZE, dtype=torch.float64, generator=chance)
    y += 0.3 * torch.randn(SAMPLES, dtype=torch.float64, generator=chance)
    best = torch.linalg.lstsq(x, y.unsqueeze(1)).solution.squeeze(1)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (batch[0] @ model.get_parameter("w") - batch[1]).square().mean()

    task = Task(
        model=lambda: Point(SIZE, torch.float64), data=(x, y), step=loss, batch_size=8,
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=lr),
    )  # fmt: skip
    return task, best


def excess(task: Task, weights: Tensor, best: Tensor) -> float:
    """How much larger the loss of all samples is than at the optimum; in a form that does not round it away."""
    assert isinstance(task.data, tuple)
    return float(0.5 * (task.data[0] @ (weights - best)).square().mean())


def test_8_bits_reach_the_optimum_to_1e_10_where_a_fixed_scale_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of the first centre, kept, is plain SVRG in low precision: it stalls at its rounding."""
    task, best = regression()
    scales: list[float] = []
    usual = halp.offset_scale

    def noted(norm: float, bits: int, mu: float) -> float:
        scales.append(usual(norm, bits, mu))
        return scales[-1]

    monkeypatch.setattr(halp, "offset_scale", noted)
    ours = run(task, "halp(bits=8, mu=0.4, period=20)", 2, steps=400).scored["w"]
    assert excess(task, ours, best) < 1e-20 and float((ours - best).norm()) < 1e-10
    assert len(scales) == 20 * 2 and scales[-1] < 1e-9 * scales[0], "each worker chose one at each centre"
    monkeypatch.setattr(halp, "offset_scale", lambda norm, bits, mu: scales[0])
    fixed = run(task, "halp(bits=8, mu=0.4, period=20)", 2, steps=400).scored["w"]
    assert float((fixed - best).norm()) > 1e-4


def test_plain_sgd_in_8_bits_stalls() -> None:
    """The same steps without a centre: weights in 8 bits of a fixed scale, rounded in the same way."""
    task, best = regression()
    assert isinstance(task.data, tuple)
    x, y = task.data
    weights, chance = torch.ones(SIZE, dtype=torch.float64), torch.Generator().manual_seed(0)
    for step in range(3200):
        some = [(step * 16 + k) % SAMPLES for k in range(16)]
        weights = weights - 0.2 * x[some].T @ (x[some] @ weights - y[some]) / 16
        weights = halp.in_bits(weights, 4 / 127, 8, torch.rand(SIZE, generator=chance, dtype=torch.float64))
    assert float((weights - best).norm()) > 1e-3


def test_the_offset_is_a_whole_multiple_of_the_scale_that_fits_into_the_bits() -> None:
    task, _ = regression()
    world = run(task, "halp(bits=4, mu=2, period=5)", 2, steps=8)
    for replica in world.workers():
        assert torch.equal(replica.flat.parts[0], world.workers()[0].flat.parts[0]), "all round alike"
    offsets = halp.in_bits(torch.linspace(-9, 9, 500, dtype=torch.float64), 0.5, 4, torch.rand(500).double())
    codes = offsets / 0.5
    assert torch.equal(codes, codes.round()) and (codes.min(), codes.max()) == (-8, 7)


def test_rounding_is_right_on_average() -> None:
    offset = torch.full((40_000,), 0.3, dtype=torch.float64)
    found = halp.in_bits(offset, 1.0, 8, torch.rand(40_000, generator=torch.Generator().manual_seed(1)).double())
    assert abs(float(found.mean()) - 0.3) < 0.01 and {*found.tolist()} == {0.0, 1.0}


def test_each_step_is_rounded_by_draws_of_its_own_which_all_workers_share(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, usual = list[tuple[float, ...]](), halp.in_bits

    def noted(offset: Tensor, scale: float, bits: int, draws: Tensor) -> Tensor:
        drawn.append(tuple(draws.tolist()))
        return usual(offset, scale, bits, draws)

    monkeypatch.setattr(halp, "in_bits", noted)
    run(regression()[0], "halp(period=2)", 2, steps=4)
    assert len(drawn) == 4 * 2 and len({*drawn}) == 4


def test_the_first_step_is_one_on_the_full_gradient() -> None:
    """At the centre both gradients of a batch are equal: what is left is the gradient of all samples."""
    task, _ = regression()
    assert isinstance(task.data, tuple)
    x, y = task.data
    start = torch.ones(SIZE, dtype=torch.float64)
    exact = start - 0.2 * x.T @ (x @ start - y) / SAMPLES
    found = run(task, "halp(bits=24)", 3, steps=1, cluster=slowed(w1=3)).scored["w"]
    scale = halp.offset_scale(float((x.T @ (x @ start - y) / SAMPLES).norm()), 24, 1.0)
    assert float((found - exact).abs().max()) <= scale


def test_a_full_gradient_counts_each_sample_once_where_shares_are_uneven() -> None:
    """61 samples on three workers: shares and last batches differ."""
    task, _ = regression()
    assert isinstance(task.data, tuple)
    x, y = task.data[0][:61], task.data[1][:61]
    smaller = Task(
        model=task.model, data=(x, y), step=task.step, batch_size=8, optimizer=task.optimizer
    )  # fmt: skip
    best = torch.linalg.lstsq(x, y.unsqueeze(1)).solution.squeeze(1)
    found = run(smaller, "halp(bits=8, mu=0.4, period=20)", 3, steps=400).scored["w"]
    assert float((found - best).norm()) < 1e-10


def test_many_bits_train_a_network_as_svrg_does() -> None:
    ours = run(mlp(), "halp(bits=24, period=4)", 2, steps=12)
    finer = run(mlp(), "halp(bits=23, period=4)", 2, steps=12)
    for name in ours.scored:
        assert torch.allclose(ours.scored[name], finer.scored[name], atol=1e-5)


def test_a_gradient_of_nothing_leaves_the_model_at_the_centre() -> None:
    assert float(halp.in_bits(torch.ones(3, dtype=torch.float64), 0.0, 8, torch.rand(3).double()).abs().max()) == 0


def test_what_computing_costs() -> None:
    """Two gradients a step, and a pass over the worker's samples whenever the centre moves."""
    task, _ = regression()
    world = run(task, "halp(period=3)", 2, steps=6)
    mine = [one for one in world.log.computes if one[2] == worker(0)]
    assert len(mine) == 2 * 6 + 2 * (SAMPLES // 2 // 8)
    assert world.outcome.samples == 2 * 6 * 8


@pytest.mark.parametrize(("spec", "said"), [
    ("halp(bits=1)", "2 to 24 bits"), ("halp(mu=0)", "more than 0"), ("halp(period=0)", "at least 1 step"),
])  # fmt: skip
def test_settings_that_cannot_be(spec: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        resolve(spec, 2)

"""STRADS: which variables are scheduled, and that what moves them is coordinate descent."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import covey
from covey import catalog
from covey.central.coordinates.schedule import candidates, correlations, minimum, uncoupled
from covey.central.coordinates.strads import FeatureProducts, PartialUpdate, ScheduledRound
from covey.check import laws
from covey.errors import PlanError
from covey.simulate import Cluster, Seconds
from covey.strategy import CountedRun
from covey.task import Task
from tests.promises.digits import formula
from tests.worlds import World, mlp, run, sgd, slowed


def inputs(samples: int, features: int, mixed: float = 0.0) -> Tensor:
    """Random features; each odd one is `mixed` with the one before it."""
    x = torch.randn(samples, features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[:, 1::2] = mixed * x[:, ::2][:, : x[:, 1::2].shape[1]] + (1 - mixed**2) ** 0.5 * x[:, 1::2]
    return x


def regression(x: Tensor, logistic: bool = False, bias: bool = False, **more: Any) -> Task:
    """Weights 1, -2, 3, … and, by default, batches that are a worker's whole share."""
    weights = torch.tensor([(-1.0) ** j * (j + 1) for j in range(x.shape[1])], dtype=torch.float64)
    y = (x @ weights).unsqueeze(1)
    noise = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(x.shape[1], 1, bias=bias).double(),
        "data": (x, (y / 4 + noise > 0).double() if logistic else y + noise), "optimizer": sgd(),
        "loss": functional.binary_cross_entropy_with_logits if logistic else functional.mse_loss, "batch_size": len(x),
    }  # fmt: skip
    return Task(**(given | more))


def sets(world: World) -> list[list[int]]:
    """The variables of each round."""
    told = {sent.message.step: sent.message for sent in world.log.kinds(ScheduledRound)}
    return [told[step].variables.parts[0].tolist() for step in sorted(told)]


def descended(task: Task, order: list[int], l1: float = 0.0) -> Tensor:
    """Coordinate descent by hand, one variable after the other, on all samples."""
    assert isinstance(task.data, tuple)
    x, y = task.data
    torch.manual_seed(0)
    w = covey.model.build.model(task, 0).weight.detach()[0].clone()
    for j in order:
        slope, bend = 2 * (x[:, j] @ (x @ w - y[:, 0])) / len(x), 2 * x[:, j].square().mean()
        aim = bend * w[j] - slope
        w[j] = aim.sign() * max(float(aim.abs()) - l1, 0.0) / bend
    return w


# -- the schedule -----------------------------------------------------------------------------------------------------


def test_correlated_features_never_move_together() -> None:
    """Ten pairs, each with a correlation of 0.95: at rho=0.5 never both, at rho=1 both sooner or later."""
    task = regression(inputs(400, 20, mixed=0.95))
    pairs = [{j, j + 1} for j in range(0, 20, 2)]
    apart, together = (sets(run(task, f"strads(rho={rho}, candidates=20)", 2, steps=60)) for rho in (0.5, 1))
    assert all(not any(pair <= set(chosen) for pair in pairs) for chosen in apart)
    assert any(any(pair <= set(chosen) for pair in pairs) for chosen in together)
    assert max(map(len, apart)) == 8, "the others move together"
    strict = sets(run(task, "strads(rho=0.1, candidates=20)", 2, steps=60))
    known = torch.corrcoef(task.data[0].T) if isinstance(task.data, tuple) else torch.zeros(0)
    for chosen in strict:
        apart_by = known[chosen][:, chosen] - torch.eye(len(chosen))
        assert float(apart_by.abs().max()) <= 0.12, "these features are almost centred"


def test_what_moved_far_is_drawn_more_often() -> None:
    """Chances of a single draw are in proportion to |last move| + eps."""
    rng, moves = Random(1), [0.0, 0.1, -0.2, 0.4, -0.8]
    drawn = Counter(candidates(moves, 1, 0.1, rng)[0] for _ in range(8000))
    for variable, move in enumerate(moves):
        assert drawn[variable] / 8000 == pytest.approx((abs(move) + 0.1) / 2.0, abs=0.02)
    several = candidates([1.0] * 9, 9, 1e-3, rng)
    assert sorted(several) == list(range(9)), "without replacement"


def test_in_a_run_the_variables_that_still_move_are_scheduled_more_often() -> None:
    """Eight variables begin where they belong and do not move; eight have far to go, by several rounds each."""
    x = inputs(200, 16, mixed=0.9)
    still = x.clone()
    still[:, ::4] = still[:, 1::4] = 0  # without curvature they never move
    world = run(regression(still), "strads(most=4, candidates=4, rho=1)", 2, steps=40)
    counts = Counter(variable for chosen in sets(world) for variable in chosen)
    moving = sum(counts[j] for j in range(16) if j % 4 > 1)
    assert moving > 3 * sum(counts[j] for j in range(16) if j % 4 <= 1)


def test_a_greedy_set_keeps_the_order_of_the_candidates() -> None:
    known = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, -0.3], [0.0, -0.3, 1.0]])
    assert uncoupled([0, 1, 2], known, 0.1, 8) == [0, 2] and uncoupled([1, 0, 2], known, 0.1, 8) == [1]
    assert uncoupled([1, 2, 0], known, 0.31, 8) == [1, 2] and uncoupled([0, 2], known, 0.1, 1) == [0]


def test_correlations_are_those_of_standardized_features() -> None:
    x = inputs(300, 5, mixed=0.5)
    x = (x - x.mean(0)) / x.std(0)
    assert torch.allclose(correlations(x.T @ x), torch.corrcoef(x.T), atol=1e-12)
    x[:, 2] = 0
    assert correlations(x.T @ x)[2].abs().max() == 0


# -- the updates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_one_variable_a_round_is_sequential_coordinate_descent(workers: int) -> None:
    task = regression(inputs(90, 6, mixed=0.8))
    world = run(task, "strads(most=1, candidates=6)", workers, steps=20)
    order = [variable for chosen in sets(world) for variable in chosen]
    assert len(order) == 20
    torch.testing.assert_close(world.scored["weight"][0], descended(task, order), atol=1e-12, rtol=0)


def test_orthogonal_features_may_all_move_at_once() -> None:
    """Any number a round is then the same as one after the other, and one round each is the solution."""
    x = torch.linalg.qr(inputs(64, 6))[0]
    world = run(regression(x), "strads(rho=0.000001, most=6, candidates=6)", 2, steps=1)
    assert [sorted(chosen) for chosen in sets(world)] == [list(range(6))]
    torch.testing.assert_close(world.scored["weight"][0], descended(regression(x), list(range(6))), atol=1e-9, rtol=0)


def test_strongly_coupled_variables_diverge_together_and_converge_apart() -> None:
    """Why rho is there: 8 features that are nearly the same, moved at once, go past the minimum eight-fold."""
    x = inputs(200, 8) * 0.3 + inputs(200, 8)[:, :1]
    task = regression(x)
    assert isinstance(task.data, tuple)
    y = task.data[1]
    best, apart, together = (
        float(functional.mse_loss(x @ weights, y))
        for weights in (
            torch.linalg.lstsq(x, y).solution,
            run(task, "strads(rho=0.1, candidates=8)", 2, steps=200).scored["weight"].T,
            run(task, "strads(rho=1, candidates=8)", 2, steps=20).scored["weight"].T,
        )
    )
    assert apart < 5 * best and together > 1e6 * best


def test_l1_gives_the_lasso() -> None:
    """At the minimum the slope of the loss is -l1 sign(w) where w is not 0, and at most l1 where it is; no bias."""
    x, l1 = inputs(200, 10, mixed=0.4), 6.0
    task = regression(x, bias=True)
    found = run(task, f"strads(l1={l1:g}, rho=0.3)", 2, steps=250).scored
    w, b = found["weight"][0], found["bias"]
    assert isinstance(task.data, tuple)
    slopes = 2 * x.T @ (x @ w + b - task.data[1][:, 0]) / len(x)
    zero = w == 0
    assert 0 < int(zero.sum()) < 10
    assert float(slopes[zero].abs().max()) <= l1 + 1e-6
    torch.testing.assert_close(slopes[~zero], -l1 * w[~zero].sign(), atol=1e-5, rtol=0)
    assert abs(float((x @ w + b - task.data[1][:, 0]).mean())) < 1e-6


def test_logistic_regression_comes_to_its_minimum() -> None:
    task = regression(inputs(200, 5), logistic=True)
    found = run(task, "strads(rho=0.2, candidates=5, most=5)", 2, steps=100).scored["weight"][0]
    assert isinstance(task.data, tuple)
    x, y = task.data
    slopes = x.T @ ((x @ found).sigmoid() - y[:, 0]) / len(x)
    assert float(slopes.abs().max()) < 1e-4


def test_a_variable_without_curvature_stays() -> None:
    one = torch.ones(2, dtype=torch.float64)
    assert minimum(one, one, torch.tensor([0.0, 4.0]).double(), 0 * one).tolist() == [1.0, 0.75]


# -- what it promises as every strategy does ---------------------------------------------------------------------------


def test_batches_are_weighted_by_their_samples() -> None:
    """Of 50 samples three workers have 17, 17 and 16: the result is that of one worker with all of them."""
    task = regression(inputs(50, 6))
    one, three = (run(task, "strads", n, steps=10, cluster=slowed(w0=2)).scored["weight"] for n in (1, 3))
    torch.testing.assert_close(one, three, atol=1e-10, rtol=0)


def test_samples_losses_and_ends() -> None:
    world = run(regression(inputs(50, 6), batch_size=4), "strads", 3, epochs=2)
    assert world.outcome.samples == 100
    assert len(world.log.values("update")) == 10 and len(world.log.ends) == 4
    again = run(regression(inputs(50, 6), batch_size=4), "strads", 3, epochs=2)
    assert world.trace == again.trace


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_payload_is_what_the_formula_says(workers: int) -> None:
    log, task = laws.SentMessages(), regression(inputs(50, 6))
    world = run(task, "strads(most=2)", workers, steps=9, watch=[log], cluster=Cluster(compute=Seconds(0.01)))
    plain = CountedRun(workers=workers, steps=9, numbers=6, width=8)
    links = formula("strads").links(log.counted(formula("strads"), plain))
    assert sum(links.values()) == sum(sent.size for sent in world.log.sends)
    assert {sent.size for sent in world.log.kinds(FeatureProducts)} == {8 * 36}
    sizes = [len(chosen) for chosen in sets(world)]
    up = [sent.size for sent in world.log.kinds(PartialUpdate)]
    assert sum(up) == workers * sum(sizes) * 16, "a slope and a curvature"


def test_a_restart_goes_on_as_if_nothing_had_happened(tmp_path: Any) -> None:
    task = regression(inputs(60, 6, mixed=0.7), batch_size=5)
    run = {"engine": "simulated", "steps": 12, "cluster": Cluster(compute=Seconds(0.01))}
    whole = covey.fit(task, "strads(most=2)", 2, **run)  # type: ignore[arg-type]
    broken = covey.fit(
        task, "strads(most=2)", 2, **run, checkpoint=str(tmp_path), every="20ms", on_failure="restart",  # type: ignore[arg-type]
        faults="kill worker 1@105ms",
    )  # fmt: skip
    assert torch.equal(whole.weights["weight"], broken.weights["weight"])


def test_processes_give_what_virtual_time_gives() -> None:
    local, virtual = (
        covey.fit("examples/lasso.py", "strads(l1=0.01)", 2, engine=engine, steps=6).weights["weight"]
        for engine in ("local", "simulated")
    )
    assert torch.equal(local, virtual)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("strads(rho=0)", r"rho=0 must lie in \(0, 1\]"), ("strads(rho=1.5)", "must lie in"),
        ("strads(most=0)", "1 or more"), ("strads(candidates=4)", "candidates=4 at least most=8"),
        ("strads(eps=0)", "eps must be more than 0"), ("strads(l1=-1)", "l1 0 or more"),
        ("strads + topk", "nothing to compress"), ("strads with mesh(stage=2)", "is not cut"),
        ("strads over ring", "has its own topology"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(spec: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        catalog.resolve(spec, 2)


def test_a_step_in_two_batches_is_a_step() -> None:
    """Each half's slopes are of half the loss."""
    x = inputs(48, 6)
    whole, halves = (run(regression(x, **more), "strads", 2, steps=6).scored["weight"] for more in (
        {"batch_size": 12}, {"batch_size": 6, "accumulate": 2},
    ))  # fmt: skip
    torch.testing.assert_close(whole, halves, atol=1e-12, rtol=0)


@pytest.mark.parametrize("logistic", [False, True])
def test_losses_are_told_apart_in_bf16(logistic: bool) -> None:
    x = inputs(48, 6)
    known = regression(x, logistic)
    assert isinstance(known.data, tuple)
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(6, 1), "precision": "bf16", "data": (x.float(), known.data[1].float()),
    }  # fmt: skip
    assert run(regression(x, logistic, **given), "strads", 2, steps=1).scored
    with pytest.raises(PlanError, match="another loss"):
        run(regression(x, loss=functional.l1_loss, **given), "strads", 2, steps=1)


def test_features_that_add_up_to_nothing_hide_no_loss() -> None:
    """The same added to all weights changes no output; what is added is random."""
    x = inputs(40, 6)
    centred = x - x.mean(1, keepdim=True)
    assert run(regression(centred), "strads", 2, steps=1).scored
    with pytest.raises(PlanError, match="another loss"):
        run(regression(centred, loss=functional.l1_loss), "strads", 2, steps=1)
    with pytest.raises(PlanError, match="all features of the first batch are 0"):
        run(regression(0 * x), "strads", 2, steps=1)


def test_other_models_and_losses_are_refused() -> None:
    x = inputs(40, 6)
    three = regression(x, model=lambda: nn.Linear(6, 3).double(), data=(x, torch.zeros(40, 3).double()))
    for task, why in [
        (mlp(), "this model has 2 nn.Linear"),
        (three, "this layer has 3 outputs"),
        (regression(x, loss=functional.l1_loss), "this task has another loss"),
        (regression(x, loss=lambda o, y: functional.mse_loss(o, y, reduction="sum")), "this task has another loss"),
        (regression(x, model=lambda: nn.Linear(5000, 1).double()), "5000 are too many"),
    ]:
        with pytest.raises(PlanError, match=why):
            run(task, "strads", 2, steps=1)
    with pytest.raises(PlanError, match="knows no layers"):
        covey.fit(regression(x), "strads", 2, engine="simulated", timing_only=True, steps=2)

"""A layer of experts as an ordinary module: who computes a token, what is dropped, and what keeps the choice even."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.data.shards import Shards
from covey.errors import CoveyError, PlanError
from covey.nn import Experts
from covey.nn.routing import balance_loss, capacity_of, probabilities

CHANCE = torch.Generator().manual_seed(7)


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8)).double()


def layer(**more: Any) -> Experts:
    torch.manual_seed(3)
    return Experts(expert, **{"experts": 4, **more}).double()


def tokens(many: int = 24) -> Tensor:
    return torch.randn(many, 8, dtype=torch.float64, generator=CHANCE)


def one_by_one(layer: Experts, x: Tensor) -> Tensor:
    """The layer as the papers write it: a loop over choices and tokens, each of which takes a place or is dropped."""
    probs = torch.softmax(x @ layer.router.weight.t(), -1)
    places = ceil(layer.top * len(x) / len(layer.experts) * layer.capacity - 1e-9)
    load, output = [0] * len(layer.experts), torch.zeros_like(x)
    best = probs.argsort(-1, descending=True)
    for choice in range(layer.top):
        for token, row in enumerate(x):
            chosen = int(best[token, choice])
            together = probs[token, best[token, : layer.top]].sum() if layer.top > 1 else 1
            if load[chosen] < places:
                load[chosen] += 1
                output[token] = output[token] + probs[token, chosen] / together * layer.experts[chosen](row)
    return output


def test_a_router_begins_with_a_tenth_of_the_usual_variance() -> None:
    """Fedus et al. 2022, 2.4: a truncated normal with deviation sqrt(s / n), s = 0.1, n the numbers of a token."""
    torch.manual_seed(3)
    weight = Experts(lambda: nn.Linear(400, 1), experts=200).router.weight.detach()
    assert float(weight.std()) == pytest.approx(0.0158, rel=0.02) and abs(float(weight.mean())) < 0.0005


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25, 4.0])
def test_the_layer_does_what_the_papers_write(top: int, capacity: float) -> None:
    ours, theirs = layer(top=top, capacity=capacity, balance=0), layer(top=top, capacity=capacity, balance=0)
    for many in (24, 7, 1):
        x = tokens(many)
        given, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        made, reference = ours(given), one_by_one(theirs, wanted)
        assert torch.allclose(made, reference, rtol=0, atol=1e-12)
        made.square().sum().backward()
        reference.square().sum().backward()
        assert given.grad is not None and torch.allclose(given.grad, wanted.grad, rtol=0, atol=1e-12)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-12)


def test_tokens_beyond_the_capacity_are_left_to_the_residual() -> None:
    crowded = layer(capacity=1.0)
    with torch.no_grad():
        crowded.router.weight.zero_()[2] = 1.0
    x = tokens(24).abs()  # all choose expert 2, which has room for 6
    assert torch.equal((x + crowded(x))[6:], x[6:])
    assert bool((crowded(x)[:6] != 0).all())
    assert crowded.notes.dropped == 2 * 18 and crowded.notes.imbalance == 2 * 4.0


@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_an_even_router_has_a_balance_loss_of_alpha(alpha: float) -> None:
    probs = torch.full((24, 4), 0.25)
    for firsts in ([24, 0, 0, 0], [6, 6, 6, 6], [1, 2, 3, 18]):
        assert alpha * balance_loss(probs, torch.tensor(firsts)).item() == alpha


def test_the_balance_loss_comes_along_without_a_line_of_the_task() -> None:
    ours, x = layer(balance=0.3), tokens()
    (0 * ours(x)).sum().backward()
    weight = ours.router.weight.detach().clone().requires_grad_()
    probs = torch.softmax(x @ weight.t(), -1)
    share = probs.argmax(-1).bincount(minlength=4).double() / len(x)
    (0.3 * 4 * (share * probs.mean(0)).sum()).backward()
    assert ours.router.weight.grad is not None and weight.grad is not None and bool((weight.grad != 0).any())
    assert torch.allclose(ours.router.weight.grad, weight.grad, rtol=0, atol=1e-14)
    ours.eval()
    ours.router.weight.grad = None
    (0 * ours(x)).sum().backward()
    assert not bool(ours.router.weight.grad.any()), "who does not train needs no balance"


def test_batches_of_a_step_have_their_share_of_the_balance_loss() -> None:
    """Three batches of a step, of 4, 4 and 2 samples: the gradient is the mean over samples, as that of the loss is."""
    data = tokens(10), torch.zeros(10, dtype=torch.int64)
    given = task(
        lambda: layer(balance=0.5), data=data, batch_size=4, accumulate=3,
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0), loss=lambda out, _: (0 * out).sum(),
    )  # fmt: skip
    trained = covey.fit(given, "bsp", 1, engine="simulated", steps=1, runs=False, seed=5)
    order = Shards(10, 1, 12, seed=5).indices(0, 0)
    before, moved = layer().router.weight.detach(), torch.zeros(4, 8, dtype=torch.float64)
    for part in order.split(4):
        weight = before.clone().requires_grad_()
        probs = torch.softmax(data[0][part] @ weight.t(), -1)
        (0.5 * balance_loss(probs, probs.argmax(-1).bincount(minlength=4))).backward()
        moved += weight.grad * len(part) / 10 if weight.grad is not None else 0
    assert torch.allclose(trained.weights["router.weight"], before - moved, rtol=0, atol=1e-12)


def test_room_for_all_drops_nothing() -> None:
    for top in (1, 2):
        wide = layer(top=top, capacity=4.0)
        for _ in range(20):
            wide(tokens(13))
        assert wide.notes.dropped == 0 and wide.notes.choices == top * 20 * 13


def test_a_single_expert_is_a_dense_layer() -> None:
    alone, x = layer(experts=1, balance=0), tokens()
    assert torch.equal(alone(x), alone.experts[0](x))


def test_capacities_are_whole_where_they_should_be() -> None:
    assert capacity_of(100, 10, 1, 1.1) == 11, "100 * 1.1 / 10 is a little more than 11"
    assert capacity_of(9, 4, 1, 1.0) == 3 and capacity_of(9, 4, 2, 1.0) == 5 and capacity_of(0, 4, 1, 1.25) == 0


def test_the_router_computes_in_single_precision_at_least() -> None:
    x, weight = torch.randn(9, 8, generator=CHANCE), torch.randn(4, 8, generator=CHANCE)
    exact = torch.softmax(x @ weight.t(), -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(probabilities(x, weight, 0.0), exact)
    x, weight = x.bfloat16(), weight.bfloat16()
    half = probabilities(x, weight, 0.0)
    assert half.dtype == torch.float32 and torch.equal(half, probabilities(x.float(), weight, 0.0))
    assert probabilities(x.double(), weight, 0.0).dtype == torch.float64


def test_jitter_is_for_training_alone() -> None:
    shaken, x = layer(jitter=0.5, capacity=4.0), tokens()
    assert not torch.equal(shaken(x), shaken(x))
    shaken.eval()
    assert torch.equal(shaken(x), shaken(x))


def test_shapes_and_copies() -> None:
    ours = layer()
    x = tokens(24).view(2, 3, 4, 8)
    assert torch.equal(ours(x).view(24, 8), ours(x.view(24, 8)))
    assert ours(x[:0]).shape == (0, 3, 4, 8)
    assert torch.equal(deepcopy(ours)(x), ours(x)), "a layer that has computed can be copied"
    wider = Experts(lambda: nn.Linear(8, 5), experts=2, width=8)
    assert wider(torch.randn(4, 8)).shape == (4, 5) and Experts(lambda: nn.LayerNorm(6), experts=2).width == 6


REFUSED: dict[str, dict[str, Any]] = {
    r"Experts\(experts=0\): at least 1": {"experts": 0}, r"Experts\(top=3\): .* 1 or 2": {"top": 3},
    r"top=2, experts=1": {"top": 2, "experts": 1}, r"capacity=0\): it must be above 0": {"capacity": 0.0},
    r"capacity=nan": {"capacity": float("nan")}, r"capacity=inf\): .* finite": {"capacity": float("inf")},
    r"balance=-1\)": {"balance": -1.0}, r"jitter=1\)": {"jitter": 1.0}, r"give width=": {"make": nn.Identity},
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_settings_that_cannot_be_are_refused(said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Experts(**{"make": expert, **REFUSED[said]})


# -- in a run ---------------------------------------------------------------------------------------------------------


def broken(after: int) -> Iterator[bool]:
    """Whether the router's weights are destroyed now."""
    yield from (False for _ in range(after))
    yield True


def task(model: Callable[[], nn.Module], **more: Any) -> covey.Task:
    usual: dict[str, Any] = {
        "model": model, "data": (tokens(24), torch.zeros(24, dtype=torch.int64)), "batch_size": 4,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "loss": nn.functional.cross_entropy,
    }  # fmt: skip
    return covey.Task(**{**usual, **more})


def test_runs_tell_what_was_dropped() -> None:
    def crowded() -> nn.Module:
        made = layer(capacity=1.0, balance=0)
        nn.init.zeros_(made.router.weight)
        return made

    given = task(crowded, loss=lambda out, _: (0 * out).sum())
    result = covey.fit(given, "bsp", 2, engine="simulated", steps=3, runs=False)
    assert result.notes["dropped tokens"] == 2 * 3 * 3, "all four tokens of a batch choose one expert, which takes one"


def test_a_router_without_numbers_is_named_with_its_step() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle = nn.Linear(8, 8).double(), layer()
            self.breaks = broken(2)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and next(self.breaks):
                self.middle.router.weight.data[:] = float("nan")
            return self.middle(self.first(x))

    with pytest.raises(CoveyError, match=r"middle, step 2: the router's probabilities are not numbers .NaN."):
        covey.fit(task(Net), "bsp", 1, engine="simulated", steps=6, runs=False)

"""L-BFGS by command, on vectors that lie here: its direction against dense matrices, its line search by hand."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.central.lbfgs.vector_shards import Lbfgs, SearchState, VectorCommand, obey
from covey.program import Node
from covey.vector import Vector
from tests.worlds import vector


class Here(Lbfgs):
    """Commands are done at once: the vectors lie in this process."""

    def __init__(self, weights: Vector, history: int = 10) -> None:
        super().__init__(cast(Node, None), [], history, SearchState())
        self.answered = True  # whether every shard has done all that it was told
        self.vectors = {"w": weights, "g": weights.map(torch.zeros_like)}

    async def order(self, task: str, into: str, other: str = "", factor: float = 1.0) -> None:
        self.answered = False
        obey(self.vectors, VectorCommand(task, into, other, factor))

    async def dot(self, one: str, other: str) -> float:
        found = obey(self.vectors, VectorCommand("dot", one, other, 1.0))
        assert found is not None
        self.answered = True
        return found

    def see(self, loss: float, *gradient: float) -> float:
        """The loss and the gradient at the weights are known; the first weight after the step."""
        self.vectors["g"].copy_(vector(*gradient))
        finish(self.step(loss))
        assert self.answered, "a worker may fetch as soon as a step is over: no command may be under way"
        return self.vectors["w"].parts[0][0].item()


def finish(program: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        program.send(None)


def test_a_step_that_goes_too_little_down_is_halved() -> None:
    """From 1 with gradient 4: the first length is 1 / 4. Armijo's line is 10 - 1e-4 * length * 16."""
    search = Here(vector(1.0))
    assert search.see(10.0, 4.0) == 0.0
    line = 10 - 1e-4 * 0.25 * 16
    assert search.see(line + 1e-6, 3.0) == 0.5, "lower than 10, and not low enough: half way back"
    line = 10 - 1e-4 * 0.125 * 16
    assert search.see(line + 1e-6, 3.0) == 0.75
    line = 10 - 1e-4 * 0.0625 * 16
    assert search.search.tries == 2
    search.see(line - 1e-6, 2.0)
    assert search.search.tries == 0 and search.search.loss == line - 1e-6 and search.search.length == 1.0
    assert len(search.search.slots) == 1, "0.25 back, 2 less of a gradient: a curvature"


def test_a_step_on_the_line_is_taken() -> None:
    search = Here(vector(1.0))
    search.see(10.0, 4.0)
    search.see(10 + 1e-4 * 0.25 * -16.0, 1.0)
    assert search.search.tries == 0 and search.search.slots == [0]


def test_after_five_halvings_a_step_is_taken_as_it_is() -> None:
    search = Here(vector(1.0))
    weights = [search.see(10.0, 4.0), *(search.see(20.0, 3.0) for _ in range(5))]
    assert weights == [0, 0.5, 0.75, 0.875, 0.9375, 0.96875]
    search.see(20.0, 3.0)
    assert search.search.loss == 20.0 and search.search.tries == 0


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_where_the_loss_is_no_number_the_search_goes_back_until_it_is_one(loss: float) -> None:
    """Nothing is learned there, and no direction is taken from a gradient that is no number either."""
    search = Here(vector(1.0))
    search.see(10.0, 4.0)
    for _ in range(9):
        before = search.vectors["w"].parts[0][0].item()
        assert search.see(loss, math.nan) == (before + 1) / 2
    search.see(9.0, 3.9)
    assert search.search.loss == 9.0 and math.isfinite(search.vectors["w"].parts[0][0].item())


def test_a_move_along_which_the_gradient_grows_is_not_learned() -> None:
    search = Here(vector(1.0))
    search.see(10.0, 4.0)
    search.vectors["g"].copy_(vector(4.5))  # moved by -1, and the gradient grew: curvature below zero
    finish(search.learn())
    assert search.search.slots == [] and search.search.curvatures == []
    search.see(5.0, 4.5)
    assert search.search.slots == [] and search.search.length == pytest.approx(1 / 4.5)


@pytest.mark.parametrize("known", [1, 2, 3])
def test_the_history_stays_when_a_move_is_not_learned(known: int) -> None:
    """Three moves are remembered at most; one along which the gradient grows takes none of those that are known."""
    search = Here(vector(1.0), history=3)
    search.see(10.0, 4.0)
    for move in range(known):
        search.see(9.0 - move, 3.9 - move)
    kept = {slot: search.vectors[f"s{slot}"].parts[0].clone() for slot in search.search.slots}
    assert len(kept) == known
    for _ in range(3):
        search.vectors["g"].copy_(search.vectors["d"]).mul_(-9.0).add_(search.vectors["old"])
        finish(search.learn())
        assert search.search.slots == list(kept) and len(search.search.curvatures) == known
        assert all(torch.equal(search.vectors[f"s{slot}"].parts[0], s) for slot, s in kept.items())


def dense(pairs: list[tuple[Tensor, Tensor]], gradient: Tensor) -> Tensor:
    """The direction by the BFGS update of whole matrices (Nocedal & Wright, eq. 7.16 and 7.20)."""
    eye = torch.eye(len(gradient), dtype=torch.float64)
    s, y = pairs[-1] if pairs else (gradient, gradient)
    inverse = eye * (s @ y) / (y @ y)
    for s, y in pairs:
        rho = 1 / (y @ s)
        left = eye - rho * torch.outer(s, y)
        inverse = left @ inverse @ left.T + rho * torch.outer(s, s)
    return -inverse @ gradient


@settings(max_examples=25, deadline=None)
@given(history=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_direction_is_that_of_dense_matrices(history: int, seed: int) -> None:
    """On a random convex quadratic, over more moves than are remembered."""
    chance = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, dtype=torch.float64, generator=chance)
    curvature, start = root @ root.T + torch.eye(6).double(), torch.randn(6, dtype=torch.float64, generator=chance)
    search, pairs = Here(Vector([start.clone()]), history), list[tuple[Tensor, Tensor]]()
    begun = None  # where the last direction began, and the gradient there
    for _ in range(14):
        w = search.vectors["w"].parts[0].clone()
        gradient = curvature @ w
        if float(gradient.norm()) < 1e-4:  # where moves are so small, their differences are mostly rounding
            break
        search.see(0.5 * float(w @ curvature @ w), *gradient.tolist())
        if search.search.tries:
            continue
        if begun is not None:
            pairs = [*pairs, (w - begun[0], gradient - begun[1])][-history:]
        begun = w, gradient
        torch.testing.assert_close(search.vectors["d"].parts[0], dense(pairs, gradient), rtol=1e-6, atol=1e-9)
        assert len(search.search.slots) == len(pairs)

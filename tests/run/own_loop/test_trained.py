"""Which parameters an optimizer of a loop steps."""

from __future__ import annotations

import torch
from torch import nn

from covey.run.own_loop.trained import WaitingGradients


def test_a_gradient_that_the_optimizer_of_this_step_needs_does_not_wait_though_another_has_it_too() -> None:
    model = nn.Linear(2, 1)
    narrow, wide = torch.optim.SGD([model.weight], lr=0.5), torch.optim.SGD(model.parameters(), lr=0.25)
    waiting = WaitingGradients([narrow, wide])
    model(torch.tensor([[1.0, 2.0]])).sum().backward()
    weight, bias = model.weight.grad, model.bias.grad
    assert weight is not None and weight.tolist() == [[1.0, 2.0]]
    waiting.set_aside(narrow)
    assert model.weight.grad is weight and model.bias.grad is None
    waiting.give_back()
    assert model.weight.grad is weight and model.bias.grad is bias
    waiting.set_aside(wide)
    assert model.weight.grad is weight and model.bias.grad is bias

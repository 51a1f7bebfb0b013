"""The user's optimizers, made again over the parameters that a server holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from covey.model.replica import Replica
from tests.run.loops import alone, train


def several(module: nn.Module) -> list[Optimizer]:
    """The first of three has two groups."""
    one, two, three, four = module.parameters()
    groups = [{"params": [one], "lr": 0.3}, {"params": [two], "weight_decay": 0.1}]
    return [
        torch.optim.SGD(groups, lr=0.1), torch.optim.Adam([three], lr=0.01), torch.optim.SGD([four], 0.2, momentum=0.9)
    ]  # fmt: skip


def in_turn(replica: Replica, rank: int, step: int) -> None:
    assert replica.updates.settings
    combined = replica.updates.settings.live
    combined.only(combined.parts[step % 3])  # type: ignore[attr-defined]


def test_on_servers_too_each_parameter_has_the_optimizer_that_the_loop_gave_it() -> None:
    expected = alone(in_turn, workers=2, steps=6, make=several)
    found = train("bsp", in_turn, servers=2, steps=6, make=several)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


def sharing(module: nn.Module) -> list[Optimizer]:
    """Each has the second parameter."""
    one, two, three, four = module.parameters()
    return [
        torch.optim.SGD([one, two], lr=0.3, momentum=0.5), torch.optim.SGD([two, three, four], lr=0.1),
        torch.optim.Adam([two], lr=0.01),
    ]  # fmt: skip


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_on_servers_too_optimizers_may_share_a_parameter(servers: int) -> None:
    expected = alone(in_turn, workers=2, steps=6, make=sharing)
    found = train("bsp", in_turn, servers=servers, steps=6, make=sharing)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)

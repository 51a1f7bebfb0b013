"""The user's optimizers, made again over the parameters that a server holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from covey.checkpoint import RoleState
from covey.errors import CheckpointError
from covey.model.inherited import inherited
from covey.model.named import members, named_numbers
from covey.model.replica import Replica
from covey.run.own_loop.settings import replica_of
from tests.run.loops import alone, train
from tests.test_checkpoint import ME, state


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


def test_what_two_optimizers_keep_of_a_parameter_is_kept_of_both(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([model.weight], momentum=0.5), torch.optim.SGD(model.parameters(), momentum=0.9)]
    replica = replica_of(model, optimizers)
    for number, optimizer in enumerate(optimizers):
        model.weight.grad, model.bias.grad = torch.tensor([[1.0, 2.0]]) + number, torch.tensor([7.0])
        optimizer.step()
    own = {"piece": replica.trained, "members": members(replica)}
    state(replica={**replica.state(), **own}).copied(named_numbers).write(tmp_path, ME)
    kept = RoleState.read(tmp_path, ME).replica
    found = {(one.name, one.key): one.numbers.tolist() for one in named_numbers(kept) if one.kind == "optimizer"}
    assert found == {
        ("weight", "momentum_buffer"): [1.0, 2.0], ("weight", "momentum_buffer 2"): [2.0, 3.0],
        ("bias", "momentum_buffer"): [7.0],
    }  # fmt: skip


def test_what_two_optimizers_keep_of_a_parameter_does_not_go_on_among_other_roles() -> None:
    """There each state would be of the optimizer that has the parameter last."""
    model = nn.Linear(2, 1)
    replica = replica_of(model, [torch.optim.SGD([model.weight], momentum=0.5), torch.optim.SGD(model.parameters())])
    own = {"piece": replica.trained, "optimizer_class": "Combined", "members": members(replica)}
    kept = inherited({ME: state(replica={**replica.state(), **own})}, [ME])
    with pytest.raises(CheckpointError, match="several optimizers have weight.*as many workers and servers as before"):
        kept.restore(replica, 0)

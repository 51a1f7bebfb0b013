"""Which parameters have a gradient when a loop steps decides what moves, as in plain PyTorch, under every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covey.engines.process import control
from covey.engines.process.launcher.settings_check import SettingsCheck
from covey.errors import PlanError
from covey.model.replica import Replica
from covey.run.own_loop.settings import replica_of
from tests.run.loops import alone, differentiate, fresh, train
from tests.run.test_loop_settings import many, names, one_batch


def decaying(module: nn.Module) -> Optimizer:
    """Moves what has a gradient of zero."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)


def undecayed(module: nn.Module) -> Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def parts(weights: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's numbers, and the last one's."""
    return weights[:56], weights[56:]


def start() -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in fresh().parameters()])


def frozen(replica: Replica, rank: int, step: int) -> None:
    replica.module[0].requires_grad_(False)  # type: ignore[index]


def thawing(replica: Replica, rank: int, step: int) -> None:
    """The first layer is frozen for the first steps, and again for the last."""
    replica.module[0].requires_grad_(2 <= step < 5)  # type: ignore[index]


def refuses_decay(spec: str) -> bool:
    return any(word in spec for word in ("dgc", "hogwild", "dogwild"))


CORE = ("bsp", "allreduce", "sliced", "asynchronous", "easgd", "local_sgd(period=4)", "p3")


def sampled(specs: list[str]) -> list[Any]:
    """Each of them; those that share their program with another in the thorough run only."""
    return [pytest.param(spec, marks=() if spec in CORE else pytest.mark.full) for spec in specs]


@pytest.mark.parametrize("spec", sampled(names()))
def test_a_layer_that_is_frozen_after_join_stands_still(spec: str) -> None:
    make = undecayed if refuses_decay(spec) else decaying
    for servers in many(spec):
        first, last = parts(train(spec, frozen, servers=servers, make=make).weights)
        torch.testing.assert_close(first, parts(start())[0], rtol=0, atol=1e-12)
        assert (last - parts(start())[1]).abs().max() > 1e-3


@pytest.mark.parametrize("spec", sampled([spec for spec in names() if one_batch(spec)]))
def test_a_layer_is_frozen_and_unfrozen_as_in_the_plain_loop(spec: str) -> None:
    expected = alone(thawing, workers=2, steps=7, make=decaying)
    for servers in many(spec):
        found = train(spec, thawing, servers=servers, steps=7, make=decaying)
        torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["bsp", "allreduce", "easgd"])
def test_a_layer_that_was_frozen_at_join_cannot_be_trained_later(spec: str) -> None:
    def make(module: nn.Module) -> Optimizer:
        module[0].requires_grad_(False)  # type: ignore[index]
        return undecayed(module)

    def turn(replica: Replica, rank: int, step: int) -> None:
        replica.module[0].requires_grad_(step >= 2)  # type: ignore[index]

    with pytest.raises(PlanError, match=r"0\.weight needed no gradient at covey\.join.*requires_grad_\(True\) before"):
        train(spec, turn, make=make)


def only_worker_0(module: nn.Module, ranks: Sequence[int], step: int) -> float:
    """A loop in which the first layer has a gradient on worker 0 only, and in odd steps on nobody."""
    loss = differentiate(module, ranks, step)
    if step % 2 or list(ranks) == [1]:
        for parameter in module[0].parameters():  # type: ignore[index]
            parameter.grad = None
    return loss


def test_what_has_a_gradient_on_any_worker_moves_and_what_has_none_does_not() -> None:
    module = fresh()
    optimizer = decaying(module)
    for step in range(4):
        differentiate(module, [1], step)
        last = [parameter.grad for parameter in module.parameters()][2:]
        only_worker_0(module, [0], step)
        for parameter, other in zip(list(module.parameters()), [None, None, *last], strict=True):
            if parameter.grad is not None:
                parameter.grad = (parameter.grad + (0 if other is None else other)) / 2
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    found = train("bsp", steps=4, make=decaying, loss=only_worker_0, servers=2)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


def test_where_each_worker_steps_itself_a_gradient_on_some_workers_only_is_refused() -> None:
    """The launcher compares what workers tell, where nobody who steps hears all of them."""
    loop = train("allreduce", steps=1, make=decaying, loss=only_worker_0)
    check = SettingsCheck()
    told = []
    for who, replica in loop.replicas.items():
        assert replica.updates.settings
        replica.updates.settings.alike = True
        told.append((who, control.Settled(*replica.updates.settings.news())))
    check.hear(*told[0])
    with pytest.raises(PlanError, match="parameter 0 of the model has a gradient on worker 0 and none on worker 1"):
        check.hear(*told[1])


def test_elsewhere_workers_may_have_gradients_of_different_parameters() -> None:
    loop = train("easgd", steps=1, make=decaying, loss=only_worker_0)
    check = SettingsCheck()
    for who, replica in loop.replicas.items():
        if replica.updates.settings and who.role == "worker":
            check.hear(who, control.Settled(*replica.updates.settings.news()))


def test_an_optimizer_that_needs_a_closure_is_refused_at_join() -> None:
    model = fresh()
    with pytest.raises(PlanError, match=r"LBFGS evaluates the loss several times.*use SGD or Adam"):
        replica_of(model, torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_of_sparse_gradients_is_refused_at_join() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(PlanError, match=r"SparseAdam takes only sparse gradients.*sparse=False\) with SGD or Adam"):
        replica_of(model, torch.optim.SparseAdam(model.parameters()))


def table() -> nn.Module:
    torch.manual_seed(0)
    return nn.Embedding(6, 3, sparse=True).double()


def looked_up(module: nn.Module, ranks: Sequence[int], step: int) -> float:
    module.zero_grad()
    loss = module(torch.tensor([number for rank in ranks for number in (2 * rank + step % 2, 5)])).square().mean()
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("spec", ["bsp", "allreduce", "local_sgd(period=1)"])
def test_sparse_gradients_are_exchanged_as_dense_ones(spec: str) -> None:
    module = table()
    optimizer = undecayed(module)
    for step in range(4):
        looked_up(module, [0, 1], step)
        optimizer.step()
    found = train(spec, steps=4, make=undecayed, model=table, loss=looked_up)
    torch.testing.assert_close(found.weights, module.weight.detach().reshape(-1), rtol=0, atol=1e-12)  # type: ignore[operator]

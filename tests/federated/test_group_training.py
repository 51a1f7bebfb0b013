"""Clients trained together report what they report alone; where that cannot be, they are trained one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.federated.group_training import GroupTraining
from covey.federated.local_training import ClientWork, LocalPlan, LocalResult
from covey.federated.messages import Configuration
from covey.run import federate
from covey.task import Task
from covey.vector import Vector

SIZES = (23, 5, 8, 1, 16, 8, 40)  # whole batches, none, a rest, several


def task(model: Any = None, optimizer: Any = None, dtype: torch.dtype = torch.float64, **more: Any) -> Task:
    chance = torch.Generator().manual_seed(3)
    x = torch.randn(sum(SIZES), 6, generator=chance, dtype=dtype)
    y = (x @ torch.randn(6, 3, generator=chance, dtype=dtype)).argmax(1)
    return Task(
        model=model or (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)), data=(x, y),
        optimizer=optimizer or (lambda params: torch.optim.SGD(params, lr=0.2)), loss=nn.functional.cross_entropy,
        batch_size=8, **more,
    )  # fmt: skip


def training(asked: Task, plan: LocalPlan | None = None) -> GroupTraining:
    torch.manual_seed(0)
    samples = list(torch.arange(sum(SIZES)).split(SIZES))
    return GroupTraining(asked, asked.model(), asked.data, plan or LocalPlan(epochs=2), samples, seed=4)


def works(of: GroupTraining, models: int = 1) -> list[ClientWork]:
    """One for each client; of those that were given different models, some."""
    start = [torch.linspace(-0.5, 0.5, part.numel(), dtype=part.dtype) for part in of._layout.params.parts]
    first = Vector(start)
    given = [Vector([part + 0.1 * number for part in first.parts]) for number in range(models)]
    return [
        ClientWork(of, client, Configuration(3 + client % models, 0.5, given[client % models], Vector(())))
        for client in range(len(SIZES))
    ]


def gap(one: LocalResult, two: LocalResult) -> float:
    assert one.samples == two.samples and one.loss == pytest.approx(two.loss, rel=1e-5)
    return float((one.update - two.update).norm() / max(1e-12, two.update.norm()))


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)},
    "nesterov": {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.8, nesterov=True)},
    "dampened": {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.8, dampening=0.3)},
    "rate": {"rate": lambda progress: 1 - progress},
    "two groups": {
        "optimizer": lambda params: torch.optim.SGD(
            [{"params": [one], "lr": 0.1 * (1 + number)} for number, (_, one) in enumerate(params)], lr=0.1
        )
    },
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("plan", [LocalPlan(), LocalPlan(epochs=3, batch=7, mu=0.5), LocalPlan(batch="all")])
def test_a_group_reports_what_its_clients_report_alone(how: str, plan: LocalPlan) -> None:
    of = training(task(**HOW[how]), plan)
    together = of.train_all(works(of, models=2))
    assert of._proven, "they were trained together"
    assert max(gap(one, work()) for one, work in zip(together, works(of, models=2), strict=True)) < 1e-12


def test_single_precision_differs_by_rounding_only() -> None:
    of = training(task(dtype=torch.float32))
    together = of.train_all(works(of))
    assert of._proven and max(gap(one, work()) for one, work in zip(together, works(of), strict=True)) < 1e-5


def test_a_client_reports_the_same_bits_in_any_group() -> None:
    """Whatever else is simulated beside it: timing, other clients, other rounds."""
    of = training(task(dtype=torch.float32))
    whole = of.train_all(works(of))
    for members in ([0], [4, 1], [6, 5, 0]):
        for number, one in zip(members, of.train_all([works(of)[number] for number in members]), strict=True):
            assert torch.equal(one.update.parts[0], whole[number].update.parts[0])


class Peeking(nn.Module):
    """Looks at a number in the middle, which cannot be done for many clients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return found * 2 if found.sum().item() > 0 else found


ALONE: dict[str, dict[str, Any]] = {
    "dropout": {"model": lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)).double()},
    "batch normalization": {"model": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).double()},
    "a choice by the data": {"model": Peeking},
    "another optimizer": {"optimizer": lambda params: torch.optim.Adam(params, lr=0.01)},
    "clipping": {"clip_norm": 0.1},
}


@pytest.mark.parametrize("how", ALONE)
def test_what_cannot_be_done_together_is_done_alone(how: str) -> None:
    asked = task(**ALONE[how])
    of = training(asked)
    given = Vector([part.clone() for part in of._layout.params.parts]), of._layout.buffers.clone()
    each = [ClientWork(of, client, Configuration(1, 0.0, *given)) for client in (0, 2, 4)]
    together = of.train_all(each)
    assert of._proven is False
    for one, work in zip(together, each, strict=True):
        assert torch.equal(one.update.parts[0], work().update.parts[0])


def test_a_group_that_would_be_too_large_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    of = training(task())
    whole, seen = of.train_all(works(of)), list[int]()
    inner = GroupTraining._train

    def watched(self: GroupTraining, some: Any) -> list[LocalResult]:
        seen.append(len(some))
        return inner(self, some)

    monkeypatch.setattr(GroupTraining, "_train", watched)
    monkeypatch.setattr("covey.federated.group_training.ROWS", 3 * of._layout.params.numel)
    divided = of.train_all(works(of))
    assert seen == [3, 3, 1]
    assert all(torch.equal(a.update.parts[0], b.update.parts[0]) for a, b in zip(whole, divided, strict=True))


def test_what_one_client_lacks_is_told_as_if_it_were_trained_alone() -> None:
    asked = task()
    x, y = asked.data  # type: ignore[misc]
    broken = training(task(), LocalPlan())
    broken.train_all(works(broken))
    y[SIZES[0] + 2] = 99  # the second client has a class that is not there
    assert isinstance(x, Tensor)
    own = training(asked, LocalPlan())
    own._proven = True
    with pytest.raises(IndexError, match="out of bounds"):
        own.train_all(works(own))


def test_who_has_gone_before_its_result_is_due_is_not_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Of 6 clients 3 go after 40 s, and all need more than a minute."""
    there = tmp_path / "there.csv"
    there.write_text("".join(f"{client},0s,{'40s' if client < 3 else '1h'}\n" for client in range(6)))
    trained = list[int]()
    inner = GroupTraining.train_all

    def watched(self: GroupTraining, some: Any) -> list[LocalResult]:
        trained.extend(work.client for work in some)
        return inner(self, some)

    monkeypatch.setattr(GroupTraining, "train_all", watched)
    found = federate(
        task(), "fedavg", 6, per_round=6, rounds=1, over=1.0, least=0.5, compute="60s", speed_spread=0.0,
        availability=there, selection="20s", runs=False,
    )  # fmt: skip
    assert found.participation and found.participation.rounds[0].reports == 3
    assert sorted(trained) == [3, 4, 5]


def test_the_pull_of_fedprox_is_clipped_with_the_gradient() -> None:
    asked = task(lambda: nn.Linear(6, 3, bias=False).double(), clip_norm=0.1)
    work = works(training(asked, LocalPlan(epochs=3, batch="all", mu=4.0)))[0]
    x, y = (column[: SIZES[0]] for column in asked.data)
    start = weight = work.given.params.parts[0].view(3, 6)
    for _ in range(3):
        weight = weight.detach().requires_grad_()
        (grad,) = torch.autograd.grad(nn.functional.cross_entropy(x @ weight.T, y), weight)
        grad = grad + 4.0 * (weight - start)
        weight = weight - 0.2 * grad * (0.1 / grad.norm()).clamp(max=1)
    assert work().update.parts[0].tolist() == pytest.approx((weight - start).view(-1).tolist(), rel=1e-4)

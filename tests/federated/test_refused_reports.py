"""Reports that a client has made up: which are refused, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from covey.federated.aggregator import Aggregator
from covey.federated.local_training import LocalPlan, LocalResult, LocalTraining
from covey.federated.messages import ClientReport, Configuration
from covey.observe.result import Result
from covey.run import federate
from covey.task import Task
from covey.vector import Vector
from tests.federated.conftest import regression, trained_by

Lie = Callable[[LocalResult], LocalResult]


@pytest.fixture
def lied(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A run of two rounds in which client 2, or others, say something else than what they have found."""
    honest = LocalTraining.train

    def run(lie: Lie, strategy: str = "fedavg", liars: Sequence[int] = (2,), task: Task | None = None) -> Result:
        def train(self: LocalTraining, client: int, given: Configuration) -> LocalResult:
            found = honest(self, client, given)
            return lie(found) if client in liars else found

        trained_by(monkeypatch, train)
        equal: dict[str, Any] = {"speed_spread": 0.0, "link_spread": 0.0, "over": 1.0}
        return federate(task or regression(), strategy, 6, per_round=6, rounds=2, runs=False, **equal)

    return run


def weight(result: Result) -> torch.Tensor:
    return result.weights["weight"]


@pytest.mark.parametrize("samples", [11, 10**9, 0, -10])
def test_a_report_of_more_samples_than_its_client_has_is_refused(lied: Callable[..., Result], samples: int) -> None:
    """Each of 6 clients has 10 of 60 samples; one that says more would move the model further than the others."""
    found = lied(lambda report: replace(report, samples=samples))
    assert found.participation and [one.reports for one in found.participation.rounds] == [5, 5]
    assert found.notes["refused reports"] == 2 and found.samples == 2 * 5 * 10


def test_a_round_does_not_wait_for_a_client_whose_report_was_refused(lied: Callable[..., Result]) -> None:
    """It has dropped out, and the round ends with the reports of the others, long before its deadline."""
    found = lied(lambda report: replace(report, samples=11)).participation
    assert found and [(one.state, one.reports, one.dropped) for one in found.rounds] == [("committed", 5, 1)] * 2
    assert all(one.took < 60.0 for one in found.rounds)


def test_fedbuff_refuses_a_report_of_more_samples_than_its_client_has(lied: Callable[..., Result]) -> None:
    found = lied(lambda report: replace(report, samples=11), "fedbuff(buffer=6)")
    assert found.notes["refused reports"] >= 1 and found.samples == 2 * 6 * 10


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg(aggregate=median)", "fedbuff(buffer=6)"])
def test_a_report_whose_tensors_have_other_shapes_is_refused(lied: Callable[..., Result], strategy: str) -> None:
    """Also where they have equally many numbers: their sum with others would end the run."""
    def reshaped(report: LocalResult) -> LocalResult:
        return replace(report, update=Vector(part.reshape(-1, 1) for part in report.update.parts))

    found = lied(reshaped, strategy)
    assert found.notes["refused reports"] >= 1


def test_a_client_is_told_why_its_report_is_refused(
    lied: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, honest = set[str](), Aggregator.dismiss

    async def dismiss(self: Aggregator, report: ClientReport, refused: str = "") -> None:
        told.add(refused)
        await honest(self, report, refused)

    monkeypatch.setattr(Aggregator, "dismiss", dismiss)
    lied(lambda report: replace(report, samples=11))
    assert told == {"", "it counts 11 samples, and its client has at most 10"}
    lied(lambda report: replace(report, update=report.update * torch.nan))
    assert "it contains NaN or infinite numbers" in told


@pytest.mark.parametrize("strategy", ["fedavg", "fedbuff(buffer=6)"])
def test_a_loss_that_is_no_number_leaves_that_of_the_others(lied: Callable[..., Result], strategy: str) -> None:
    found = lied(lambda report: replace(report, loss=float("nan")), strategy)
    assert found.participation and all(one.reports == 6 and one.loss for one in found.participation.rounds)


@pytest.mark.parametrize("strategy", ["fedavg", "fedbuff(buffer=6)"])
def test_a_sum_that_is_too_large_for_its_numbers_is_not_committed(lied: Callable[..., Result], strategy: str) -> None:
    """Each report is finite, and their sum is not."""

    def huge(report: LocalResult) -> LocalResult:
        return replace(report, update=report.update.map(lambda part: torch.full_like(part, 1.5e308)))

    found = lied(huge, strategy, liars=range(6))
    assert found.participation and [one.state for one in found.participation.rounds] == ["abandoned"] * 2
    assert bool(weight(found).isfinite().all()) and weight(found).abs().max() < 1


@pytest.mark.parametrize(
    "strategy",
    [
        "fedavg(rate=10)", "fedavg(aggregate=median, rate=10)", "fedopt(server=momentum, rate=10)", "fedopt",
        "fedsgd", "fedbuff(buffer=6, rate=10)",
    ],
)  # fmt: skip
def test_a_round_after_which_the_model_were_infinite_changes_nothing(
    lied: Callable[..., Result], strategy: str
) -> None:
    """The mean of its reports is finite. fedopt and fedsgd keep squares of it, here with Adam."""
    adam = replace(regression(), optimizer=lambda params: torch.optim.Adam(params, lr=0.1))

    def after(number: float) -> Result:
        left = [number] * 6  # the reports of the first round

        def huge(report: LocalResult) -> LocalResult:
            if not left:
                return report
            return replace(report, samples=1, update=report.update.map(partial(torch.full_like, fill_value=left.pop())))

        return lied(huge, strategy, liars=range(6), task=adam)

    found, known = after(2.9e307), after(1.5e308)  # the sum of six such is infinite, and so nothing is made of it
    assert found.participation
    assert [one.state for one in found.participation.rounds] == ["abandoned", "committed"]
    assert "would not be finite" in found.participation.rounds[0].why
    assert torch.equal(weight(found), weight(known)), "weights and the optimizer's state were left as they were"


def test_the_rate_of_fedsgd_follows_the_rounds_whatever_their_samples() -> None:
    """Clients have unequally many samples: by samples, progress would depend on who was chosen."""
    given: dict[str, Any] = {
        "per_round": 2, "over": 1.0, "partition": "sizes(law=zipf, exponent=2)", "runs": False, "rounds": 8,
    }  # fmt: skip
    rates = list[float]()

    def rate(progress: float) -> float:
        rates.append(progress)
        return 1.0

    federate(regression(rate=rate), "fedsgd", 12, **given)
    assert [one for one in rates if one] == [number / 8 for number in range(1, 8)]


def test_counters_of_a_model_do_not_pass_from_client_to_client() -> None:
    """Without momentum, batch statistics are divided by the number of batches: each client begins with none."""
    chance = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(8, 2, generator=chance), torch.zeros(8))
    task = Task(
        model=lambda: nn.Sequential(nn.BatchNorm1d(2, momentum=None), nn.Linear(2, 1)), data=data,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=4,
        step=lambda model, batch: model(batch[0]).square().mean(),
    )  # fmt: skip
    training = LocalTraining(task, task.model(), data, LocalPlan(), [torch.arange(8)], seed=0)
    layout = training._layout
    given = Configuration(0, 0.0, layout.params.clone(), layout.buffers.clone())
    one, two = (training.train(0, given).buffers for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parts, two.parts, strict=True))

"""What of a client's update travels: a random choice of weights, matrices of low rank, few numbers, or a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from covey.errors import PlanError, WireError
from covey.federated.local_training import LocalPlan, LocalResult, LocalTraining
from covey.federated.messages import Configuration
from covey.federated.reports.esgd import ESgd, ESgdReports
from covey.federated.reports.form_choice import FormChoice
from covey.federated.reports.report_form import EncodedTraining
from covey.federated.reports.structured_updates import LowRankUpdate, MaskedUpdate
from covey.model.flat import Flat
from covey.spec import bind, parse_call
from covey.task import Task
from covey.vector import Vector
from tests.federated.conftest import regression
from tests.federated.test_federated_runs import run, weights

ROWS, COLUMNS = 12, 20


def matrices() -> Task:
    """A model with a matrix, a wide kernel and biases, in double precision."""
    chance = torch.Generator().manual_seed(2)
    x = torch.randn(48, COLUMNS, dtype=torch.float64, generator=chance)
    y = x @ torch.randn(COLUMNS, ROWS, dtype=torch.float64, generator=chance)
    return Task(
        model=lambda: nn.Linear(COLUMNS, ROWS).double(), data=torch.utils.data.TensorDataset(x, y),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        step=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum") / 48,
        batch_size=16,
    )  # fmt: skip


def trained(task: Task, restrict: Any, client: int = 1, number: int = 3, **plan: Any) -> Vector:
    module = task.model()
    start = Flat(module).params.map(torch.zeros_like)
    local = LocalTraining(
        task, module, task.data, LocalPlan(batch="all", **plan), [torch.arange(48)] * 3, 0, restrict=restrict
    )
    return local.train(client, Configuration(number, 0.0, start, Vector(()))).update


def test_a_masked_client_moves_its_own_choice_of_weights_only() -> None:
    task = matrices()
    layout = Flat(task.model())
    form = MaskedUpdate(layout.params, 7, 0.1)
    moved = trained(task, form.restrict, epochs=5)
    (flat,) = moved.parts
    assert int((flat != 0).sum()) == 25, "a tenth of 252 weights"
    wire = form.encode(1, 3, moved, 0.0)
    assert wire.numel == 25 and torch.equal(form.decode(1, 3, wire).parts[0], flat)
    for client, number in ((2, 3), (1, 4)):
        other = trained(task, form.restrict, client, number, epochs=1).parts[0]
        assert not torch.equal(other != 0, flat != 0), "others, and later rounds, have another choice"
    whole = trained(task, None, epochs=5).parts[0]
    assert not torch.equal(whole[flat != 0], flat[flat != 0]), "it is trained with that choice, not cut down after it"


@pytest.mark.parametrize("rank", [1, 4])
def test_a_low_rank_client_trains_one_factor_of_its_change(rank: int) -> None:
    """By hand: the change is B A, A random with orthonormal rows, and SGD with momentum steps on B alone."""
    task = matrices()
    layout = Flat(task.model())
    form = LowRankUpdate(layout.slots, layout.params, 7, rank)
    moved = trained(task, form.restrict, epochs=6)
    weight, bias = (slot.view(moved) for slot in layout.slots)
    assert torch.linalg.matrix_rank(weight, tol=1e-9) == rank < min(ROWS, COLUMNS)
    (basis, _) = form._bases(1, 3)
    assert basis is not None and basis.shape == (COLUMNS, rank)
    factor = torch.zeros(ROWS, rank, dtype=torch.float64, requires_grad=True)
    offset = torch.zeros(ROWS, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([factor, offset], lr=0.05, momentum=0.9)
    x, y = task.data.tensors  # type: ignore[union-attr]
    for _ in range(6):
        optimizer.zero_grad()
        ((x @ (factor @ basis.T).T + offset - y).square().sum() / 48).backward()
        optimizer.step()
    assert torch.allclose(weight, (factor @ basis.T).detach(), atol=1e-12)
    assert torch.allclose(bias, offset.detach(), atol=1e-12)
    wire = form.encode(1, 3, moved, 0.0)
    assert wire.numel == rank * ROWS + ROWS
    assert torch.allclose(form.decode(1, 3, wire).parts[0], moved.parts[0], atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "numbers"),
    [("fedavg(epochs=8, update=low_rank, rank=2)", 2 * ROWS + ROWS), ("fedavg(epochs=8, update=mask, keep=0.25)", 63)],
)
def test_runs_with_structured_updates_learn_and_send_less(strategy: str, numbers: int) -> None:
    given: dict[str, Any] = {"clients": 6, "rounds": 8}
    found, whole = run(matrices(), strategy, **given), run(matrices(), "fedavg", **given)
    assert found.traffic.by_role["clients->aggregator"] == 8 * 6 * (8 * numbers + 8)
    assert whole.traffic.by_role["clients->aggregator"] == 8 * 6 * (8 * 252 + 8)
    losses = [one.loss for one in found.participation.rounds]  # type: ignore[union-attr]
    assert losses[-1] < 0.8 * losses[0]  # type: ignore[operator]
    assert found.to_json() == run(matrices(), strategy, **given).to_json()


# -- eSGD -------------------------------------------------------------------------------------------------------------


def test_a_low_rank_client_has_other_matrices_in_every_round() -> None:
    layout = Flat(matrices().model())
    form = LowRankUpdate(layout.slots, layout.params, 7, 2)
    change = layout.params.map(torch.randn_like)
    rounds = ((1, 3), (1, 4), (2, 3))
    first, later, other = (form.restrict(client, number, change).parts[0] for client, number in rounds)
    assert not torch.allclose(first, later) and not torch.allclose(first, other)


def reports(**settings: Any) -> tuple[ESgdReports, Vector]:
    like = Vector([torch.zeros(40, dtype=torch.float64)])
    return ESgdReports(like, 3, ESgd(**settings)), like


def test_what_was_sent_before_the_loss_fell_is_sent_more_often() -> None:
    form, _ = reports(fraction=0.25)
    update = Vector([torch.randn(40, dtype=torch.float64)])
    sent = form.encode(0, 0, update, 1.0).parts[1].long()
    form.encode(0, 1, update, 0.5)
    ((held,), _) = form._kept[0]
    assert torch.equal((held.weights == 2).nonzero()[:, 0], sent) and int((held.weights != 1).sum()) == 10
    worse = held.sent.clone()
    before = held.weights.clone()
    form.encode(0, 2, update, 0.9)
    assert torch.equal(held.weights[worse], before[worse] / 2), "the loss rose: they count less"
    often = torch.zeros(40)
    for number in range(3, 400):
        often[held.choose(10, torch.Generator().manual_seed(number))] += 1
    assert often[held.weights == 2].mean() > 1.3 * often[held.weights <= 1].mean()
    held.weights.fill_(1e-30)
    held.learn(False, 2.0)
    assert float(held.weights[held.sent].min()) > 0 and float(often.min()) > 0, "no number is ever given up"


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_what_is_not_sent_waits(momentum: float) -> None:
    """Without momentum: all that was sent, and what waits, are all updates together."""
    form, _ = reports(fraction=0.1, momentum=momentum)
    total, given = torch.zeros(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    for number in range(30):
        update = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        wire = form.encode(5, number, Vector([update]), 1.0)
        assert [part.numel() for part in wire.parts] == [4, 4] and wire.nbytes == 4 * (8 + 4)
        total += form.decode(5, number, wire).parts[0]
        given += update
    ((held,), _) = form._kept[5]
    assert torch.allclose(total + held.waiting, given, atol=1e-12) == (momentum == 0)


def test_what_was_sent_has_no_momentum_left() -> None:
    form, like = reports(fraction=1.0, momentum=0.5)
    ones = like.map(torch.ones_like)
    assert torch.equal(form.encode(0, 0, ones, 1.0).parts[0], ones.parts[0])
    assert not form.encode(0, 1, like, 1.0).parts[0].any(), "nothing new, and nothing waits"


def test_esgd_that_sends_all_is_fedavg() -> None:
    whole, all_sent = (run(matrices(), spec, rounds=3) for spec in ("fedavg", "fedavg + esgd(fraction=1)"))
    torch.testing.assert_close(weights(whole), weights(all_sent), rtol=0, atol=1e-14)  # one by one, not as a group
    few = run(matrices(), "fedavg(epochs=8) + esgd(fraction=0.25)", rounds=12)
    losses = [one.loss for one in few.participation.rounds]  # type: ignore[union-attr]
    assert losses[-1] < 0.7 * losses[0]  # type: ignore[operator]
    assert few.traffic.by_role["clients->aggregator"] == 12 * 6 * (63 * 12 + 8)


@pytest.mark.parametrize("places", [[0, 1, 1], [2, 1, 0], [-1, 0, 1], [0, 1, 40]])
def test_places_that_cannot_be_are_refused(places: list[int]) -> None:
    form, _ = reports(fraction=3 / 40)
    with pytest.raises(WireError, match="not in order, or outside"):
        form.decode(0, 0, Vector([torch.ones(3, dtype=torch.float64), torch.tensor(places, dtype=torch.int32)]))


# -- codecs -----------------------------------------------------------------------------------------------------------


def test_sketches_of_reports_are_unbiased() -> None:
    layout = Flat(matrices().model())
    codec = bind(parse_call("sketch(bits=4, keep=0.5)"), _sketch(), "codec", "").codec()
    form = FormChoice(codec=codec).make(layout, 0)
    assert form is not None
    update = Vector([torch.randn(252, dtype=torch.float64, generator=torch.Generator().manual_seed(1))])
    mean = torch.zeros(252, dtype=torch.float64)
    for number in range(600):
        mean += form.decode(4, number, form.encode(4, number, update, 0.0)).parts[0] / 600
    assert (mean - update.parts[0]).norm() < 0.1 * update.norm()


def _sketch() -> type[Any]:
    from covey.exchange.codecs.sketch import Sketch

    return Sketch


def test_a_run_with_sketches_learns_and_sends_less() -> None:
    found = run(matrices(), "fedavg + sketch(bits=8, keep=0.5)", rounds=40)
    losses = [one.loss for one in found.participation.rounds]  # type: ignore[union-attr]
    assert losses[-1] < 0.4 * losses[0]  # type: ignore[operator]
    assert found.traffic.by_role["clients->aggregator"] < 40 * 6 * 200
    assert "sketch(bits=8" in found.strategy


@pytest.mark.parametrize(
    "strategy", ["fedavg + sketch", "fedavg(update=low_rank)", "fedavg(update=mask)", "fedavg + esgd"]
)
def test_a_report_of_another_form_is_refused_and_the_others_count(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Callable[..., LocalResult] = EncodedTraining.train

    def train(self: EncodedTraining, client: int, given: Configuration) -> LocalResult:
        found = honest(self, client, given)
        if client == 2:
            object.__setattr__(found, "update", Vector([torch.zeros(3)]))
        return found

    monkeypatch.setattr(EncodedTraining, "train", train)
    found = run(matrices(), strategy, rounds=2, least=0.5)
    assert found.participation and [one.reports for one in found.participation.rounds] == [5, 5]
    assert found.notes["refused reports"] == 2


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("fedavg(update=low_rank, rank=0)", "rank=0: at least 1"),
        ("fedavg(update=mask, keep=0)", "keep=0: above 0"),
        ("fedavg(update=some)", "update must be whole or low_rank or mask"),
        ("fedavg(update=mask) + esgd", "update=mask and esgd: reports have one form"),
        ("fedavg + esgd(factor=1)", "factor above 1"),
        ("fedavg + topk", "topk remembers from step to step what it has dropped"),
        ("fedavg + auto", "remembers from step to step"),
        ("fedavg + sketch + int8", "sketch and int8 do not combine"),
        ("fedbuff + sketch", "fedbuff and sketch"),
        ("fedavg + sketch(bits=3)", "1, 2, 4 or 8"),
    ],
)
def test_forms_that_cannot_be_are_refused(strategy: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        run(regression(), strategy)


def test_forms_have_no_sizes_without_numbers() -> None:
    with pytest.raises(PlanError, match="no numbers to code"):
        run(regression(), "fedavg + sketch", timing_only=True)



"""Differential privacy inside federated rounds: who is drawn, what is clipped, how much noise there is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from covey.errors import CheckpointError, PlanError
from covey.federated.local_training import LocalResult, LocalTraining
from covey.federated.messages import Configuration
from covey.federated.private.noisy_mean import PoissonSelection, PrivacySpending
from covey.federated.private.private_settings import Dp
from covey.federated.rounds import RoundTerms
from covey.observe.result import Result
from covey.privacy.accountant import epsilon
from covey.privacy.randomness import SeededRandomness
from covey.run import federate
from covey.task import Task
from tests.federated.conftest import regression, trained_by
from tests.federated.test_federated_runs import AT_ONCE, full_batch_steps, weights


def run(task: Task | str, strategy: str, clients: int = 6, **given: Any) -> Result:
    given = {"per_round": clients, "rounds": 1, "selection": "5s", **AT_ONCE, **given}
    return federate(task, strategy, clients, **given)


@pytest.mark.parametrize("secure", ["", " + secagg"])
@pytest.mark.parametrize(("dp", "partition"), [("", "even"), (", cap=24", "sizes(law=zipf)")])
def test_without_noise_and_with_a_wide_clip_it_is_fedavg(secure: str, dp: str, partition: str, task: Task) -> None:
    """z = 0, a clip norm that nothing reaches, q = 1."""
    found = run(task, f"fedavg(batch=all){secure} + dp(noise=0, clip=50{dp})", rounds=3, partition=partition)
    assert found.participation and [one.reports for one in found.participation.rounds] == [6] * 3
    assert (weights(found) - full_batch_steps(task, 3)).abs().max() < (1e-6 if secure else 1e-12)
    assert found.privacy and found.privacy.epsilon == math.inf and '"epsilon": null' in found.to_json()


@pytest.mark.parametrize("secure", ["", " + secagg"])
def test_no_client_moves_the_model_by_more_than_its_share(
    secure: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Callable[..., LocalResult] = LocalTraining.train

    def train(self: LocalTraining, client: int, given: Configuration) -> LocalResult:
        found = honest(self, client, given)
        if client == 3:
            found.update.mul_(1e9)
        return found

    first = weights(run(task, f"fedavg(batch=all){secure} + dp(noise=0, clip=0.01)"))
    trained_by(monkeypatch, train)
    moved = (weights(run(task, f"fedavg(batch=all){secure} + dp(noise=0, clip=0.01)")) - first).norm()
    assert moved <= 2 * 0.01 / 6, "one update of norm 0.01 in place of another, of six"
    assert (first - full_batch_steps(task, 0)).norm() <= 0.01


def still(numbers: int = 40_000) -> Task:
    """A model that does not learn, so that what moves it is noise."""
    return Task(
        model=lambda: nn.Linear(numbers, 1, bias=False).double(),
        data=torch.utils.data.TensorDataset(torch.zeros(60, 1)),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.0),
        step=lambda model, batch: 0 * model.weight.sum(), batch_size=8,
    )  # fmt: skip


@pytest.mark.parametrize("secure", ["", " + secagg(threshold=0.51)"])
def test_the_noise_is_the_same_when_half_of_the_clients_drop_out(secure: str, tmp_path: Path) -> None:
    """Its deviation is z S / (q A) in both: 1.5 * 0.2 / (1 * 12)."""
    there = tmp_path / "there.csv"
    going = 6 if not secure else 5
    there.write_text("".join(f"{client},0s,{'12s' if client < going else '9h'}\n" for client in range(12)))
    for availability, reports in (("always", 12), (there, 12 - going)):
        found = run(
            still(), f"fedavg{secure} + dp(noise=1.5, clip=0.2)", clients=12, compute="20s", availability=availability
        )
        assert found.participation and found.participation.rounds[0].reports == reports
        torch.manual_seed(0)
        moved = weights(found) - still().model().weight.detach().reshape(-1)
        assert float(moved.std()) == pytest.approx(1.5 * 0.2 / 12, rel=0.02)


def test_each_client_is_drawn_once_and_by_chance() -> None:
    terms = RoundTerms(target=1000, goal=1000, enough=1)
    selection = PoissonSelection(terms, 0.3, SeededRandomness(5))
    selection.start(0.0)
    drawn = [client for client in range(1000) if selection.check_in(client)]
    assert 250 < len(drawn) < 350
    assert [client for client in range(1000) if selection.check_in(client)] == drawn, "asking again changes nothing"
    assert selection.state(59.9) == "open", "it lasts its whole time, however many have come"
    assert selection.state(60.0) == "ready"
    nobody = PoissonSelection(terms, 0.3, SeededRandomness(5))
    nobody.start(0.0)
    assert nobody.state(60.0) == "failed"


def test_the_clients_of_a_round_are_a_poisson_sample() -> None:
    """Their number varies as that of independent draws does, and all have one chance: the accountant counts on that."""
    terms, often, sizes = RoundTerms(target=100, goal=100, enough=1), torch.zeros(100), list[int]()
    for seed in range(300):
        selection = PoissonSelection(terms, 0.25, SeededRandomness(seed))
        drawn = [client for client in range(100) if selection.check_in(client)]
        often[drawn] += 1
        sizes.append(len(drawn))
    assert fmean(sizes) == pytest.approx(25, abs=1) and variance(sizes) == pytest.approx(100 * 0.25 * 0.75, rel=0.3)
    assert 45 < float(often.min()) <= float(often.max()) < 105, "75 rounds each, and four deviations of that"


def test_rounds_have_as_many_clients_as_chance_draws(task: Task) -> None:
    found = run(task, "fedavg + dp(noise=1)", clients=60, per_round=15, rounds=12, selection="20s").participation
    assert found
    counts = [one.chosen for one in found.rounds]
    assert 11 < sum(counts) / 12 < 19 and len(set(counts)) > 3, counts


def test_epsilon_finds_the_noise(task: Task) -> None:
    found = run(task, "fedavg + dp(delta=1e-4)", clients=30, per_round=6, rounds=4, epsilon=3.0).privacy
    assert found and found.noise and found.rate == 0.2 and found.rounds == 4 and found.limit == 3
    assert found.epsilon == epsilon(found.noise, 0.2, 4, 1e-4)
    assert 2.9 < found.epsilon <= 3.0


def test_the_run_ends_when_the_budget_is_spent(task: Task, tmp_path: Path) -> None:
    found = run(task, "fedavg + dp(noise=1, delta=1e-4)", clients=30, per_round=6, rounds=50, epsilon=3.0)
    told, rounds = found.privacy, found.participation.rounds  # type: ignore[union-attr]
    assert found.stopped == "privacy" and told and told.rounds == len(rounds) < 50
    assert epsilon(1.0, 0.2, told.rounds, 1e-4) <= 3.0 < epsilon(1.0, 0.2, told.rounds + 1, 1e-4)
    there = tmp_path / "there.csv"
    there.write_text("".join(f"{client},2m,9h\n" for client in range(30)))
    late = run(
        task, "fedavg + dp(noise=1, delta=1e-4)", clients=30, per_round=6, rounds=told.rounds + 1, epsilon=3.0,
        availability=there,
    )  # fmt: skip
    assert late.stopped == "privacy" and late.participation and late.participation.not_begun > 0
    without = run(task, "fedavg + dp(noise=1, delta=1e-4)", clients=30, per_round=6, rounds=3)
    assert without.stopped == "budget" and without.privacy and without.privacy.limit is None


def test_the_budget_survives_a_restart() -> None:
    """What is spent before a round is what a checkpoint keeps; a new service may spend only what is left."""
    dp = Dp(noise=1.0, delta=1e-4)
    first = PrivacySpending(dp.planned([10] * 30, 0.2, 50, 3.0), 50)
    left = first.budget.rounds_left(1.0, 0.2)
    kept = [first.spend() for _ in range(3)][-1]
    again = PrivacySpending(dp.planned([10] * 30, 0.2, 50, 3.0), 50)
    again.resume(msgspec.json.decode(msgspec.json.encode(kept)))
    assert again.budget == first.budget and again.budget.used == epsilon(1.0, 0.2, 3, 1e-4)
    done = 0
    while again.left:
        again.spend()
        done += 1
    assert done == left - 3 > 0 and again.budget.used <= 3.0
    with pytest.raises(CheckpointError, match="at delta=0.0001, not at"):
        PrivacySpending(Dp(noise=1.0).planned([10], 0.2, 50, 3.0), 50).resume(kept)
    again.resume(None)
    assert not again.left, "a service that was never kept goes on as it is"


def test_losses_of_clients_are_not_told(task: Task) -> None:
    for secure in ("", " + secagg"):
        found = run(task, f"fedavg{secure} + dp(noise=1)", rounds=2)
        assert found.participation and [one.loss for one in found.participation.rounds] == [None, None]
        assert all(math.isnan(row.get("loss") or math.nan) for row in found.history)


def test_an_abandoned_round_is_spent_all_the_same(task: Task, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("".join(f"{client},0s,20s\n" for client in range(6)))
    found = run(task, "fedavg + dp(noise=1)", compute="60s", availability=there)
    assert found.participation and found.participation.rounds[0].state == "abandoned"
    assert found.privacy and found.privacy.rounds == 1 and torch.equal(weights(found), full_batch_steps(task, 0))


def test_the_same_seed_gives_the_same_noise(task: Task) -> None:
    one, two, other = (run(task, "fedavg + dp(noise=1)", rounds=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(weights(one), weights(two)) and one.to_json() == two.to_json()
    assert not torch.equal(weights(one), weights(other))
    assert one.privacy and "seed" in one.privacy.randomness


@pytest.mark.parametrize(
    ("strategy", "given", "told"),
    [
        ("fedavg + dp", {}, "dp needs noise=…, such as dp"),
        ("fedavg", {"epsilon": 2.0}, "is a budget for noise: add '. dp'"),
        ("fedavg + dp(noise=0)", {"epsilon": 2.0}, "spends all privacy at once"),
        ("fedavg + dp(noise=-1)", {}, "dp.noise=-1.0.: a number above 0"),
        ("fedavg + dp(noise=1, clip=0)", {}, "a number above 0 is needed"),
        ("fedavg + dp(noise=1, cap=0)", {}, "at least 1 sample"),
        ("fedavg + dp(noise=1)", {"epsilon": -1.0}, "epsilon"),
        ("fedavg + dp(noise=1, delta=2)", {"epsilon": 1.0}, "delta=2"),
        ("fedavg + dp(noise=1)", {"least": 0.5}, "each client is drawn by chance"),
        ("fedavg + dp(noise=1)", {"over": 2.0}, "each client is drawn by chance"),
        ("fedbuff + dp(noise=1)", {}, "fedbuff . dp"),
        ("fedavg(aggregate=median) + dp(noise=1)", {}, "noise covers a sum of clipped updates"),
        ("fedavg + dp(noise=1)", {"timing_only": True}, "no numbers to hide"),
    ],
)
def test_what_noise_cannot_do_with_is_refused(strategy: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        run(regression(), strategy, **given)


def test_models_whose_buffers_noise_does_not_cover_are_refused() -> None:
    task = regression()
    object.__setattr__(task, "model", lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)).double())
    with pytest.raises(PlanError, match="float buffers.*GroupNorm"):
        run(task, "fedavg + dp(noise=1)")

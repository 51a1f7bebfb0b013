"""Federated runs in virtual time: what they compute, who takes part, who drops out, and what is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.data.client_shares import Even, divided
from covey.errors import PlanError
from covey.federated.local_training import LocalTraining
from covey.federated.messages import Configuration
from covey.observe.result import Result
from covey.run import federate
from covey.run.federated import federating
from covey.task import Task
from tests.federated.conftest import SAMPLES, regression, trained_by

AT_ONCE: dict[str, Any] = {"speed_spread": 0.0, "link_spread": 0.0, "runs": False}


def run(task: Task | str, strategy: str = "fedavg", clients: int = 6, **given: Any) -> Result:
    given = {"per_round": clients, "over": 1.0, "rounds": 1, **AT_ONCE, **given}
    return federate(task, strategy, clients, **given)


def weights(result: Result) -> Tensor:
    return torch.cat([value.reshape(-1) for value in result.weights.values()])


def full_batch_steps(task: Task, steps: int, lr: float = 0.1) -> Tensor:
    """The same model after plain gradient descent on all samples at once."""
    torch.manual_seed(0)
    model = task.model()
    x, y, _ = task.data.tensors  # type: ignore[union-attr]
    for _ in range(steps):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= lr * parameter.grad  # type: ignore[operator]
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()])


@pytest.mark.parametrize(
    "strategy", ["fedsgd", "fedavg(epochs=1, batch=all)", "fedopt(server=momentum, beta=0, batch=all)"]
)
@pytest.mark.parametrize("partition", ["even", "sizes(law=zipf)", "by(column=2)"])
def test_all_clients_with_one_full_batch_are_one_full_batch_step(task: Task, strategy: str, partition: str) -> None:
    clients = 3 if partition.startswith("by") else 6
    found = run(task, strategy, clients, rounds=3, partition=partition)
    assert found.participation.committed == 3  # type: ignore[union-attr]
    assert (weights(found) - full_batch_steps(task, 3)).abs().max() < 1e-12


def test_one_client_is_plain_training(task: Task) -> None:
    """One client with all samples: its steps are those of its own optimizer, and the mean is its model."""
    found = run(task, "fedavg(epochs=4, batch=all)", clients=1, rounds=2)
    assert (weights(found) - full_batch_steps(task, 8)).abs().max() < 1e-12


@pytest.mark.parametrize("strategy", ["fedavg(epochs=3)", "fedsgd", "fedbuff(epochs=3, buffer=6)"])
def test_every_pass_over_the_samples_counts(task: Task, strategy: str) -> None:
    found = run(task, strategy, rounds=2)
    assert found.participation
    reported = sum(one.samples for one in found.participation.rounds)
    assert found.samples == reported * (1 if strategy == "fedsgd" else 3) == found.history[-1]["samples"]


@pytest.mark.parametrize("together", [True, False])
def test_no_client_takes_over_the_momentum_of_another(
    task: Task, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of a fresh optimizer is one without momentum, in every round."""
    if not together:
        monkeypatch.setattr(federating, "GroupedWork", lambda kind, do: None)
    found = run(regression(momentum=0.9), "fedavg(batch=all)", rounds=3)
    assert (weights(found) - full_batch_steps(task, 3)).abs().max() < 1e-12


def test_fedsgd_keeps_the_momentum_of_the_service(task: Task) -> None:
    moved = weights(run(regression(momentum=0.9), "fedsgd", rounds=3))
    assert (moved - full_batch_steps(task, 3)).abs().max() > 1e-3


def test_clients_take_part_equally_often() -> None:
    """Of 60 clients that are always there, in 40 rounds of 10: about 7 times each, and nobody much more often."""
    found = run(regression(samples=120), clients=60, per_round=10, over=1.3, rounds=40, speed_spread=0.0).participation
    assert found and found.took_part >= 58 and max(found.times) <= 16, found.times


def test_several_epochs_differ_from_fedsgd(task: Task) -> None:
    sgd, avg = weights(run(task, "fedsgd")), weights(run(task, "fedavg(epochs=5, batch=all)"))
    assert (sgd - avg).abs().max() > 1e-3


def test_the_mean_is_weighted_by_samples(task: Task) -> None:
    """By hand, from what each client reports alone."""
    samples = divided(Even(), task.data, 7, seed=0)  # 60 = 4 * 9 + 3 * 8
    unequal = [torch.cat(samples[:5]).sort().values, samples[5], samples[6]]
    sizes = [len(one) for one in unequal]
    assert sizes == [44, 8, 8]
    data = regression()
    x, y, _ = data.data.tensors  # type: ignore[union-attr]
    site = torch.empty(SAMPLES, dtype=torch.long)
    for client, mine in enumerate(unequal):
        site[mine] = client
    data = regression()
    object.__setattr__(data, "data", torch.utils.data.TensorDataset(x, y, site))
    torch.manual_seed(0)
    module = data.model()
    params = torch.cat([value.detach().reshape(-1) for value in module.parameters()])
    expected = params.clone()
    training = LocalTraining(data, data.model(), data.data, _plan(), unequal, seed=0)
    for client, size in enumerate(sizes):
        given = Configuration(0, 0.0, _vector(params), _vector(params[:0], empty=True))
        expected += size / SAMPLES * torch.cat(training.train(client, given).update.parts)
    found = run(data, "fedavg(epochs=2)", 3, partition="by(column=2)")
    assert (torch.cat([found.weights["weight"].reshape(-1), found.weights["bias"]]) - expected).abs().max() < 1e-12


def _plan() -> Any:
    from covey.federated.local_training import LocalPlan

    return LocalPlan(epochs=2)


def _vector(numbers: Tensor, empty: bool = False) -> Any:
    from covey.vector import Vector

    return Vector(()) if empty else Vector([numbers.clone()])


def test_the_proximal_term_pulls_a_client_back(task: Task) -> None:
    first = full_batch_steps(task, 0)
    far, near, nowhere = (
        (weights(run(task, f"fedprox(mu={mu}, epochs=20, batch=all)")) - first).norm() for mu in (0, 1, 8)
    )
    assert far > 1.2 * near > 1.2 * 1.2 * nowhere
    plain = weights(run(task, "fedavg(epochs=20, batch=all)"))
    assert (plain - weights(run(task, "fedprox(mu=0, epochs=20, batch=all)"))).abs().max() == 0


@pytest.mark.parametrize("aggregate", ["median", "trimmed_mean, trim=0.2", "krum, faulty=1"])
def test_robust_aggregation_ignores_a_client_whose_data_is_poisoned(aggregate: str) -> None:
    task = regression()
    x, y, _ = task.data.tensors  # type: ignore[union-attr]
    site = torch.arange(SAMPLES) % 6
    y = torch.where((site == 5)[:, None], y * -1000.0, y)
    object.__setattr__(task, "data", torch.utils.data.TensorDataset(x, y, site))
    given = {"clients": 6, "partition": "by(column=2)", "rounds": 40, "least": 1.0}

    def error(result: Result) -> float:
        truth = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
        return float((result.weights["weight"].reshape(-1) - truth).abs().max())

    robust = run(task, f"fedavg(batch=all, aggregate={aggregate})", **given)
    assert error(robust) < 0.5 < 50 < error(run(task, "fedavg(batch=all)", **given))


def test_130_percent_are_invited_and_the_first_reports_count(task: Task) -> None:
    found = run(task, clients=30, per_round=10, over=1.3, rounds=6, speed_spread=1.0, link_spread=1.0).participation
    assert found and all((one.chosen, one.reports) == (13, 10) for one in found.rounds)
    assert sum(found.times.values()) == found.took_part <= 30
    assert sum(times * clients for times, clients in found.times.items()) == 60


def test_an_abandoned_round_leaves_the_model_as_it_was(task: Task, tmp_path: Path) -> None:
    """All clients go at second 40, long before their first report can have come."""
    there = tmp_path / "there.csv"
    there.write_text("".join(f"{client},0s,40s\n{client},100s,1h\n" for client in range(6)))
    given: dict[str, Any] = {"rounds": 1, "compute": "60s", "selection": "20s", "availability": there}
    lost = run(task, **given)
    assert lost.participation and lost.participation.rounds[0].state == "abandoned"
    assert lost.participation.rounds[0].dropped == 2, "with 4 of 6 left it is lost already"
    patient = run(task, **given, least=0.1).participation
    assert patient and patient.rounds[0].dropped == 6 and patient.drop_out == 1
    assert torch.equal(weights(lost), full_batch_steps(task, 0)) and lost.updates == lost.samples == 0
    later = run(task, **{**given, "rounds": 6}).participation
    states = [one.state for one in later.rounds]  # type: ignore[union-attr]
    assert states[0] == "abandoned" and "not begun" in states and states[-1] == "committed", states
    assert len(states) - states.count("not begun") == 6, "rounds that are not begun do not count"


def test_a_round_for_which_too_few_check_in_is_not_begun(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federating, "TRIES", 3)
    there = tmp_path / "there.csv"
    there.write_text("0,0s,9h\n1,0s,9h\n")
    found = run(task, rounds=3, selection="30s", availability=there)
    assert found.participation and found.participation.not_begun == 3 and found.participation.abandoned == 0
    (told,) = found.participation.rounds
    assert (told.state, told.tries, told.there) == ("not begun", 3, 2), "clients are counted, not their visits"
    assert found.seconds == pytest.approx(90, abs=0.1)
    assert torch.equal(weights(found), full_batch_steps(task, 0))


def test_slow_clients_are_not_waited_for_beyond_the_time_limit(task: Task) -> None:
    """The slowest take minutes; a round has the reports that came in time."""
    found = run(
        task, clients=40, per_round=20, rounds=4, over=1.0, least=0.5, compute="80s", reporting="30s",
        speed_spread=1.0,
    )  # fmt: skip
    assert found.participation
    assert all(one.took <= 95 for one in found.participation.rounds)
    assert any(10 <= one.reports < 20 for one in found.participation.rounds), found.participation.rounds
    assert found.notes.get("late reports", 0) or sum(one.extra for one in found.participation.rounds)


def test_selection_of_the_next_round_overlaps_reporting() -> None:
    """Without overlap a round's clients are found only when the one before is over."""
    task = regression(samples=400)
    given: dict[str, Any] = {"clients": 200, "per_round": 10, "rounds": 10, "compute": "3s", "speed_spread": 0.8}
    assert run(task, **given, overlap=True).seconds < 0.9 * run(task, **given, overlap=False).seconds


def test_every_chosen_client_gets_the_model_once_and_sends_it_once(task: Task) -> None:
    found = run(task, clients=20, per_round=10, over=1.0, least=1.0, rounds=5)
    model = 5 * 8  # four weights and a bias, in double precision
    assert found.traffic.by_role["aggregator->clients"] == 5 * 10 * (model + 8)
    assert found.traffic.by_role["clients->aggregator"] == 5 * 10 * (model + 8)


def test_a_report_of_nan_is_refused_and_the_others_count(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Any] = LocalTraining.train

    def train(self: LocalTraining, client: int, given: Configuration) -> Any:
        found = honest(self, client, given)
        if client == 2:
            found.update.mul_(float("nan"))
        return found

    trained_by(monkeypatch, train)
    found = run(task, rounds=2, least=0.5)
    assert found.participation and [one.reports for one in found.participation.rounds] == [5, 5]
    assert found.notes["refused reports"] == 2 and bool(weights(found).isfinite().all())


def test_fedbuff_updates_every_few_reports_and_stale_ones_count_less(task: Task) -> None:
    found = run(task, "fedbuff(buffer=4)", clients=30, per_round=12, rounds=30, speed_spread=1.0, compute="1s")
    assert found.updates == 30 and found.participation and found.participation.committed == 30
    assert all(one.reports == 4 for one in found.participation.rounds)
    assert found.staleness.max and found.staleness.max >= 2 and found.staleness.histogram[0] > 0
    truth = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    assert (found.weights["weight"].reshape(-1) - truth).abs().max() < 0.5


def test_fedbuff_with_all_clients_at_once_is_fedavg(task: Task) -> None:
    """As many reports as clients, none stale, equally many samples each: all come before one is through."""
    found = run(task, "fedbuff(buffer=6, batch=all)", clients=6, rounds=1, compute="60s")
    assert (weights(found) - full_batch_steps(task, 1)).abs().max() < 1e-12


@pytest.mark.parametrize(
    "strategy", ["fedsgd", "fedavg", "fedprox", "fedopt(rate=0.1)", "fedopt(server=yogi)", "fedbuff"]
)
def test_the_same_seed_gives_the_same_run(strategy: str) -> None:
    given: dict[str, Any] = {
        "clients": 40, "per_round": 8, "over": 1.3, "rounds": 4, "availability": "daily(share=0.5, swing=2)",
        "partition": "sizes(law=zipf)", "speed_spread": 0.7, "selection": "30m", "reporting": "1h",
    }  # fmt: skip
    one, two = (run(regression(), strategy, **given) for _ in range(2))
    assert one.to_json() == two.to_json() and torch.equal(weights(one), weights(two))
    other = run(regression(), strategy, **given, seed=1)
    assert one.seconds != other.seconds


def test_timing_only_takes_as_long_and_sends_as_much(task: Task) -> None:
    given: dict[str, Any] = {"clients": 50, "per_round": 10, "rounds": 5, "over": 1.3, "speed_spread": 0.5}
    real, timed = run(task, **given), run(task, **given, timing_only=True)
    assert (real.seconds, real.traffic.bytes) == (timed.seconds, timed.traffic.bytes)
    assert not timed.weights
    assert set(real.roles) == {"coordinator 0", "aggregator 0"}


def test_timing_only_has_more_clients_than_samples(task: Task) -> None:
    found = run(task, clients=5000, per_round=20, rounds=3, over=1.3, timing_only=True)
    assert found.participation and found.participation.committed == 3 and found.samples == 3 * 20 * task.batch_size


def test_the_rate_of_the_task_follows_the_rounds(task: Task) -> None:
    """A rate of 0 after half of the rounds: nothing moves any more."""
    halted = regression(rate=lambda progress: 1.0 if progress < 0.5 else 0.0)
    assert torch.equal(weights(run(halted, rounds=4)), weights(run(task, rounds=2)))


def test_batch_statistics_are_averaged_by_samples() -> None:
    task = Task(
        model=lambda: nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, 1)).double(),
        data=torch.utils.data.TensorDataset(
            torch.tensor([[0.0, 0.0], [2.0, 2.0], [10.0, 10.0], [12.0, 12.0], [11.0, 11.0], [11.0, 11.0]]).double(),
            torch.tensor([0, 0, 1, 1, 1, 1]),
        ),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.0),
        step=lambda model, batch: model(batch[0]).square().mean(), batch_size=4,
    )  # fmt: skip
    found = run(task, "fedavg(batch=all)", clients=2, partition="by(column=1)")
    assert found.weights["0.running_mean"].tolist() == pytest.approx([(2 * 1 + 4 * 11) / 6] * 2)


def test_a_target_ends_the_run(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    found = run("examples/digits.py", "fedavg(epochs=2)", clients=20, rounds=30, until="accuracy>=0.8", save=file)
    assert found.stopped == "target" and found.reached and len(found.participation.rounds) < 30  # type: ignore[union-attr]
    assert file.exists() and found.history[-1]["accuracy"] >= 0.8  # type: ignore[operator]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"strategy": "fedavgg"}, "no federated strategy 'fedavgg'; did you mean 'fedavg'"),
        ({"strategy": "fedavg(epoch=2)"}, "has no setting 'epoch'"),
        ({"strategy": "fedavg(epochs=0)"}, "epochs=0: it must be more than 0"),
        ({"strategy": "fedavg with mesh(stage=2)"}, "takes neither a topology nor a mesh"),
        ({"strategy": "fedavg + clip"}, "goes around codecs of workers"),
        ({"strategy": "fedavg(aggregate=krum, faulty=2)"}, "needs at least 7 reports"),
        ({"partition": "dirichlett"}, "no partition 'dirichlett'"),
        ({"partition": "dirichlet(alpha=-1)"}, "alpha must be more than 0"),
        ({"partition": "dirichlet"}, "holds no classes"),
        ({"availability": "nights"}, "use always, 'daily"),
        ({"availability": "missing.csv"}, "missing.csv.*there is no such file"),
        ({"availability": "daily(share"}, r"a closing|expected|\)"),
        ({"partition": "by(column=ward)"}, "no column of this name; it has 0, 1, 2"),
        ({"availability": "daily(share=0.9, swing=9)"}, "share=0.55 or less"),
        ({"per_round": 7}, "rounds of 7 clients: use 1 to 6"),
        ({"uplink": "fast"}, "uplink.*cannot read the rate"),
        ({"until": "accuracy>=0.9"}, "has no evaluate"),
        ({"timing_only": True, "until": "loss<=1"}, "trains nothing"),
        ({"timing_only": True, "score_every": 3}, "trains nothing: omit score_every"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(given: dict[str, Any], told: str) -> None:
    task = regression()
    if given.get("partition") == "dirichlet":
        object.__setattr__(task, "data", torch.utils.data.TensorDataset(*task.data.tensors[:2]))  # type: ignore[union-attr]
    with pytest.raises(PlanError, match=told):
        run(task, **given)


def test_clients_divide_the_data_of_a_task() -> None:
    with pytest.raises(PlanError, match="the task has no data: give data=…, which partition=… divides among"):
        run(replace(regression(), data=None))


def test_what_belongs_to_one_long_training_is_refused() -> None:
    with pytest.raises(PlanError, match=r"Task\(ema\) cannot be used with clients"):
        run(regression(ema=0.9))
    with pytest.raises(PlanError, match=r"Task\(preparers\) cannot be used with clients"):
        run(regression(transform=lambda sample: sample, preparers=2))


def test_batch_norm_that_would_get_one_sample_is_refused_before_anything_starts() -> None:
    model = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)).double()  # noqa: E731
    uneven, even = replace(regression(54), model=model), replace(regression(60), model=model)
    with pytest.raises(PlanError, match="needs 2 samples, and client 0, which has 9, would compute a batch of 1"):
        run(uneven)  # 9 samples are batches of 8 and 1
    with pytest.raises(PlanError, match="client 0, which has 10, would compute a batch of 1"):
        run(even, "fedavg(batch=3)")
    for strategy in ("fedsgd", "fedavg(batch=all)", "fedavg(batch=3)"):
        assert run(uneven, strategy).participation.committed == 1  # type: ignore[union-attr]
    assert run(even).participation.committed == 1  # type: ignore[union-attr]
    with pytest.raises(PlanError, match="which has 1, would compute a batch of 1"):
        run(replace(regression(6), model=model), "fedsgd")

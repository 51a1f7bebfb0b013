"""Secure sums inside federated rounds: exact whoever drops out, abandoned where too few are left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from covey.errors import PlanError, WireError
from covey.federated.aggregation import AggregationChoice
from covey.federated.local_training import LocalResult, LocalTraining
from covey.federated.messages import ClientReport, ComeBack, Configuration
from covey.federated.private import secure_client, simulated_parties
from covey.federated.private.report_numbers import ReportNumbers, ReportTerms
from covey.federated.private.secure_client import SecureVisit
from covey.message import Message
from covey.privacy.randomness import SystemSource
from covey.privacy.secagg import FixedPoint
from covey.privacy.secagg.fixed_point import largest_sum
from covey.privacy.secagg.messages import DeliveredShares, KeyList, SurvivorList, UnmaskRequest
from covey.program import Node
from covey.run.federated.private_run import PrivateRun
from covey.task import Task
from covey.vector import Vector
from tests.federated.conftest import regression, trained_by
from tests.federated.test_federated_runs import full_batch_steps, run, weights

ASKED = (None, KeyList, DeliveredShares, SurvivorList, UnmaskRequest)  # what a client answers in each phase
SECURE = "fedavg(batch=all) + secagg"


class QuantisedMean:
    """The mean of reports that are rounded as secure sums round them, without any masks."""

    def __init__(self, cap: int, clients: int) -> None:
        self.cap, self.fixed, self.total = cap, FixedPoint(8.0, largest_sum(32) // clients, 32), None

    def add(self, update: Vector, weight: float) -> None:
        numbers = Vector([*(part.double() for part in update.parts), torch.tensor([8.0], dtype=torch.float64)])
        rounded = self.fixed.quantise(numbers * (weight / self.cap)).long()
        self.total = rounded if self.total is None else self.total + rounded

    def result(self) -> Vector:
        assert self.total is not None
        *update, weight = (self.total.double() * (8.0 / self.fixed.levels)).split([5, 1])
        return Vector(part * (1 / (float(weight) / 8.0)) for part in update)


def test_the_secure_run_equals_the_quantised_plain_run_to_the_bit(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"rounds": 4, "partition": "sizes(law=zipf)"}
    secure = run(task, "fedavg(epochs=2) + secagg", **given)
    exact = run(task, "fedavg(epochs=2)", **given)
    cap = max(int(size) for size in _sizes(task, "sizes(law=zipf)"))
    monkeypatch.setattr(AggregationChoice, "make", lambda self, number: QuantisedMean(cap, 6))
    plain = run(task, "fedavg(epochs=2)", **given)
    assert torch.equal(weights(secure), weights(plain))
    assert 0 < (weights(secure) - weights(exact)).abs().max() < 1e-6
    assert secure.samples == exact.samples and secure.participation.committed == 4  # type: ignore[union-attr]
    losses = [[one.loss for one in found.participation.rounds] for found in (secure, exact)]  # type: ignore[union-attr]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def _sizes(task: Task, partition: str) -> list[int]:
    from covey.data.client_shares import divided
    from covey.run.federated.federated_options import read_partition

    return [len(one) for one in divided(read_partition(partition), task.data, 6, 0)]


class Silent(Exception):
    """A client falls silent."""


def dropping(monkeypatch: pytest.MonkeyPatch, drops: dict[int, int], how: str) -> dict[int, LocalResult]:
    """Let clients drop out when they should answer in a phase; what every client has trained."""
    trained: dict[int, LocalResult] = {}
    honest: Callable[..., LocalResult] = LocalTraining.train

    def train(self: LocalTraining, client: int, given: Configuration) -> LocalResult:
        trained[client] = honest(self, client, given)
        return trained[client]

    class Dropping(SecureVisit):
        async def report(self) -> ComeBack:
            try:
                if drops.get(self.node.rank) == 0:
                    self.fail()
                return await super().report()
            except Silent:
                await self.node.sleep(9_000)
                return await self.node.receive(ComeBack)

        def fail(self) -> None:
            raise Silent if how == "silent" else WireError("a client that has enough of it")

        def answer(self, mine: Any, how: Any, asked: Message) -> Message:
            phase = drops.get(self.node.rank)
            if phase and isinstance(asked, ASKED[phase]):  # type: ignore[arg-type]
                self.fail()
            return super().answer(mine, how, asked)

    trained_by(monkeypatch, train)
    monkeypatch.setattr(secure_client, "SecureVisit", Dropping)
    return trained


@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize(("how", "lost"), [("silent", 1), ("silent", 3), ("withdraws", 2), ("withdraws", 3)])
def test_whoever_drops_out_in_any_phase_the_sum_is_exact_or_the_round_abandoned(
    phase: int, how: str, lost: int, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    if phase == 0 and how == "withdraws":
        pytest.skip("who does not advertise keys has nothing to withdraw from")
    trained = dropping(monkeypatch, dict.fromkeys(range(lost), phase), how)
    found = run(task, SECURE, least=0.5, selection="20s", reporting="60s")
    assert found.participation
    (told,) = found.participation.rounds
    first = full_batch_steps(task, 0)
    if lost == 3:  # 3 of 6 are less than 2/3
        assert told.state == "abandoned" and torch.equal(weights(found), first) and found.samples == 0
        return
    survivors = range(lost if phase <= 2 else 0, 6)  # masked numbers that have come count, whoever leaves later
    expected = QuantisedMean(10, 6)
    for client in survivors:
        expected.add(trained[client].update, trained[client].samples)
    assert (told.state, told.reports) == ("committed", len(survivors))
    assert torch.equal(weights(found), first + torch.cat(expected.result().parts))
    waits = {0: 20, 1: 20, 2: 60, 3: 20, 4: 20}[phase] if how == "silent" else 0
    assert waits <= told.took < waits + 5, "each phase waits for its own time, and no longer"


def test_a_client_whose_time_ends_in_a_secure_round_is_not_waited_for(task: Task, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("0,0s,30s\n" + "".join(f"{client},0s,9h\n" for client in range(1, 6)))
    found = run(task, SECURE, compute="60s", availability=there, least=0.5).participation
    assert found and (found.rounds[0].state, found.rounds[0].reports, found.rounds[0].dropped) == ("committed", 5, 1)


def test_those_who_are_too_late_are_told_to_go_and_the_next_round_has_them_again(task: Task) -> None:
    """10 of 13 masked reports make a round; the masks of the other three are taken out of the sum."""
    found = run(
        task, SECURE, clients=20, per_round=10, over=1.3, rounds=8, speed_spread=1.5, compute="20s", link_spread=1.0
    )
    assert found.participation and [one.state for one in found.participation.rounds] == ["committed"] * 8
    assert all(one.reports == 10 and one.chosen == 13 for one in found.participation.rounds)
    truth = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    assert (found.weights["weight"].reshape(-1) - truth).abs().max() < 1.5


def test_no_report_of_anybody_is_sent_and_no_masked_one_looks_like_it(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    from covey.engines.virtual.guests.guest_tally import GuestTeller

    told = GuestTeller.sent

    def hear(self: GuestTeller, at: float, sender: Any, to: Any, message: Message, size: int) -> None:
        sent.append(message)
        told(self, at, sender, to, message, size)

    monkeypatch.setattr(GuestTeller, "sent", hear)
    run(task, "fedavg(batch=all) + secagg(neighbours=2)", rounds=2)
    kinds = {type(message).__name__ for message in sent}
    assert ClientReport.__name__ not in kinds and "MaskedInput" in kinds
    masked = [message.numbers.parts[0] for message in sent if type(message).__name__ == "MaskedInput"]  # type: ignore[attr-defined]
    assert len(masked) == 12
    spread = torch.stack(masked).double().div(2**31)
    assert spread.abs().mean() > 0.35, "uniform over the ring; of the numbers themselves it is far below 0.1"


def test_keys_shares_and_lists_count_as_traffic(task: Task) -> None:
    """Of each client about its numbers, and for each neighbour a box and two shares."""
    given: dict[str, Any] = {"clients": 16, "rounds": 1}
    plain, few, all_of = (
        run(task, f"fedavg{spec}", **given).traffic.by_role["clients->aggregator"]
        for spec in ("", " + secagg(neighbours=4)", " + secagg")
    )
    boxes = 12 + 2 * 66 + 16  # a nonce, two shares of 521 bits, a tag
    assert all_of - few > 16 * 11 * boxes, "15 neighbours instead of 4"
    assert few > 16 * (7 * 4 + 4 * boxes) > plain


def test_batch_statistics_travel_in_the_sum() -> None:
    def bn_task() -> Task:
        return Task(
            model=lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).double(),
            data=torch.utils.data.TensorDataset(torch.sin(torch.arange(80.0)).reshape(40, 2).double()),
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
            step=lambda model, batch: model(batch[0]).square().mean(), batch_size=4,
        )  # fmt: skip

    plain, secure = (run(bn_task(), spec, clients=4, rounds=2) for spec in ("fedavg", "fedavg + secagg"))
    assert set(plain.weights) == set(secure.weights)
    for name, value in plain.weights.items():
        assert torch.allclose(value.double(), secure.weights[name].double(), atol=1e-6), name


def test_a_client_with_nan_withdraws_and_the_others_count(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., LocalResult] = LocalTraining.train

    def train(self: LocalTraining, client: int, given: Configuration) -> LocalResult:
        found = honest(self, client, given)
        if client == 2:
            found.update.mul_(float("nan"))
        return found

    trained_by(monkeypatch, train)
    found = run(task, SECURE, rounds=2, least=0.5)
    assert found.participation and [one.reports for one in found.participation.rounds] == [5, 5]
    assert bool(weights(found).isfinite().all())


def test_a_client_that_sends_what_is_wrong_is_refused_and_the_others_count(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cheating(SecureVisit):
        def answer(self, mine: Any, how: Any, asked: Message) -> Message:
            made = super().answer(mine, how, asked)
            if self.node.rank == 1 and isinstance(asked, DeliveredShares):
                made.numbers = Vector([torch.zeros(3, dtype=torch.int32)])  # type: ignore[attr-defined]
            return made

    monkeypatch.setattr(secure_client, "SecureVisit", Cheating)
    found = run(task, SECURE, rounds=2, least=0.5)
    assert found.notes["refused reports"] == 2
    assert found.participation and [one.reports for one in found.participation.rounds] == [5, 5]


def test_the_result_says_where_chance_came_from(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = run(task, SECURE)
    assert seeded.privacy and seeded.privacy.secure_sums and "seed" in seeded.privacy.randomness
    assert seeded.privacy.epsilon is None
    made = PrivateRun.of
    monkeypatch.setattr(PrivateRun, "of", staticmethod(lambda asked: made(asked, SystemSource())))
    real = run(task, SECURE)
    assert real.privacy and real.privacy.randomness == "operating system"
    assert torch.equal(weights(real), weights(seeded)), "masks and keys change nothing of the sum"


def test_a_run_ends_before_it_spends_another_round_that_clients_decline(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = simulated_parties.simulated_party
    monkeypatch.setattr(
        simulated_parties, "simulated_party", lambda clients, chance: replace(made(clients, chance), least=6)
    )
    given: dict[str, Any] = {"rounds": 3, "epsilon": 8.0, "over": 1.3, "least": 0.8, "score_every": 9}
    found = run(task, "fedavg + secagg + dp(delta=1e-3)", **given)
    assert found.stopped == "declined" and found.uncommitted and found.privacy and found.privacy.rounds == 1
    assert found.participation and found.privacy.smallest_sum is None
    (only,) = found.participation.rounds
    assert only.declined == 6 and only.why.startswith("6 of 6 chosen clients declined its terms; 0 clients sent keys")
    whole = run(task, "fedavg + secagg(threshold=1) + dp(delta=1e-3)", **given)
    assert whole.stopped == "budget" and whole.privacy and whole.privacy.smallest_sum == 6
    assert whole.participation and whole.participation.committed == 3


def test_the_same_seed_gives_the_same_secure_run(task: Task) -> None:
    given: dict[str, Any] = {"clients": 12, "per_round": 6, "over": 1.3, "rounds": 3, "speed_spread": 0.7}
    one, two = (run(task, "fedavg + secagg(neighbours=4)", **given) for _ in range(2))
    assert one.to_json() == two.to_json() and torch.equal(weights(one), weights(two))


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("fedbuff + secagg", "fedbuff . secagg: its updates have no rounds"),
        ("fedavg(aggregate=median) + secagg", "aggregate=median . secagg: nobody sees single reports"),
        ("fedavg(aggregate=krum) + secagg", "aggregate=krum . secagg"),
        ("fedavg + secagg + topk", "topk remembers from step to step"),
        ("fedavg + secagg + sketch", "sketch and secagg: masks cover whole updates"),
        ("fedavg(update=mask) + secagg", "update=mask and secagg"),
        ("fedavg + esgd + secagg", "esgd and secagg"),
        ("fedavg + secag", "no addition to fedavg 'secag'; did you mean 'secagg'"),
        ("fedavg + secagg + secagg", "secagg is there twice"),
        ("fedavg + secagg(threshold=1/2)", "above 1/2"),
        ("fedavg + secagg(threshold=x)", "a number above 1/2, such as 2/3"),
        ("fedavg + secagg(neighbours=1)", "all, or at least 2"),
        ("fedavg + secagg(clip=0)", "a number above 0"),
        ("fedavg + secagg(bits=16)", "bits must be 32 or 64"),
    ],
)
def test_what_cannot_be_combined_with_secure_sums_is_refused(strategy: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        run(regression(), strategy, clients=8)


def test_one_client_is_no_sum(task: Task) -> None:
    with pytest.raises(PlanError, match="a sum has from 2"):
        run(task, SECURE, clients=6, per_round=1)
    with pytest.raises(PlanError, match="no numbers to hide"):
        run(task, SECURE, timing_only=True)


@pytest.mark.parametrize(
    ("secure", "given", "reports"),
    [
        ("secagg(threshold=0.9)", {"per_round": 4, "over": 1.3}, 6),
        ("secagg(threshold=1)", {"per_round": 4, "over": 1.3}, 6),
        ("secagg", {"per_round": 4, "over": 2.0}, 6),
        ("secagg", {"per_round": 1, "over": 1.3}, 2),
    ],
)
def test_a_secure_round_waits_for_as_many_reports_as_open_its_sum(
    task: Task, secure: str, given: dict[str, Any], reports: int
) -> None:
    """`per_round` reports are fewer than the share of the chosen clients that the threshold asks for."""
    found = run(task, f"fedavg + {secure}", clients=8, rounds=2, **given).participation
    assert found and [(one.state, one.reports) for one in found.rounds] == [("committed", reports)] * 2


def test_a_secure_round_that_is_abandoned_says_why(task: Task, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("0,0s,30s\n" + "".join(f"{client},0s,9h\n" for client in range(1, 6)))
    found = run(task, "fedavg + secagg(threshold=1)", compute="60s", availability=there, rounds=1).participation
    assert found and "5 clients sent masked numbers; 6 are needed" in found.rounds[0].why


@pytest.mark.parametrize(("away", "state"), [(1, "committed"), (2, "abandoned")])
def test_a_secure_round_counts_with_as_many_reports_as_are_enough(
    task: Task, tmp_path: Path, away: int, state: str
) -> None:
    """Of 8 clients, 5 could open the sum; 80 % of 8 reports are enough, which are 7."""
    there = tmp_path / "there.csv"
    there.write_text("".join(f"{client},0s,{'30s' if client < away else '9h'}\n" for client in range(8)))
    given: Any = {"clients": 8, "per_round": 8, "over": 1.0, "compute": "60s", "availability": there, "rounds": 1}
    found = run(task, "fedavg + secagg(threshold=0.51)", **given).participation
    assert found and found.rounds[0].state == state


def given_otherwise(message: Message, client: int, which: str) -> Message:
    """What a service says that wants the sum to be the report of client 0."""
    if which == "terms" and client and isinstance(message, ReportTerms):
        return msgspec.structs.replace(message, most=1e30)  # the numbers of all others round to 0
    if which == "weights" and client and isinstance(message, Configuration):
        return msgspec.structs.replace(message, params=message.params.map(torch.zeros_like))
    if which == "rate" and client and isinstance(message, Configuration):
        return msgspec.structs.replace(message, share=1.0)  # at the end of training steps may be as small as 0
    return message


@pytest.mark.parametrize("which", ["nothing", "terms", "weights", "rate"])
def test_a_service_that_gives_clients_different_things_opens_no_sum(
    task: Task, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """It would learn one client's report from a sum to which the others add what it knows (Pasquini et al. 2022)."""
    honest = Node.send

    def send(self: Node, to: Any, body: Message, **more: Any) -> Any:
        return honest(self, to, given_otherwise(body, to.rank, which) if to.role == "client" else body, **more)

    monkeypatch.setattr(Node, "send", send)
    found = run(task, SECURE, selection="20s").participation
    assert found
    (told,) = found.rounds
    assert told.state == ("committed" if which == "nothing" else "abandoned")
    assert (told.reports, told.dropped) == ((6, 0) if which == "nothing" else (0, 5)), "all but client 0 withdraw"


def test_rounding_makes_no_report_longer_than_the_clip_norm() -> None:
    """10,000 numbers of a hundredth, in 151 levels: each is 1.51 levels, and rounding would make it 2."""
    numbers = ReportNumbers(ReportTerms(most=1.0, cap=0.0, clip=1.0, loss=False), 151, 32)
    done = LocalResult(Vector([torch.full((10_000,), 0.01)]), Vector(()), 8, 0.5)
    update = numbers.of(done, Vector(()))[:10_000].double() / 151
    assert 0.5 < float(update.norm()) <= 1.0

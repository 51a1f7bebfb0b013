"""Reports that come too late are nobody's failure; clients whose reports are refused again and again must go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from covey.engines.service.dialled_link import TurnedAway
from covey.engines.service.guest_keys import KeyFolder
from covey.engines.transport.refusals import Refusals
from covey.federated.aggregation import WeightedMean
from covey.federated.aggregator import Aggregator, ReportSums
from covey.federated.messages import AGGREGATOR, COORDINATOR, ClientReport, ComeBack, RoundBegin
from covey.federated.pace_steering import PaceSteering
from covey.federated.rounds import Reporting, RoundTerms
from covey.message import Address
from covey.run import federate
from covey.run.federated.enrolled_clients import MOST_REFUSED, EnrolledClients, RefusedReports
from covey.task import Task
from covey.vector import Vector
from tests.federated.real_run import real_run
from tests.federated.test_federated_runs import weights
from tests.federated.test_port_limits import ME, PortAlone
from tests.federated.test_service_port import answer, chosen, report

TERMS = RoundTerms(target=2, goal=3, enough=1)


def reported(client: int, number: int) -> ClientReport:
    made = ClientReport(number, 5, 0.1, Vector([torch.ones(3)]), Vector(()))
    return msgspec.structs.replace(made, sender=Address("client", client))


def test_a_report_of_a_round_that_is_over_is_late_and_one_of_another_round_is_wrong() -> None:
    model = Vector([torch.zeros(3)])
    begin = RoundBegin(4, 0.0, [0, 1, 2], 0.0, 0.0, model, Vector(()))
    reporting, sums = Reporting(TERMS, begin.clients, 0.0), ReportSums(WeightedMean())
    aggregator = Aggregator(None, TERMS, lambda number: WeightedMean(), lambda client: 9)  # type: ignore[arg-type]
    for client, number, why in (
        (7, 3, ""), (7, 5, "it is of round 5"), (0, 3, "it is of round 3"), (7, 4, "was not chosen"), (0, 4, ""),
    ):  # fmt: skip
        found = aggregator.take(reported(client, number), begin, reporting, sums)
        assert (why in found) if why else not found, (client, number, found)
    assert sums.extra == 4 and sums.clients == [0]


def test_a_late_report_of_fedbuff_is_not_refused(task: Task) -> None:
    """Clients need about 12 s and 8 are granted; whoever is late hears only when to come again."""
    given: dict[str, Any] = {"speed_spread": 0.4, "latency": "1s", "compute": "10s", "runs": False}
    found = federate(task, "fedbuff(buffer=2)", 6, per_round=2, rounds=3, reporting="13s", **given)
    assert found.participation and sum(one.extra for one in found.participation.rounds) > 0, "some are late"
    assert "refused reports" not in found.notes


def test_clients_are_counted_once_however_often_they_check_in() -> None:
    steering = PaceSteering(clients=40, terms=RoundTerms(target=10, goal=13, enough=8), needed=13, seconds=10.0)
    assert steering.there == 0, "nobody has come yet"
    for number in range(30):
        steering.came(now=0.1 * number, client=number % 3)
    assert steering.there == 3
    steering.came(now=steering.first() + 60.0, client=1)
    assert steering.there == 3, "of the cycle before, until as many have come in this one"


@pytest.mark.parametrize("strategy", ["fedavg", "fedbuff(buffer=3)"])
def test_the_model_that_reaches_the_target_is_that_of_the_last_update(task: Task, strategy: str) -> None:
    """No round begins between a model and its score."""

    def size(model: torch.nn.Module) -> dict[str, float]:
        return {"size": sum(float(one.detach().abs().sum()) for one in model.parameters())}

    scored, given = replace(task, evaluate=size), {"per_round": 6, "over": 1.0, "runs": False}
    reached = federate(scored, strategy, 6, rounds=20, until="size>=3", **given)  # type: ignore[arg-type]
    assert reached.stopped == "target" and 1 < reached.updates < 20
    assert reached.participation and reached.participation.committed == reached.updates
    again = federate(scored, strategy, 6, rounds=reached.updates, **given)  # type: ignore[arg-type]
    if strategy == "fedavg":  # what fedbuff's clients train at the end depends on how many updates are to come
        assert torch.equal(weights(reached), weights(again))
    assert reached.history[-1]["samples"] == reached.samples


def watched(tmp_path: Path) -> tuple[RefusedReports, Refusals]:
    folder, refusals = KeyFolder(tmp_path / "keys"), Refusals()
    for name in ("alice", "bob"):
        folder.add(name, 5, tmp_path / f"{name}.key")
    return RefusedReports(refusals, EnrolledClients(folder)), refusals


@pytest.mark.parametrize("sender", [AGGREGATOR, COORDINATOR])
def test_a_client_is_unwanted_after_several_refused_reports_in_a_row(tmp_path: Path, sender: Address) -> None:
    heard, refusals = watched(tmp_path)
    alice, bob = Address("client", 0), Address("client", 1)

    def told(client: Address, refused: str) -> None:
        heard.delivered(0.0, client, sender, reported(client.rank, 1), 0)
        heard.sent(0.0, sender, client, ComeBack(0.0, 0.0, refused), 0)

    for _ in range(MOST_REFUSED - 1):
        told(alice, "it has no samples")
        told(bob, "it has no samples")
    told(bob, "")
    heard.sent(0.0, COORDINATOR, alice, ComeBack(0.0, 0.0), 0)  # it was not needed: that says nothing of its reports
    told(alice, "it has no samples")
    told(bob, "it has no samples")
    assert heard.unwanted == {alice: "5 of its reports in a row were refused, the last: it has no samples"}
    assert sum(refusals.counts.values()) == 2 * MOST_REFUSED, "the one that counts, or was late, is no failure"


def test_a_guest_that_is_sent_off_hears_why_and_is_cut_off(tmp_path: Path) -> None:
    alone = PortAlone(tmp_path)
    try:
        link = alone.link()
        alone.port.send_off(ME, "its reports are refused again and again")
        assert ME not in alone.port.present
        with pytest.raises(TurnedAway, match="refused again and again"):
            link.poll(100.0)
        alone.port.send_off(ME, "nobody is there any more")
        for _ in range(2000):
            alone.port.poll(0.05)
            if not alone.port.connections:
                return
        raise AssertionError("it was not cut off")
    finally:
        for link in alone.links:
            link.close()
        alone.port.close()


@pytest.mark.full
def test_a_service_sends_a_client_away_whose_reports_it_refuses_again_and_again(tmp_path: Path) -> None:
    with real_run(tmp_path, 2, samples=10) as run:
        run.serve(per_round=1, rounds=100)
        for _ in range(MOST_REFUSED):
            link = run.dial(0)
            given = chosen(link)
            link.send(given.sender, report(given, samples=11))
            answered = answer(link, 100)
            assert isinstance(answered, ComeBack) and "counts 11 samples" in answered.refused
            link.close()
        with pytest.raises(TurnedAway, match="5 of its reports in a row were refused"):
            run.dial(0)
        run.dial(1).close()

"""Secure sums, noise and forms of reports with real clients: what simulated ones do, with chance from the system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from covey.cli import app
from covey.data.client_shares import divided
from covey.data.shards import Shards
from covey.engines.interrupt import Interrupt
from covey.engines.service.dialled_link import TurnedAway
from covey.engines.service.greeting import Welcome
from covey.engines.service.guest_keys import KeyFolder, read_key
from covey.engines.service.role_loop import LoopRole, RoleLoop
from covey.errors import PlanError, WireError
from covey.federated.coordinator import FederatedService, coordinating
from covey.federated.local_training import LocalPlan, LocalTraining
from covey.federated.messages import COORDINATOR, CheckIn, Configuration
from covey.federated.pace_steering import PaceSteering
from covey.federated.private.noisy_mean import PrivacySpending
from covey.federated.private.private_settings import Dp
from covey.federated.private.report_numbers import ReportNumbers, ReportTerms
from covey.federated.rounds import RoundTerms
from covey.federated.server_steps import plain
from covey.message import Address, stamped
from covey.model import build
from covey.model.flat import Flat
from covey.observe.instruments import Instrument
from covey.observe.membership import RoundLog
from covey.privacy.secagg.messages import KeyList, SumTerms
from covey.run import federate
from covey.run.federated.client_identities import enrolled_party, identified, read_identities, told_to_all
from covey.run.federated.enrolled_clients import EnrolledClients
from covey.run.federated.federated_options import RoundOptions, read_partition, read_strategy
from covey.run.federated.joining import JoinedClient
from covey.run.federated.service_request import known_identities, service_request
from covey.run.options import Options
from covey.task import Task
from covey.vector import Vector
from tests.federated.conftest import regression
from tests.federated.real_run import RealRun, awaited, ended, four, real_run
from tests.federated.test_secure_rounds import QuantisedMean

__all__ = ["four"]

ROUNDS = 2
ONE = RoundTerms(target=1, goal=1, enough=1)


@pytest.fixture
def fifteen(tmp_path: Path) -> Iterator[RealRun]:
    """Four clients that are enrolled with the 15 samples that each has."""
    with real_run(tmp_path, 4, samples=15) as run:
        yield run


def quantised(task: Task, rounds: int, clients: int = 4) -> torch.Tensor:
    """The weights after rounds of clients whose updates are rounded as in secure sums, and added up without masks."""
    shares = divided(read_partition("even"), task.data, clients, 0)
    replica = Flat(build.model(task, 0))
    for number in range(rounds):
        total = QuantisedMean(15, clients)
        for client, numbers in enumerate(shares):
            own = torch.utils.data.TensorDataset(*(part[numbers] for part in task.data.tensors))
            training = LocalTraining(
                task, build.model(task, 0), own, LocalPlan(epochs=2), {client: torch.arange(len(numbers))}, 0
            )
            given = Configuration(number, number / rounds, replica.params.map(torch.clone), Vector(()))
            total.add(training.train(client, given).update, len(numbers))
        replica.params.add_(total.result())
    return torch.cat([part.reshape(-1) for part in replica.params.parts])


def test_a_secure_run_of_real_clients_equals_the_quantised_plain_run_to_the_bit(fifteen: RealRun) -> None:
    listed = fifteen.identities()
    service = fifteen.serve(
        per_round=4, rounds=ROUNDS, strategy="fedavg(epochs=2) + secagg", identities=listed,
        save=fifteen.folder / "model.safetensors",
    )  # fmt: skip
    clients = [fifteen.join(client, identities=listed) for client in range(4)]
    assert ended(service, 300) == 0 and [ended(client, 300) for client in clients] == [0] * 4
    saved = load_file(fifteen.folder / "model.safetensors")
    found = torch.cat([saved["weight"].reshape(-1), saved["bias"]])
    assert torch.equal(found, quantised(regression(), ROUNDS))
    told = fifteen.result()
    assert told["privacy"]["secure_sums"] and told["privacy"]["randomness"] == "operating system"
    assert [one["reports"] for one in told["participation"]["rounds"]] == [4] * ROUNDS and not told["failures"]


def test_a_client_that_dies_after_it_has_shown_its_keys_leaves_the_sum_of_the_others(fifteen: RealRun) -> None:
    """What it does by hand is what its process would do until it is killed."""
    listed = fifteen.identities()
    service = fifteen.serve(per_round=4, least=0.5, rounds=1, strategy="fedavg + secagg", identities=listed)
    clients = [fifteen.join(client, identities=listed) for client in range(3)]
    party, heard = enrolled_party(fifteen.key(3), listed, 2), list[Any]()
    party = replace(party, context=told_to_all(read_strategy("fedavg + secagg")[1], 0))

    def came(kind: type) -> Any:
        heard.extend(link.poll(0.2))
        return next((one for one in heard if isinstance(one, kind)), None)

    with closing(fifteen.dial(3)) as link:
        link.send(COORDINATOR, CheckIn())
        awaited(lambda: came(SumTerms), 300, "the terms of the sum")
        given = came(Configuration)
        link.send(given.sender, party.join(3, given, came(ReportTerms), came(SumTerms)).advertise())
        awaited(lambda: came(KeyList), 300, "everybody's keys")
    assert ended(service, 300) == 0 and [ended(client, 300) for client in clients] == [0] * 3
    (first,) = fifteen.result()["participation"]["rounds"]
    assert (first["reports"], first["dropped"], first["state"]) == (3, 1, "committed")


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [
        "fedavg(epochs=2) + qsgd", "fedavg(epochs=2) + sketch(bits=8, keep=0.5)", "fedavg(epochs=2) + esgd",
        "fedavg(epochs=2, update=mask, keep=0.5)", "fedavg(epochs=2, update=low_rank, rank=1)",
    ],
)  # fmt: skip
def test_forms_of_reports_with_real_clients_are_those_of_simulated_ones(four: RealRun, strategy: str) -> None:
    service = four.serve(per_round=4, rounds=ROUNDS, save=four.folder / "model.safetensors", strategy=strategy)
    clients = [four.join(client) for client in range(4)]
    assert ended(service, 300) == 0 and [ended(client, 300) for client in clients] == [0] * 4
    simulated = federate(
        regression(), strategy, 4, per_round=4, rounds=ROUNDS, over=1.0, runs=False, speed_spread=0.0
    )
    assert not four.result()["failures"]
    for name, found in load_file(four.folder / "model.safetensors").items():
        assert torch.allclose(found, simulated.weights[name], rtol=0, atol=1e-12)


@pytest.mark.full
def test_the_budget_of_noise_survives_the_death_of_a_service(four: RealRun) -> None:
    """It is killed amid a round, which is spent all the same: one round fewer is left."""
    noisy: dict[str, Any] = {
        "per_round": 4, "rounds": 4, "over": 1.3, "selection": "2s", "strategy": "fedavg + dp(clip=0.5, delta=1e-3)",
        "epsilon": 8.0, "checkpoint": four.folder / "kept",
    }  # fmt: skip
    first = four.serve(**noisy)
    with closing(four.dial(0)) as link:
        link.send(COORDINATOR, CheckIn())
        awaited(lambda: any(isinstance(one, Configuration) for one in link.poll(1)), 300, "the model")
        first.kill()
        first.join()
    port = four.port
    again = four.serve(listen=port, **noisy)
    clients = [four.join(client) for client in range(4)]
    assert ended(again, 300) == 0 and [ended(client, 300) for client in clients] == [0] * 4
    told = four.result()
    assert told["stopped"] == "privacy" and told["privacy"]["rounds"] == 4 and told["privacy"]["epsilon"] <= 8
    assert told["participation"]["committed"] == 3 and told["privacy"]["randomness"] == "operating system"


def test_a_round_is_kept_as_spent_before_its_clients_are_configured() -> None:
    """A service that dies amid the round has spent it, whatever it had kept before."""
    seen = list[tuple[str, int]]()
    privacy = Dp(noise=1.0, delta=1e-3).planned([15], 1.0, 3, 8.0)
    role = LoopRole(COORDINATOR, Random(0), steps=1)

    def spent() -> int:
        kept = role.memories.values().get("privacy")
        return sum(rounds for _, _, rounds in kept["spent"]) if kept else 0

    role.between = lambda role: seen.append(("kept", spent()))
    steering = PaceSteering(1, ONE, 1)
    service = FederatedService(1, ONE, plain(), steering, RoundLog(1), spending=PrivacySpending(privacy, 3))
    replica = build.replica(regression(), COORDINATOR, False, Shards(8, 1, 8, 0), 1)
    loop = RoleLoop(lambda role, effect: seen.append((type(effect.body).__name__, spent())), Instrument())
    with closing(loop):
        loop.begin(role, coordinating(service)(role.node, replica))
        loop.run()
        loop.deliver(COORDINATOR, stamped(CheckIn(), Address("client", 0), copy=False))
        loop.run()
    assert seen == [("kept", 0), ("kept", 1), ("RoundBegin", 1)]


# -- identities -------------------------------------------------------------------------------------------------------


def enrolled(folder: Path, *names: str) -> KeyFolder:
    keys = KeyFolder(folder / "keys")
    for name in names:
        keys.add(name, 15, folder / f"{name}.key")
    return keys


def test_an_identity_is_made_once_and_its_secret_stays_in_the_key(tmp_path: Path) -> None:
    enrolled(tmp_path, "alice")
    file = tmp_path / "alice.key"
    shown = CliRunner().invoke(app, ["federate", "keys", "identity", str(file)])
    assert shown.exit_code == 0 and shown.output.strip() == identified(file) and identified(file).startswith("0 alice ")
    secret = read_key(file).identity
    assert len(secret) == 64 and secret not in shown.output and file.stat().st_mode & 0o777 == 0o600
    file.write_text(file.read_text().replace(secret, secret[:-1] + "x"))
    with pytest.raises(WireError, match="not an identity"):
        read_key(file)


def test_a_list_of_identities_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    enrolled(tmp_path, "alice", "bob")
    alice, bob = (identified(tmp_path / f"{name}.key") for name in ("alice", "bob"))
    file = tmp_path / "identities"
    for text, why in (
        (f"{alice}\n{alice}", "line 2: client 0, or its identity, is there twice"),
        (f"{alice}\n1 bob {alice.split()[2]}", "is there twice"), ("# none\n\n0 alice ab", "line 3: write NUMBER NAME"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(PlanError, match=why):
            read_identities(file)
    with pytest.raises(PlanError, match="there is no file"):
        read_identities(tmp_path / "nowhere")
    file.write_text(f"0 alice {bob.split()[2]}\n")
    with pytest.raises(PlanError, match="another line of alice than this key"):
        enrolled_party(read_key(tmp_path / "alice.key"), file, 2)
    file.write_text(f"# all\n{alice}\n")
    with pytest.raises(PlanError, match="another line of bob"):
        enrolled_party(read_key(tmp_path / "bob.key"), file, 2)


def asked(tmp_path: Path, strategy: str, epsilon: float | None = None, identities: Path | None = None) -> Any:
    (tmp_path / "task.py").write_text("from tests.federated.conftest import regression\n\ntask = regression()\n")
    clients = EnrolledClients(KeyFolder(tmp_path / "keys"))
    given, waits = Options(engine="simulated"), RoundOptions(per_round=2)
    found = service_request(str(tmp_path / "task.py"), strategy, clients, 10, waits, None, epsilon, given)
    known_identities(found.strategy, clients, identities)
    return found


def test_a_service_refuses_what_clients_could_not_do(tmp_path: Path) -> None:
    enrolled(tmp_path, "alice", "bob", "carol")
    file = tmp_path / "identities"
    file.write_text(identified(tmp_path / "alice.key"))
    for strategy, more, why in (
        ("fedavg + secagg", {}, "secagg needs --identities"),
        ("fedavg", {"identities": file}, "are for secure sums"),
        ("fedavg + secagg", {"identities": file}, "has no line of bob, carol"),
        ("fedavg", {"epsilon": 1.0}, "is a budget for noise"),
        ("fedavg + dp", {}, "dp needs noise"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=why):
            asked(tmp_path, strategy, **more)  # type: ignore[arg-type]
    found = asked(tmp_path, "fedavg + dp", epsilon=3.0)
    assert found.privacy.covered.rate == 2 / 3 and found.privacy.budget.epsilon == 3.0 and found.privacy.covered.noise
    assert found.settings["epsilon"] == 3.0 and found.settings["per_round"] == 2


def joined(tmp_path: Path, secure: bool) -> JoinedClient:
    enrolled(tmp_path, "alice")
    file = tmp_path / "identities"
    file.write_text(identified(tmp_path / "alice.key"))
    key = read_key(tmp_path / "alice.key")
    party = enrolled_party(key, file, 2) if secure else None
    return JoinedClient("tcp://nowhere:1", key, regression(), "hash", print, Interrupt(), party)


def test_a_client_of_secure_sums_sends_no_report_that_the_service_could_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="which it can read: omit --identities"):
        joined(tmp_path, secure=True)._trained(Welcome("alice", "fedavg + dp(noise=1)", 0))


def test_a_client_without_identities_takes_no_part_in_secure_sums(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="secure sums need --identities"):
        joined(tmp_path, secure=False)._trained(Welcome("alice", "fedavg + secagg", 0))


@pytest.mark.parametrize("wrong", [{"most": 0.0}, {"most": float("nan")}, {"cap": -1.0}, {"clip": float("inf")}])
def test_terms_of_reports_that_no_client_can_reckon_with_are_refused(wrong: dict[str, float]) -> None:
    given: dict[str, Any] = {"most": 8.0, "cap": 15.0, "clip": 0.0, "loss": True, **wrong}
    with pytest.raises(WireError, match="the server proposed numbers up to"):
        ReportNumbers(ReportTerms(**given), 1000, 32)


def test_a_client_enrolled_later_without_an_identity_is_turned_away(tmp_path: Path) -> None:
    with real_run(tmp_path, 2, samples=15) as run:
        run.serve(per_round=2, rounds=1, strategy="fedavg + secagg", identities=run.identities())
        port = run.port
        run.keys.add("late", 15, tmp_path / "c2.key")
        assert port

        def told() -> bool:
            try:
                run.dial(2).close()
            except TurnedAway as error:
                return "its identity is not in the service's list" in str(error)
            return False

        awaited(told, 300, "the service to say why")

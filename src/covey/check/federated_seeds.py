"""Federated runs with faults that a seed draws: does each round commit what its clients reported, or nothing?

Every client reports a 1 in a place of its own, so that the model itself tells whose reports count, and how much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor, nn

from covey import faults
from covey.check.fault_log import RunsOn
from covey.engines.virtual.guests import GuestEngine
from covey.engines.virtual.guests.guest_faults import OF_GUESTS, GuestFaults
from covey.errors import CoveyError
from covey.federated.coordinator import FederatedService
from covey.federated.local_training import LocalResult
from covey.federated.messages import AGGREGATOR, COORDINATOR, ClientReport, Configuration
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.observe.membership import RoundLog, RoundRecord
from covey.run.federated.federated_options import PopulationOptions, RoundOptions
from covey.run.federated.federated_request import FederatedRequest, federated_request
from covey.run.federated.federating import TRIES, guest_plan, pace_steering, service_plan, service_replicas
from covey.run.federated.private_run import PrivateRun
from covey.run.federated.round_referee import RoundReferee
from covey.run.options import Options
from covey.simulate.faults import Fault, FaultKind, FaultPlan, reduced
from covey.simulate.population import CLIENT, PopulationCluster
from covey.simulate.units import Seconds
from covey.task import Task
from covey.vector import Vector

SAMPLES = 90  # of all clients
CLOSE = 1e-12
SERVICE = (str(COORDINATOR), str(AGGREGATOR))


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedCase:
    """What is run with faults."""

    strategy: str
    clients: int
    rounds: RoundOptions
    count: int  # of rounds
    compute: str
    availability: str
    seed: int

    def request(self) -> FederatedRequest:
        crowd = PopulationOptions(clients=self.clients, compute=self.compute, availability=self.availability)
        task = Task(
            model=lambda: nn.Linear(self.clients, 1, bias=False).double(),
            data=(torch.zeros(SAMPLES, 1),), optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
            step=lambda model, batch: model(batch[0]).sum(), batch_size=10,
        )  # fmt: skip
        given = Options(engine="simulated")
        return federated_request(
            task, self.strategy, "sizes(law=zipf)", crowd, self.rounds, self.count, None, None, given
        )  # fmt: skip


class CountedTraining:
    """Reports a 1 in the client's own place."""

    def __init__(self, asked: FederatedRequest) -> None:
        self._sizes, self._clients = [len(numbers) for numbers in asked.samples], asked.population.clients

    def load(self, client: int) -> float:
        return self._sizes[client] / 10

    def train(self, client: int, given: Configuration) -> LocalResult:
        update = torch.zeros(self._clients, dtype=torch.float64)
        update[client] = 1.0
        return LocalResult(Vector([update]), Vector(()), self._sizes[client], 0.0)


@dataclass(slots=True)
class EndedRound:
    """A round that is over: whose reports count, and the model before and after it."""

    record: RoundRecord
    counted: Sequence[int]
    before: Tensor
    after: Tensor


class WatchedRounds(RoundLog):
    """Keeps the model after every round."""

    def __init__(self, clients: int, model: Vector) -> None:
        super().__init__(clients)
        self._model, self._last = model, model.parts[0].clone()
        self.ended: list[EndedRound] = []

    def add(self, record: RoundRecord, counted: Sequence[int] = ()) -> None:
        super().add(record, counted)
        after = self._model.parts[0].clone()
        self.ended.append(EndedRound(record, list(counted), self._last, after))
        self._last = after


class WatchedClients(Instrument):
    """Who was given the model of which round, and who has reported on it."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.given: defaultdict[int, set[int]] = defaultdict(set)
        self.reported: defaultdict[int, set[int]] = defaultdict(set)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if at > self._limit:
            raise RunsOn
        if isinstance(message, Configuration):
            self.given[message.number].add(to.rank)

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, ClientReport):
            self.reported[message.number].add(sender.rank)


@dataclass(frozen=True, slots=True)
class FederatedFinding:
    """A seed, the faults that it drew, and what they broke; with the same faults as few as are needed."""

    seed: int
    case: FederatedCase
    plan: FaultPlan
    broken: list[str]
    least: FaultPlan
    committed: int = 0
    struck: int = 0
    kinds: frozenset[FaultKind] = field(default_factory=frozenset)

    def __str__(self) -> str:
        told = "\n  ".join(self.broken)
        return f"seed {self.seed}: {self.case}\n  {told}\n  faults that matter: {self.least}"


def case_of(seed: int) -> FederatedCase:
    """What a seed runs."""
    chance = Random(f"federated/{seed}")
    clients, per_round = chance.randint(6, 14), chance.randint(2, 5)
    buffered = chance.random() < 0.2
    rounds = RoundOptions(
        per_round=per_round, over=chance.choice((1.0, 1.3, 1.6)), selection=f"{chance.randint(3, 20)}s",
        reporting=f"{chance.randint(8, 50)}s", least=0.8 if buffered else chance.choice((0.3, 0.6, 1.0)),
        overlap=buffered or chance.random() < 0.7,
    )  # fmt: skip
    return FederatedCase(
        strategy=f"fedbuff(buffer={chance.randint(1, 4)})" if buffered else "fedavg", clients=clients, rounds=rounds,
        count=chance.randint(3, 5), compute=chance.choice(("3s", "6s", "15s")), seed=seed,
        availability=chance.choice(("always", "daily(share=0.6, swing=1, hours=0.016)")),
    )  # fmt: skip


def draw(case: FederatedCase) -> FaultPlan:
    """One to eight faults of clients and of the service."""
    chance = Random(f"federated faults/{case.seed}")
    service = SERVICE[:1] if case.strategy.startswith("fedbuff") else SERVICE
    return FaultPlan(tuple(_drawn(chance, case, service) for _ in range(chance.randint(1, 8))))


def _drawn(chance: Random, case: FederatedCase, service: Sequence[str]) -> Fault:
    kind, client = chance.choice((*OF_GUESTS, "kill", "duplicate")), f"{CLIENT} {chance.randrange(case.clients)}"
    at, length = Seconds(round(chance.uniform(0, 15.0 * case.count), 3)), Seconds(round(chance.uniform(0.5, 60), 3))
    if kind == "kill" and chance.random() < 0.5:
        return Fault(kind=kind, who=(chance.choice(service),), effect=chance.randint(1, 40 * case.count))
    if kind == "kill":
        return Fault(kind=kind, who=(client,), at=None, effect=chance.randint(1, 20))
    if kind == "partition":
        many = chance.sample(range(case.clients), chance.randint(1, case.clients))
        return Fault(kind=kind, who=tuple(f"{CLIENT} {number}" for number in many), at=at, lasts=length)
    if kind == "slow":
        return Fault(kind=kind, who=(client,), at=at, lasts=length, by=float(chance.randint(2, 20)))
    if kind == "duplicate":
        return Fault(kind=kind, who=(client, chance.choice(service)), at=at)
    links = [(client, chance.choice(service)), (chance.choice(service), client)]
    return Fault(kind=kind, who=chance.choice(links), at=at, by=float(length))


@dataclass(frozen=True, slots=True)
class FederatedRecord:
    """A run with faults that is over: its rounds, or why it did not end as it should."""

    asked: FederatedRequest
    rounds: list[EndedRound]
    clients: WatchedClients
    struck: list[Fault]
    why: str = ""


def record_of(case: FederatedCase, plan: FaultPlan) -> FederatedRecord:
    """Run a case with these faults."""
    asked = case.request()
    terms = asked.terms
    limit = 50 * (terms.selection + terms.reporting + 60) * case.count
    replicas, watched = service_replicas(asked), WatchedClients(limit)
    log = WatchedRounds(case.clients, replicas[COORDINATOR].flat)
    steering = pace_steering(asked, replicas[COORDINATOR])
    private = PrivateRun.of(asked)
    service = FederatedService(
        asked.rounds, terms, asked.strategy.step, steering, log, private.select, private.spending, TRIES
    )
    striking, plans = GuestFaults(plan, CLIENT), service_plan(asked, service, private)
    why = ""
    try:
        GuestEngine(
            plans, {role.address: replicas[role.address] for role in plans.roles},
            PopulationCluster(population=asked.population), [watched], RoundReferee(1, None), None,
            guest_plan(asked, CountedTraining(asked), steering, private), striking,
        ).run()  # fmt: skip
    except RunsOn:
        why = f"it still runs after {limit:.3g} s of virtual time"
    except CoveyError as error:
        why = f"{type(error).__name__}: {error}"
    except Exception as error:
        why = f"{type(error).__name__}: {faults.words(error)}"
    return FederatedRecord(asked, log.ended, watched, striking.struck, why)


def broken(run: FederatedRecord) -> list[str]:
    """All that does not hold of a run."""
    if run.why:
        return [run.why]
    numbers = [one.record.number for one in run.rounds if one.record.state != "not begun"]
    found = [] if numbers == list(range(run.asked.rounds)) else [f"the rounds are {numbers}"]
    for one in run.rounds:
        found += [f"round {one.record.number}: {why}" for why in _broken(run, one)]
    return found


def _broken(run: FederatedRecord, one: EndedRound) -> Iterator[str]:
    record, terms, buffer = one.record, run.asked.terms, run.asked.strategy.buffer
    if not buffer and record.state != "not begun" and record.took > terms.selection + terms.reporting + 1.0:
        yield f"it took {record.took:.3g} s, and its time limits are {terms.selection:g} s and {terms.reporting:g} s"
    if record.state != "committed":
        if not torch.equal(one.before, one.after):
            yield f"it is {record.state}, and the model has changed"
        return
    least, most = (buffer, buffer) if buffer else (terms.enough, terms.target)
    if not least <= len(one.counted) <= most:
        yield f"{len(one.counted)} reports count, and {least} to {most} make up a round"
    if buffer:  # which model a client was given is another matter there
        moved = set((one.after - one.before).nonzero().flatten().tolist())
        if moved != set(one.counted):
            yield f"clients {sorted(moved)} moved the model, and those who count are {sorted(set(one.counted))}"
        return
    yield from _miscounted(run, one)


def _miscounted(run: FederatedRecord, one: EndedRound) -> Iterator[str]:
    """Whose reports should not count, or count otherwise."""
    if len(set(one.counted)) < len(one.counted):
        yield f"clients {one.counted}: one counts twice"
    for what, known in (("was given", run.clients.given), ("reported on", run.clients.reported)):
        if strangers := set(one.counted) - known[one.record.number]:
            yield f"clients {sorted(strangers)} count, and none of them {what} the model"
    sizes = torch.zeros_like(one.before)
    for client in one.counted:
        sizes[client] = len(run.asked.samples[client])
    gap = (one.after - one.before - sizes / sizes.sum()).abs().max().item()
    if gap > CLOSE:
        yield f"the model has moved {gap:.3g} away from the mean of the reports that count"


def tried(seed: int) -> FederatedFinding:
    """Draw a run and its faults, and look at what they broke."""
    case = case_of(seed)
    plan = draw(case)
    run = record_of(case, plan)
    found = broken(run)
    least = reduced(plan, lambda fewer: bool(broken(record_of(case, fewer)))) if found else plan
    committed = sum(one.record.state == "committed" for one in run.rounds)
    kinds = frozenset(fault.kind for fault in run.struck)
    return FederatedFinding(seed, case, plan, found, least, committed, len(run.struck), kinds)

"""Train a task with clients that come and go, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from covey.data.shards import Shards
from covey.engines.virtual.guests import GroupedWork, GuestEngine, GuestPlan
from covey.engines.virtual.guests.guest_tally import GuestsAside
from covey.engines.virtual.progress_watch import ProgressWatch
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.errors import PlanError
from covey.federated.buffering import buffering
from covey.federated.client import visits
from covey.federated.coordinator import FederatedService, coordinating
from covey.federated.group_training import GroupTraining
from covey.federated.local_training import ClientTraining, ClientWork, TimedTraining
from covey.federated.messages import AGGREGATOR, COORDINATOR
from covey.federated.pace_steering import PaceSteering, SteadyPace
from covey.federated.reports.report_form import EncodedTraining, ReportForm
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.model.threads import one_thread
from covey.model.timed.stand_in import TimedModel, in_one, stand_in
from covey.names import option
from covey.observe.callbacks import Callback
from covey.observe.facts import RunOrigin
from covey.observe.membership import RoundLog
from covey.observe.progress import Watcher
from covey.observe.result import Result, conclude
from covey.run.federated.federated_options import PopulationOptions, RoundOptions
from covey.run.federated.federated_request import FederatedRequest, facts, federated_request
from covey.run.federated.private_run import PrivateRun
from covey.run.federated.round_referee import RoundReferee
from covey.run.federated.simulated_keeping import SimulatedKeeping, check_keeping
from covey.run.listening import listening
from covey.run.option_parts import CheckpointOptions, OutputOptions, TrainingOptions, VirtualOptions, at_least_one
from covey.run.options import Options
from covey.run.registering.registration import origin_of
from covey.run.saving import save_model
from covey.run.simulated import failing
from covey.simulate.population import CLIENT, PopulationCluster
from covey.strategy import Plan, Role
from covey.task import Task
from covey.task.arguments import checked

TRIES = 1000  # in a row, after which a simulated run ends for whose rounds too few clients come

@checked("covey.federate")
def federate(
    task: Task | str,
    strategy: str = "fedavg",
    clients: int = 100,
    *,
    per_round: int = 10,
    rounds: int = 20,
    partition: str = "even",
    over: float = 1.3,
    least: float = 0.8,
    selection: str = "60s",
    reporting: str = "10m",
    overlap: bool = True,
    availability: str | os.PathLike[str] = "always",
    compute: str = "10ms",
    speed_spread: float = 0.5,
    bandwidth: str = "20mbit",
    uplink: str = "5mbit",
    latency: str = "50ms",
    link_spread: float = 0.5,
    until: str | None = None,
    score_every: int = 1,
    seed: int = 0,
    rate: float = 1.0,
    epsilon: float | None = None,
    timing_only: bool = False,
    save: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str = "60s",
    resume: str | os.PathLike[str] | None = None,
    command: str = "",
    watcher: Watcher | None = None,
    callbacks: Sequence[Callback] = (),
    log: Sequence[str] = (),
    runs: str | os.PathLike[str] | Literal[False] | None = None,
) -> Result:
    """Train a task with clients that come and go, in virtual time, and return its result (docs/federated.md).

    Args:
        task: A `covey.Task`, or the file of one: "train.py" or "train.py:name".
        strategy: "fedavg", "fedsgd", "fedprox", "fedopt" or "fedbuff", with settings.
        clients: The number of clients.
        per_round: The reports that make up a round; with fedbuff, the clients that train at the same time.
        rounds: The number of rounds that begin, also those that are abandoned; with fedbuff, of updates.
        partition: Which samples each client has: "even", "dirichlet(alpha=0.3)", "labels(count=2)", "sizes(law=zipf)"
            or "by(column=site)".
        over: How many times as many clients as `per_round` are chosen, as some drop out.
        least: The share of `per_round` that is enough; with fewer reports a round is abandoned.
        selection: The time after which a round begins with those who have checked in, if they are enough.
        reporting: The time after which a round ends with the reports that it has, if they are enough.
        overlap: Choose the clients of the next round while this one waits for reports.
        availability: When clients may take part: "always", "daily(share=0.3, swing=4)", or a file of lines
            "client,from,until".
        compute: The time of the median client for a batch.
        speed_spread: The standard deviation of the logarithm of the clients' speeds.
        bandwidth: The rate at which the median client receives.
        uplink: The rate at which the median client sends.
        latency: The latency of a client's link, one way.
        link_spread: The standard deviation of the logarithm of the links' rates.
        until: End the run when a metric reaches a target, such as "accuracy>=0.95".
        score_every: Score the model after this number of committed rounds.
        seed: The seed of weights, partition, clients and all other random numbers.
        rate: A factor on the learning rate of the task.
        epsilon: What the run may spend of privacy, with "+ dp": it finds the noise, or ends the run when it is spent.
        timing_only: Simulate time and traffic without training.
        save: Write the model to this safetensors file.
        checkpoint: Write checkpoints to this folder, between rounds.
        every: The virtual time after which the next one is written, when the round that is under way is over.
        resume: Continue from the newest checkpoint in this folder; clients come anew.
        command: The command line to write into the result.
        watcher: An object that is shown the run's progress.
        callbacks: Objects of subclasses of `covey.Callback`, which hear of the run.
        log: Loggers, such as "csv:scores.csv" or "tensorboard:logs".
        runs: Record the run in a new folder in this one; by default in "runs", or in COVEY_RUNS. False: no record.

    >>> result = covey.federate("examples/digits.py", "fedavg(epochs=2)", clients=20, per_round=5, rounds=3)
    >>> result.participation.committed
    3
    """
    given = Options(
        engine="simulated",
        training=TrainingOptions(seed=seed, rate=rate),
        virtual=VirtualOptions(timing_only=timing_only),
        checkpoints=CheckpointOptions(checkpoint=checkpoint, every=every, resume=resume),
        output=OutputOptions(save=save, command=command, watcher=watcher, callbacks=callbacks, log=log, runs=runs),
    )
    at_least_one(clients=clients, per_round=per_round, rounds=rounds, score_every=score_every)
    if timing_only and score_every != 1:
        raise PlanError(f"{option('timing_only', True)} trains nothing: omit {option('score_every')}")
    crowd = PopulationOptions(
        clients=clients, availability=availability, compute=compute, speed_spread=speed_spread, bandwidth=bandwidth,
        uplink=uplink, latency=latency, link_spread=link_spread,
    )  # fmt: skip
    waits = RoundOptions(
        per_round=per_round, over=over, least=least, selection=selection, reporting=reporting, overlap=overlap
    )
    asked = federated_request(task, strategy, partition, crowd, waits, rounds, until, epsilon, given)
    cluster = repr(asked.population)
    check_keeping(given.checkpoints, asked.strategy.form.esgd is not None)
    with listening(given, lambda: facts(asked), asked.name, asked.task.callbacks, cluster) as listeners:
        record = listeners.record.path.name if listeners and listeners.record else ""
        origin = origin_of(given, asked.text, clients, "simulated", record)
        if listeners is None:
            return train(asked, score_every, origin)
        heard = replace(asked, options=listeners.heard(given))
        result = train(heard, score_every, origin, listeners.scored, listeners.kept)
        listeners.concluded(result)
        return result


def train(
    asked: FederatedRequest, score_every: int, origin: RunOrigin,
    told: Callable[[Any, dict[str, float]], None] | None = None, kept: Callable[[Path], None] | None = None,
) -> Result:  # fmt: skip
    """Perform a run; `told` hears of each score, `kept` of each checkpoint."""
    judge = RoundReferee(score_every, asked.target)
    judge.told = told or judge.told
    replicas, log = service_replicas(asked), RoundLog(asked.population.clients)
    keeping = SimulatedKeeping.of(asked, replicas[COORDINATOR], log, judge, origin, kept)
    with one_thread(), failing(), keeping.begun() as attempt:
        result = _train(asked, replicas, keeping, attempt)
    result.keep_origins(keeping.origins)
    return result


def _train(
    asked: FederatedRequest, replicas: dict[Address, Replica], keeping: SimulatedKeeping, attempt: VirtualAttempt
) -> Result:
    log, judge = keeping.log, keeping.judge
    given, population, seed = asked.options, asked.population, asked.options.training.seed
    steering = pace_steering(asked, replicas[COORDINATOR], attempt.clock)
    private = PrivateRun.of(asked)
    private.begun = log.begun
    form = asked.strategy.form.make(replicas[COORDINATOR].layout, seed)
    private.form = form
    service = FederatedService(
        asked.rounds, asked.terms, asked.strategy.step, steering, log, private.select, private.spending, TRIES,
        asked.strategy.local.passes,
    )
    plan = service_plan(asked, service, private)
    score: ScoredModel | None = None
    if not given.virtual.timing_only:
        score = ScoredModel(build.model(asked.task, seed), asked.task.evaluate, False)
    guests = guest_plan(asked, _training(asked, form), steering, private)
    watching = [ProgressWatch(given.output.watcher, judge, None, attempt.tallies)] if given.output.watcher else []
    scoring = score.score if score and asked.task.evaluate else None
    outcome = GuestEngine(
        plan, {role.address: replicas[role.address] for role in plan.roles}, PopulationCluster(population=population),
        [GuestsAside(watch, CLIENT) for watch in watching], judge, scoring, guests, attempt=attempt, keep=keeping.keep,
    ).run()  # fmt: skip
    for shown in watching:
        shown.conclude(outcome.seconds)
    result = conclude(
        facts(asked), judge, outcome.tallies.values(), seconds=outcome.seconds, stopped=outcome.stopped
    )
    result.participation = log.told()
    private.tell(result, log)
    result.roles.pop(f"{CLIENT}s 0", None)  # shares of time mean nothing where many are added up
    if score:
        score.assemble(outcome.snapshots)
        result.keep_weights(score.state())
        if unsaved := save_model(result, given.output.save):
            raise unsaved
    else:
        result.tell_untrained()
    return result


def guest_plan(
    asked: FederatedRequest, training: ClientTraining, steering: PaceSteering, private: PrivateRun
) -> GuestPlan:
    """The clients, who come from outside."""
    population = asked.population
    return GuestPlan(
        role=CLIENT, count=population.clients, visit=visits(training, private.reporting), window=population.window,
        first=partial(population.arrival, within=steering.first()),
        grouped=GroupedWork(ClientWork, training.train_all) if isinstance(training, GroupTraining) else None,
    )  # fmt: skip


def service_plan(asked: FederatedRequest, service: FederatedService, private: PrivateRun) -> Plan:
    """The roles of the service; clients come from outside."""
    def sizes(client: int) -> int:
        return len(asked.samples[client])

    if asked.strategy.buffer:
        coordinator = Role(COORDINATOR, buffering(service, asked.strategy.buffer, sizes), trains=True, scored=True)
        roles: tuple[Role, ...] = (coordinator,)
    else:
        coordinator = Role(COORDINATOR, coordinating(service), trains=True, scored=True)
        aggregator = Role(
            AGGREGATOR, lambda node, replica: private.aggregator(node, sizes).run(), host=COORDINATOR
        )
        roles = (coordinator, aggregator)
    return Plan(roles=roles, limits=(asked.rounds,), lockstep=False, seed=asked.options.training.seed)


def service_replicas(asked: FederatedRequest) -> dict[Address, Replica]:
    """The coordinator's model; the aggregator has none, and is shown the same."""
    task, seed = asked.task, asked.options.training.seed
    samples = sum(map(len, asked.samples))
    deal = Shards(samples, 1, task.step_size, seed)
    if asked.options.virtual.timing_only:
        replica = stand_in(TimedModel(in_one(build.shapes(task))), COORDINATOR, False, deal)
    else:
        replica = build.replica(task, COORDINATOR, False, deal, asked.rounds)  # progress is counted in rounds
    return {COORDINATOR: replica, AGGREGATOR: replica}


def pace_steering(asked: FederatedRequest, replica: Replica, now: float = 0.0) -> PaceSteering:
    """How clients are told when to come; what a round takes is first guessed by the median client's machine."""
    population, task, samples = asked.population, asked.task, sum(map(len, asked.samples))
    batches = asked.strategy.local.batches(samples, task.batch_size) / population.clients
    size = replica.flat.nbytes + replica.buffers.nbytes
    needed = asked.strategy.buffer or asked.terms.goal
    steering = SteadyPace if asked.privacy else PaceSteering
    return steering(
        population.clients, asked.terms, needed, population.visit(batches, size), population.present(now), now
    )


def _training(asked: FederatedRequest, form: ReportForm | None) -> ClientTraining:
    """What trains clients."""
    task, plan, seed = asked.task, asked.strategy.local, asked.options.training.seed
    if asked.options.virtual.timing_only:
        return TimedTraining(task, plan, [len(numbers) for numbers in asked.samples])
    module: nn.Module = build.model(task, seed)
    restrict = getattr(form, "restrict", None)
    made = GroupTraining(task, module, build.data_of(task), plan, asked.samples, seed, restrict)
    return EncodedTraining(made, form) if form else made

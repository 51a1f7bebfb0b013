"""Serve a task to clients on real machines: the service's side of a federated run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from covey.checkpoint import RunRecord
from covey.data.shards import Shards
from covey.engines.interrupt import Interrupt, interruptible
from covey.engines.service.greeting import Hello, NotWelcome, RunOver, Welcome
from covey.engines.service.guest_keys import KeyFolder
from covey.engines.service.role_loop import LoopRole
from covey.engines.service.service_engine import ServiceEngine, ServiceOutcome, ServiceWishes
from covey.engines.service.service_port import PortTerms, ServicePort, listening_at
from covey.engines.transport.refusals import Refusals
from covey.engines.virtual.guests.guest_tally import GuestsAside, GuestTeller
from covey.engines.virtual.progress_watch import ProgressWatch
from covey.errors import PlanError, WireError
from covey.federated.coordinator import FederatedService
from covey.federated.local_training import refuse_settings
from covey.federated.messages import AGGREGATOR, COORDINATOR, FROM_CLIENTS
from covey.federated.pace_steering import PaceSteering
from covey.federated.strategies import FederatedStrategy
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.observe.facts import RunFacts
from covey.observe.instruments import Instrument
from covey.observe.membership import RoundLog
from covey.observe.progress import Watcher
from covey.observe.result import Result, conclude
from covey.privacy.randomness import SystemSource
from covey.run.federated.enrolled_clients import EnrolledClients, RefusedReports
from covey.run.federated.federated_options import RoundOptions, read_strategy
from covey.run.federated.federated_request import FederatedRequest, facts, round_terms
from covey.run.federated.federating import service_plan
from covey.run.federated.private_run import PrivateRun
from covey.run.federated.round_referee import RoundReferee
from covey.run.federated.service_checkpoints import ServiceCheckpoints
from covey.run.federated.service_news import ServiceNews
from covey.run.listening import listening
from covey.run.option_parts import OutputOptions, TrainingOptions, at_least_one
from covey.run.options import Options
from covey.run.saving import Place, check_save, save_model
from covey.run.simulated import failing
from covey.scoring import target_of
from covey.simulate.population import CLIENT, Population
from covey.task import load_task, task_hash
from covey.version import __version__

SERVED = "served"
"""What the result calls this engine."""


def serve(
    task: str,
    strategy: str = "fedavg",
    *,
    listen: str,
    keys: str | Path,
    rounds: int = 20,
    waits: RoundOptions | None = None,
    until: str | None = None,
    score_every: int = 1,
    seed: int = 0,
    save: Place = None,
    checkpoint: str | Path | None = None,
    command: str = "",
    watcher: Watcher | None = None,
    log: Sequence[str] = (),
    runs: str | Path | Literal[False] | None = None,
    listens: Callable[[str], None] = lambda endpoint: None,
) -> Result:
    """Train a task with clients that dial in (docs/federated.md).

    Args:
        task: The file of a task: "train.py" or "train.py:name"; clients must have the same file.
        strategy: "fedavg", "fedsgd", "fedprox", "fedopt" or "fedbuff", with settings.
        listen: Where clients dial in: ":7070", or "10.0.0.1:7070".
        keys: The folder in which clients are enrolled.
        rounds: The number of rounds, also those that are abandoned.
        waits: How rounds are made up.
        until: End the run when a metric reaches a target.
        score_every: Score the model after this number of committed rounds.
        seed: The seed of the weights, and of the order of clients' batches.
        save: Write the model to this safetensors file.
        checkpoint: Keep the service in this folder between rounds, and go on from what is there.
        command: The command line to write into the result.
        watcher: An object that is shown the run's progress.
        log: Loggers.
        runs: Record the run in a new folder in this one. False: no record.
        listens: Hears where the service listens, when it does.
    """
    at_least_one(rounds=rounds, score_every=score_every)
    folder = KeyFolder(Path(keys))
    pair, clients = folder.service(), EnrolledClients(folder)
    given = Options(
        engine="simulated", training=TrainingOptions(seed=seed),
        output=OutputOptions(save=save, command=command, watcher=watcher, log=log, runs=runs),
    )  # fmt: skip
    asked = service_request(task, strategy, clients, rounds, waits or RoundOptions(), until, given)
    terms = PortTerms(
        listen=listening_at(listen), pair=pair, roles=(COORDINATOR, AGGREGATOR)[: 1 if asked.strategy.buffer else 2],
        says=FROM_CLIENTS, largest=0,
    )  # fmt: skip
    with listening(given, lambda: service_facts(asked), asked.name, asked.task.callbacks) as listeners, failing():
        heard = replace(asked, options=listeners.heard(given)) if listeners else asked
        serving = Serving(heard, clients, terms, task_hash(task), listens)
        result = serving.run(score_every, listeners.scored if listeners else None, checkpoint)
        if listeners:
            listeners.concluded(result)
        return result


def service_request(
    task: str, strategy: str, clients: EnrolledClients, rounds: int, waits: RoundOptions, until: str | None,
    given: Options,
) -> FederatedRequest:  # fmt: skip
    """Check everything that can be checked before anything starts."""
    chosen, text, settings = read_strategy(strategy)
    if not clients.welcome():
        raise PlanError(
            f"no client is enrolled in {clients.folder.folder}: add one with `covey federate keys add "
            f"{clients.folder.folder} NAME --samples N`"
        )
    refuse_simulated_only(chosen)
    terms = round_terms(chosen, waits, len(clients.welcome()))
    check_save(given.output.save)
    loaded = load_task(task)
    refuse_settings(loaded)
    told = {
        "clients": len(clients.welcome()), "rounds": rounds, "per_round": terms.target, "chosen": terms.goal,
        "enough": terms.enough, "selection": waits.selection, "reporting": waits.reporting, "until": until,
    }  # fmt: skip
    return FederatedRequest(
        task=loaded, name=task, strategy=chosen, text=text,
        settings={**settings, **{key: value for key, value in told.items() if value is not None}},
        population=Population(clients=len(clients.welcome())), terms=terms,
        samples=clients,  # type: ignore[arg-type]  # only asked how many samples each client may have
        rounds=rounds, target=target_of(loaded, until) if until else None, options=given,
    )  # fmt: skip


def refuse_simulated_only(chosen: FederatedStrategy) -> None:
    """Refuse what only simulated clients do so far."""
    asked = (*(["secagg"] if chosen.secure else []), *(["dp"] if chosen.noise else []), *chosen.form.words)
    if asked:
        raise PlanError(f"{asked[0]}: only simulated clients do this so far (covey federate simulate): omit it")


def service_facts(asked: FederatedRequest) -> RunFacts:
    """What is known of a run before it starts."""
    return msgspec.structs.replace(facts(asked), engine=SERVED)


def going_on(done: int, rounds: int) -> str:
    """How a service goes on after so many rounds."""
    if done < rounds:
        return f"going on with round {done + 1} of {rounds}"
    return f"{done} rounds are over, and with them this run of {rounds}: a larger --rounds goes on"


class Serving:
    """One process of a service, from its start to its end."""

    def __init__(
        self, asked: FederatedRequest, clients: EnrolledClients, terms: PortTerms, task: str,
        listens: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.asked, self.clients, self.terms, self._task, self._listens = asked, clients, terms, task, listens
        self.refusals, self._shown = Refusals(), Refusals()
        self._over = False
        self._say = asked.options.output.say
        self._news = ServiceNews(self._say)

    def run(
        self, score_every: int, told: Callable[[Any, dict[str, float]], None] | None, checkpoint: str | Path | None
    ) -> Result:
        asked, interrupt = self.asked, Interrupt()
        judge = RoundReferee(score_every, asked.target)
        judge.told = told or judge.told
        replica, log = self._replica(), RoundLog(asked.population.clients)
        module = build.model(asked.task, asked.options.training.seed)
        score = ScoredModel(module, asked.task.evaluate, False)
        kept = self._checkpoints(Path(checkpoint)) if checkpoint else None
        with kept.directory if kept else nullcontext(), interruptible(interrupt):
            before = kept.found(replica, log, judge) if kept else None
            state, tallies = before or (None, [])
            wishes = ServiceWishes(
                judge=judge, score=score.score if asked.task.evaluate else None,
                teller=GuestTeller(tallies, CLIENT), interrupt=interrupt, look=lambda: self._look(log),
                kept=state, over=self._end,
                watching=[RefusedReports(self.refusals, self.clients), *self._watching(judge)],
            )  # fmt: skip
            if kept:

                def keep(role: LoopRole, at: float) -> None:
                    self._say_refused()
                    kept.keep(role, at, replica, log, judge, wishes.teller)

                wishes.keep = keep
            if state:
                self._say(going_on(state.done, asked.rounds))
                self._news.resume(log)
            outcome = self._serve(replica, log, wishes)
        return self._conclude(outcome, judge, log, score)

    def _serve(self, replica: Replica, log: RoundLog, wishes: ServiceWishes) -> ServiceOutcome:
        asked = self.asked
        needed = asked.strategy.buffer or asked.terms.goal
        steering = PaceSteering(asked.population.clients, asked.terms, needed)
        service = FederatedService(asked.rounds, asked.terms, asked.strategy.step, steering, log)
        plan = service_plan(asked, service, PrivateRun.of(asked, SystemSource()))
        size = replica.flat.nbytes + replica.buffers.nbytes
        terms = replace(self.terms, largest=size)
        self._port = ServicePort(terms, self.clients.welcome(), self._greet, self.refusals)
        try:
            self._listens(self._port.endpoint)
            replicas = {role.address: replica for role in plan.roles}
            return ServiceEngine(plan, replicas, self._port, wishes).run()
        finally:
            self._port.close()

    def _greet(self, client: Address, hello: Hello) -> Welcome | NotWelcome | RunOver:
        if hello.covey != __version__:
            return NotWelcome(f"it has covey {hello.covey[:20]}, and the service has {__version__}: install that one")
        if hello.task != self._task:
            return NotWelcome(
                "its task file is another one than the service's (they differ by their SHA-256): take the same file"
            )
        if hello.samples > (most := len(self.clients[client.rank])):
            return NotWelcome(f"it has {hello.samples} samples, and was enrolled with {most}: see `keys add --samples`")
        if self._over:
            return RunOver()
        self._news.joined(client, self.clients.name(client))
        return Welcome(self.clients.name(client), self.asked.text, self.asked.options.training.seed)

    def _look(self, log: RoundLog) -> None:
        """Several times a second: say what was refused, and look whether other clients are enrolled."""
        self._say_refused()
        self._news.look(log)
        try:
            if self.clients.changed():
                for client in self._port.admit_only(self.clients.welcome()):
                    self._say(f"{client} ({self.clients.name(client)}) was revoked, and is cut off")
        except (WireError, OSError) as error:
            self._say(f"the list of clients stays as it was: {error}")

    def _say_refused(self) -> None:
        for line in self._shown.add(self.refusals.news(), "the service"):
            self._say(line)

    def _end(self) -> None:
        self._over = True

    def _replica(self) -> Replica:
        asked = self.asked
        deal = Shards(max(1, asked.task.step_size), 1, asked.task.step_size, asked.options.training.seed)
        return build.replica(asked.task, COORDINATOR, False, deal, asked.rounds)  # progress is counted in rounds

    def _checkpoints(self, folder: Path) -> ServiceCheckpoints:
        return ServiceCheckpoints(folder, self._record(), self._say, self._task, self._shown)

    def _record(self) -> RunRecord:
        asked = self.asked
        return RunRecord(
            strategy=asked.text, workers=1, servers=0, seed=asked.options.training.seed, samples=0,
            batch_size=asked.task.batch_size, limits=[asked.rounds], clock="real",
        )  # fmt: skip

    def _watching(self, judge: RoundReferee) -> list[Instrument]:
        watcher = self.asked.options.output.watcher
        self._watches = [ProgressWatch(watcher, judge, None)] if watcher else []
        return [GuestsAside(watch, CLIENT) for watch in self._watches]

    def _conclude(self, outcome: ServiceOutcome, judge: RoundReferee, log: RoundLog, score: ScoredModel) -> Result:
        self._shown.add(self.refusals.news(), "the service")
        for watch in self._watches:
            watch.conclude(outcome.seconds)
        result = conclude(
            service_facts(self.asked), judge, outcome.tallies.values(), seconds=outcome.seconds,
            stopped=outcome.stopped, failures=self._shown.lines(),
        )  # fmt: skip
        result.participation = log.told()
        result.roles.pop(f"{CLIENT}s 0", None)
        score.assemble(outcome.snapshots)
        result.keep_weights(score.state())
        if unsaved := save_model(result, self.asked.options.output.save):
            raise unsaved
        return result



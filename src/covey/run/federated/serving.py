"""Serve a task to clients on real machines: the service's side of a federated run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

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
from covey.errors import WireError
from covey.federated.coordinator import FederatedService
from covey.federated.messages import AGGREGATOR, COORDINATOR
from covey.federated.pace_steering import PaceSteering, SteadyPace
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.observe.facts import RunOrigin
from covey.observe.instruments import Instrument
from covey.observe.membership import RoundLog
from covey.observe.progress import Watcher
from covey.observe.result import Result, conclude
from covey.privacy.randomness import SystemSource
from covey.run.federated.enrolled_clients import EnrolledClients, RefusedReports
from covey.run.federated.federated_options import RoundOptions
from covey.run.federated.federated_request import FederatedRequest
from covey.run.federated.federating import service_plan
from covey.run.federated.private_run import PrivateRun
from covey.run.federated.round_referee import RoundReferee
from covey.run.federated.service_checkpoints import ServiceCheckpoints
from covey.run.federated.service_news import DeclinedSums, LeftClients, ServiceNews
from covey.run.federated.service_request import SERVED, going_on, known_identities, service_facts, service_request
from covey.run.listening import listening
from covey.run.option_parts import OutputOptions, TrainingOptions, at_least_one
from covey.run.options import Options
from covey.run.registering.register_options import RegisterOptions
from covey.run.registering.registration import Registration, origin_of
from covey.run.saving import Place, save_model
from covey.run.simulated import failing
from covey.simulate.population import CLIENT
from covey.task import task_hash
from covey.version import __version__


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
    epsilon: float | None = None,
    identities: str | Path | None = None,
    command: str = "",
    watcher: Watcher | None = None,
    log: Sequence[str] = (),
    runs: str | Path | Literal[False] | None = None,
    listens: Callable[[str], None] = lambda endpoint: None,
    register: str | None = None,
    store: str | Path | None = None,
) -> Result:
    """Train a task with clients that dial in (docs/federated.md).

    Args:
        task: The file of a task: "train.py" or "train.py:name"; clients must have the same file.
        strategy: "fedavg", "fedsgd", "fedprox", "fedopt" or "fedbuff", with settings.
        listen: Where clients dial in: ":7070", or "10.0.0.1:7070".
        keys: The folder in which clients are enrolled.
        rounds: The number of rounds that begin, also those that are abandoned.
        waits: How rounds are made up.
        until: End the run when a metric reaches a target.
        score_every: Score the model after this number of committed rounds.
        seed: The seed of the weights, and of the order of clients' batches.
        save: Write the model to this safetensors file.
        checkpoint: Keep the service in this folder between rounds, and go on from what is there.
        epsilon: What the run may spend of privacy, with "+ dp": it finds the noise, or ends the run when it is spent.
        identities: The list by which the clients of secure sums know each other, with "+ secagg".
        command: The command line to write into the result.
        watcher: An object that is shown the run's progress.
        log: Loggers.
        runs: Record the run in a new folder in this one. False: no record.
        listens: Hears where the service listens, when it does.
        register: Keep the model as the next version of this name.
        store: The folder of registered models.
    """
    at_least_one(rounds=rounds, score_every=score_every)
    folder = KeyFolder(Path(keys))
    pair, clients = folder.service(), EnrolledClients(folder)
    given = Options(
        engine="simulated", training=TrainingOptions(seed=seed),
        output=OutputOptions(save=save, command=command, watcher=watcher, log=log, runs=runs),
        models=RegisterOptions(register=register, store=store),
    )  # fmt: skip
    asked = service_request(task, strategy, clients, rounds, waits or RoundOptions(), until, epsilon, given)
    directory = known_identities(asked.strategy, clients, identities)
    terms = PortTerms(
        listen=listening_at(listen), pair=pair, roles=(COORDINATOR, AGGREGATOR)[: 1 if asked.strategy.buffer else 2],
        says=(), largest=0,
    )  # fmt: skip
    with listening(given, lambda: service_facts(asked), asked.name, asked.task.callbacks) as listeners, failing():
        record = listeners.record.path.name if listeners and listeners.record else ""
        origin = origin_of(given, asked.text, len(clients.welcome()), SERVED, record)
        registration = Registration.of(given, task, lambda: ("", "what the clients have, which stays with them"))
        heard = replace(asked, options=listeners.heard(given)) if listeners else asked
        private = PrivateRun.served(heard, directory, SystemSource())
        serving = Serving(heard, private, clients, terms, task_hash(task), listens, origin)
        result = serving.run(score_every, listeners.scored if listeners else None, checkpoint)
        if registration:
            registration.register(result)
        if listeners:
            listeners.concluded(result)
        return result


class Serving:
    """One process of a service, from its start to its end."""

    def __init__(
        self, asked: FederatedRequest, private: PrivateRun, clients: EnrolledClients, terms: PortTerms, task: str,
        listens: Callable[[str], None], origin: RunOrigin,
    ) -> None:  # fmt: skip
        self.asked, self.clients, self.terms, self._task, self._listens = asked, clients, terms, task, listens
        self.private, self.origins = private, [origin]
        self.refusals, self._shown = Refusals(), Refusals()
        self._reports = RefusedReports(self.refusals, clients)
        self._over = False
        self._say = asked.options.output.say
        self._news = ServiceNews(self._say)
        self._declined = DeclinedSums(clients.name, self._say)
        self._left = LeftClients(clients.name, self._say)

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
            self.origins = kept.origins if kept else self.origins
            state, tallies = before or (None, [])
            wishes = ServiceWishes(
                judge=judge, score=score.score if asked.task.evaluate else None,
                teller=GuestTeller(tallies, CLIENT), interrupt=interrupt, look=lambda: self._look(log),
                kept=state, over=self._end,
                watching=[self._reports, self._declined, self._left, *self._watching(judge)],
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
        steering = (SteadyPace if asked.privacy else PaceSteering)(
            asked.population.clients, asked.terms, needed, began=wishes.kept.seconds if wishes.kept else 0.0
        )
        private = self.private
        private.form = asked.strategy.form.make(replica.layout, asked.options.training.seed)
        service = FederatedService(
            asked.rounds, asked.terms, asked.strategy.step, steering, log, private.select, private.spending,
            passes=asked.strategy.local.passes,
        )
        plan = service_plan(asked, service, private)
        size = replica.flat.nbytes + replica.buffers.nbytes
        terms = replace(self.terms, largest=size, says=private.said_by_clients)
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
        if self.asked.strategy.secure and client.rank not in self.private.directory:
            return NotWelcome("its identity is not in the service's list: secure sums are taken with those who are")
        if why := self._reports.unwanted.get(client):
            return NotWelcome(why)
        if self._over:
            return RunOver()
        self._news.joined(client, self.clients.name(client))
        return Welcome(self.clients.name(client), self.asked.text, self.asked.options.training.seed)

    def _look(self, log: RoundLog) -> None:
        """Several times a second: say what was refused, and look whether other clients are enrolled."""
        self._say_refused()
        self._news.look(log)
        for client, why in self._reports.unwanted.items():
            self._port.send_off(client, why)
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
        spends = self.asked.privacy is not None
        return ServiceCheckpoints(folder, self._record(), self._say, self._task, self._shown, spends=spends)

    def _record(self) -> RunRecord:
        asked = self.asked
        return RunRecord(
            strategy=asked.text, workers=1, servers=0, seed=asked.options.training.seed, samples=0,
            batch_size=asked.task.batch_size, limits=[asked.rounds], clock="real", origins=self.origins,
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
            stopped=outcome.stopped, failures=[*self._shown.lines(), *self._declined.lines],
        )  # fmt: skip
        result.participation = log.told()
        self.private.tell(result, log)
        result.roles.pop(f"{CLIENT}s 0", None)
        score.assemble(outcome.snapshots)
        result.keep_weights(score.state())
        result.keep_origins(self.origins)
        if unsaved := save_model(result, self.asked.options.output.save):
            raise unsaved
        return result



"""How does a simulated federated run go on in another process? From between two rounds; its clients come anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from covey.checkpoint import RunRecord
from covey.engines.transport.refusals import Refusals
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.engines.virtual.virtual_actor import VirtualActor
from covey.errors import CheckpointError, PlanError
from covey.federated.messages import COORDINATOR
from covey.model.replica import Replica
from covey.names import option
from covey.observe.facts import RunOrigin
from covey.observe.membership import RoundLog
from covey.observe.tally import Teller
from covey.run.federated.federated_request import FederatedRequest
from covey.run.federated.round_referee import RoundReferee
from covey.run.federated.service_checkpoints import ServiceCheckpoints
from covey.run.federated.service_request import going_on
from covey.run.option_parts import CheckpointOptions
from covey.run.processes import checkpoints_of
from covey.run.restarting import interval


def check_keeping(given: CheckpointOptions, esgd: bool) -> None:
    """Refuse what cannot be kept, or not in this way."""
    given.check()
    if given.every == "auto":
        raise PlanError(
            f"{option('every', 'auto')} measures how long a real disk takes; in virtual time give one, such as 10m"
        )
    asked = next((name for name in ("checkpoint", "resume") if getattr(given, name) is not None), None)
    if asked and esgd:
        raise PlanError(
            f"{option(asked)}: each client keeps what esgd has not sent, and a checkpoint has nothing of clients: omit "
            "esgd, or run without checkpoints"
        )


@dataclass(slots=True)
class SimulatedKeeping:
    """Where a run is written between its rounds, and what it goes on from.

    Nothing of clients is kept: those who waited, trained or were on their way come again, at a moment that is drawn as
    at the beginning of a run.
    """

    asked: FederatedRequest
    replica: Replica
    log: RoundLog
    judge: RoundReferee
    writes: ServiceCheckpoints | None
    reads: ServiceCheckpoints | None
    every: float
    origin: RunOrigin
    last: float = 0.0  # when it was written

    @staticmethod
    def of(
        asked: FederatedRequest, replica: Replica, log: RoundLog, judge: RoundReferee, origin: RunOrigin,
        told: Callable[[Path], None] | None = None,
    ) -> SimulatedKeeping:  # fmt: skip
        """`told` hears of each checkpoint."""
        given, clients = asked.options.checkpoints, asked.population.clients
        every = interval(given)
        assert every is not None, "virtual time has been refused an interval by measure"
        here = RunRecord(
            strategy=asked.text, workers=1, servers=0, seed=asked.options.training.seed,
            samples=sum(map(len, asked.samples)), batch_size=asked.task.batch_size, limits=[asked.rounds],
            clock="virtual", origins=[origin],
        )  # fmt: skip
        checkpoints_of(given)  # a folder with the checkpoints of another run stays as it is
        say, same = asked.options.output.say, given.resume == given.checkpoint
        population = f"{clients} clients with the partition {asked.settings['partition']}"
        made = [
            ServiceCheckpoints(Path(folder), here, say, "", Refusals(), population, asked.privacy is not None)
            if folder is not None
            else None
            for folder in (given.checkpoint, given.resume)
        ]
        if made[0] and told:
            made[0].directory.told = told
        return SimulatedKeeping(asked, replica, log, judge, made[0], made[0] if same else made[1], every, origin)

    @property
    def origins(self) -> list[RunOrigin]:
        """The runs so far, the first one first."""
        kept = self.writes or self.reads
        return kept.origins if kept else [self.origin]

    @contextmanager
    def begun(self) -> Iterator[VirtualAttempt]:
        """Where the run begins; meanwhile nobody else writes into its folder."""
        with self.writes.directory if self.writes else nullcontext():
            yield self._attempt()

    def _attempt(self) -> VirtualAttempt:
        if self.reads is None:
            return VirtualAttempt()
        if (found := self.reads.found(self.replica, self.log, self.judge)) is None:
            raise CheckpointError(
                f"{self.reads.directory.directory} holds no checkpoint: did the run have {option('checkpoint')}?"
            )
        state, tallies = found
        if self.writes:
            self.writes.follow(self.reads)
        self.asked.options.output.say(going_on(state.done, self.asked.rounds))
        self.last = state.seconds
        return VirtualAttempt(clock=state.seconds, states={COORDINATOR: state}, tallies=tallies)

    def keep(self, actor: VirtualActor, teller: Teller) -> None:
        """Write the run, if it is time or its rounds are over; what privacy costs is written before it is spent."""
        now, pace = actor.world.agenda.now, actor.pace
        if self.writes and (now >= self.last + self.every or pace.over(pace.step) or self.asked.privacy):
            self.writes.keep(actor, now, self.replica, self.log, self.judge, teller)
            self.last = now

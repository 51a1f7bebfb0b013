"""How is a federated run kept between its rounds? Its model, and what it remembers; never a client's update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec

from covey.checkpoint import CheckpointDirectory, RoleState, RunRecord
from covey.decoding import UNREADABLE
from covey.engines.mailbox import Mailbox
from covey.engines.pace import Pace
from covey.engines.process.role.saving import KeptRole, restore, state_of
from covey.engines.remembered import Remembered
from covey.engines.transport.refusals import Refusals
from covey.errors import CheckpointError
from covey.federated.messages import COORDINATOR
from covey.membership import Incarnation
from covey.model.replica import Replica
from covey.observe.facts import RunOrigin
from covey.observe.membership import RoundLog, RoundRecord
from covey.observe.tally import Tally, Teller
from covey.run.federated.round_referee import RoundReferee
from covey.run.kept import after

CLOCKS = {"real": "real clients (covey federate serve)", "virtual": "simulated clients (covey federate simulate)"}


@dataclass(frozen=True, slots=True)
class BetweenRounds:
    """What is kept of the role that holds the model. What clients have sent it is not: they come again."""

    pace: Pace
    memories: Remembered
    rng: Random
    incarnation: Incarnation
    mailbox: Mailbox

    @staticmethod
    def of(role: KeptRole) -> BetweenRounds:
        return BetweenRounds(role.pace, role.memories, role.rng, role.incarnation, Mailbox(lambda message: None))


class ServiceCheckpoints:
    """Keeps a service before each round, and finds what an earlier process of it has kept."""

    def __init__(
        self, folder: Path, here: RunRecord, say: Callable[[str], None], task: str, refusals: Refusals,
        population: str = "", spends: bool = False,
    ) -> None:  # fmt: skip
        """`task` is the hash of the task's file; `refusals` are kept too, for the result.

        A run that `spends` of a privacy budget begins no round before what it spends is written.

        Simulated runs have no hash, and say instead in words how many clients of their `population` have which samples.
        """
        self.directory, self._here, self._say = CheckpointDirectory(folder), here, say
        self._task, self._refusals, self._population = task, refusals, population
        self._spends = spends
        self._failed = False  # the last one could not be written

    @property
    def origins(self) -> list[RunOrigin]:
        """The runs so far, the first one first."""
        return self._here.origins

    def follow(self, before: ServiceCheckpoints) -> None:
        """Go on with the lineage of what another folder keeps."""
        self._here = before._here

    def found(self, replica: Replica, log: RoundLog, judge: RoundReferee) -> tuple[RoleState, list[Tally]] | None:
        """Take over the newest checkpoint, if there is one: the role's state, and what was counted before."""
        if not self.directory.all():
            return None
        place, run = self.directory.newest()
        for line in run.torn:
            self._say(f"{line}; the service goes on from the checkpoint before")
        self._check(place, run)
        try:
            kept = msgspec.convert(run.progress, KeptRounds, str_keys=True)
            for tally, written in zip(kept.tallies, run.progress["tallies"], strict=True):
                tally.check()
                tally.notes = dict(written.get("notes", {}))  # whole numbers stay whole
            judge.resume(kept.history)
        except UNREADABLE as error:
            raise CheckpointError(f"{place} does not say which rounds there were: {error}") from None
        if kept.task != self._task:
            raise CheckpointError(
                f"{place} is of a run with another task file (they differ by their SHA-256): use the same file, or "
                "another folder"
            )
        if kept.population != self._population:
            raise CheckpointError(
                f"{place} is of a run with {kept.population}, and this one has {self._population}: use the same, or "
                "another folder"
            )
        self._here = after(run, self._here)
        state = RoleState.read(place, COORDINATOR)
        restore(replica, state.replica)
        for reason, times in kept.refused.items():
            self._refusals.note(reason, times)
        log.rounds, log.counted = kept.rounds, Counter(kept.counted)
        judge.updates = log.told().committed
        return state, kept.tallies

    def _check(self, place: Path, run: RunRecord) -> None:
        """Refuse the checkpoint of another run."""
        here = self._here
        if run.clock != here.clock:
            theirs, ours = (CLOCKS.get(clock, "workers") for clock in (run.clock, here.clock))
            raise CheckpointError(f"{place} is of a run with {theirs}, and this one has {ours}: use another folder")
        names = {"strategy": "strategy", "seed": "seed"}
        if run.clock == "virtual":  # real clients may be enrolled at any time, with any number of samples
            names |= {"samples": "number of samples", "batch_size": "batch size"}
        for name, words in names.items():
            if (theirs := getattr(run, name)) != (ours := getattr(here, name)):
                raise CheckpointError(
                    f"{place} is of a run with the {words} {theirs}, and this one has {ours}: use the same, or another "
                    "folder"
                )

    def keep(
        self, role: KeptRole, seconds: float, replica: Replica, log: RoundLog, judge: RoundReferee, teller: Teller
    ) -> None:
        """Write a checkpoint; where that fails, the run goes on, and says so once, unless it spends a budget."""
        state = state_of(BetweenRounds.of(role), replica, held=True, ended=False, seconds=seconds)
        kept = KeptRounds(
            task=self._task, rounds=log.rounds, counted=dict(log.counted), history=judge.history,
            tallies=list(teller.tallies.values()), refused=dict(self._refusals.counts), population=self._population,
        )  # fmt: skip
        progress = msgspec.to_builtins(kept, str_keys=True)
        try:
            with self.directory.writing() as partial:
                state.write(partial, COORDINATOR)
                made = self.directory.commit(partial, msgspec.structs.replace(self._here, progress=progress))
        except OSError as error:
            told = f"no checkpoint could be written to {self.directory.directory}: {error.strerror or error}"
            if self._spends and not role.pace.over(role.pace.step):
                raise CheckpointError(
                    f"{told}. What the next round spends of the privacy budget must be written before it: make room "
                    "on the disk, and go on from the last checkpoint"
                ) from None
            if not self._failed:
                self._say(told)
            self._failed = True
        else:
            self._failed = False
            self.directory.told(made)


class KeptRounds(msgspec.Struct, kw_only=True):
    """What a checkpoint says of the rounds before it."""

    task: str  # the hash of its file
    rounds: list[RoundRecord]
    counted: dict[int, int]  # how often the reports of each client counted
    history: list[dict[str, Any]]
    tallies: list[Tally]
    refused: dict[str, Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]] = {}  # how often, by the reason
    population: str = ""  # in a simulated run: how many clients, and which samples they have

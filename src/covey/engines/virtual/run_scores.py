"""How good is the model of a run in virtual time, and why does the run stop? A score takes no virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.keeping import RunKeeper
from covey.engines.virtual.scored_states import Handler, ScoredStates
from covey.engines.virtual.virtual_actor import VirtualActor
from covey.message import Address
from covey.model.scored import Snapshot
from covey.observe.referee import Referee
from covey.observe.result import Stopped
from covey.observe.tally import Teller, read_loss, read_measured
from covey.strategy import Plan

Score = Callable[[Sequence[Snapshot]], Mapping[str, float]]


class RunScores:
    """Scores the model when that is due; the first one that reaches the target is the run's model."""

    def __init__(
        self, plan: Plan, actors: Mapping[Address, VirtualActor], teller: Teller, agenda: Agenda, referee: Referee,
        score: Score | None,
    ) -> None:  # fmt: skip
        self._actors, self.teller, self._agenda, self._referee = actors, teller, agenda, referee
        self._score, self._lockstep = score, plan.lockstep
        self._states = ScoredStates(actors, plan.shown(), teller, referee, self._score_model)
        self._due = False  # a score has its place in the agenda
        self._best: list[Snapshot] = []  # of the model that reached the target
        self.stopped: Stopped | None = None
        self.keeper: RunKeeper | None = None

    def attach(self, handlers: dict[type, Handler]) -> None:
        self._states.attach(handlers)

    def begin(self) -> bool:
        """Score the initial weights, where there is a score; whether they meet the target already."""
        return self._score is not None and self._ends()

    def end(self) -> None:
        """All roles are through: the last score may reach the target, unless something else ended the run."""
        if self.stopped not in ("target", "paused"):
            self._ends()

    def model(self) -> list[Snapshot]:
        """The run's model."""
        return self._best or self._states.now()

    def noted_samples(self) -> None:
        """More samples were computed: score soon, if that is due."""
        if not self._due and not self.stopped and self._referee.due(self.teller.samples, self._agenda.now):
            # Not here: the program has yet to apply what it has just computed.
            self._due = True
            self._agenda.at(self._agenda.now, self._score_now, None)

    def role_ended(self) -> None:
        self._states.ended()

    def stop(self, why: Stopped, _: Any = None) -> None:
        """Let every worker end after the step it is in; in lockstep all after the step of the foremost."""
        self.stopped = self.stopped or why
        paces = [actor.pace for actor in self._actors.values() if actor.role.trains]
        paces = [pace for pace in paces if not pace.over(pace.step)]
        foremost = max((pace.next for pace in paces), default=0)
        for pace in paces:
            pace.stop_at = foremost if self._lockstep else pace.next

    def _ends(self) -> bool:
        reached = self._judge(self._states.now(), self.teller.samples)
        if reached:
            self.stopped = self.stopped or "target"
        return reached

    def _score_now(self, _: Any, __: Any) -> None:
        self._due = False
        self._score_model(self._states.now(), self.teller.samples)

    def _score_model(self, snapshots: list[Snapshot], samples: int) -> None:
        if not self.stopped and self._judge(snapshots, samples):
            self.stop("target")
        elif not self.stopped and self._referee.exhausted:
            self.stop("patience")
        elif not self.stopped and self._referee.paused:
            self.stopped, self._best = "paused", snapshots  # steps until the run is kept are neither scored nor shown
            self._agenda.at(self._agenda.now, self._pause, None)  # not here: a program is about to go on
        self._states.spread(self._referee.followed)

    def _pause(self, _: Any, __: Any) -> None:
        if self.keeper:
            self.keeper.begin(then=lambda: self.stop("paused"))
        else:
            self.stop("paused")

    def _judge(self, snapshots: list[Snapshot], samples: int) -> bool:
        tallies = self.teller.tallies.values()
        metrics = {**(self._score(snapshots) if self._score else {}), **read_measured(tallies)}
        reached = self._referee.judge(self._agenda.now, samples, self.teller.bytes, metrics, read_loss(tallies))
        if reached and not self._best:
            self._best = snapshots
        return reached

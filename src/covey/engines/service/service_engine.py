"""Runs the roles of a service in this process, in real time, for guests that come to its port."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from covey.checkpoint import RoleState
from covey.engines.interrupt import Interrupt
from covey.engines.random_streams import chance
from covey.engines.service.greeting import RunOver
from covey.engines.service.role_loop import LoopRole, RoleLoop, closing
from covey.engines.service.service_port import ServicePort
from covey.membership import Departed
from covey.message import Address, payload, stamped
from covey.model.replica import Replica
from covey.model.scored import Snapshot
from covey.observe.instruments import Instrument, Instruments
from covey.observe.referee import Referee
from covey.observe.result import Stopped
from covey.observe.tally import Tally, Teller, read_loss
from covey.program import Note, Send
from covey.strategy import Plan

LOOK = 0.2  # seconds after which one looks again whether a person wants the end
LINGER = 10.0  # seconds for which guests that come again after the end are told so

Score = Callable[[Sequence[Snapshot]], Mapping[str, float]]


@dataclass(kw_only=True, slots=True)
class ServiceWishes:
    """What a service does beside its rounds.

    Args:
        judge: When the model is scored, and whether that is good enough.
        score: What scores it; None: only losses are written down.
        teller: Counts what the roles do.
        watching: Who else hears of it.
        interrupt: Whether a person has asked for the end.
        look: Called several times a second.
        keep: Writes a checkpoint of the role that holds the model, before each of its steps.
        kept: What a checkpoint has of that role.
        linger: For how many seconds guests that come again after the end are told so.
        over: Called when the last round is.
    """

    judge: Referee
    score: Score | None
    teller: Teller
    interrupt: Interrupt
    look: Callable[[], None]
    watching: Sequence[Instrument] = ()
    keep: Callable[[LoopRole, float], None] | None = None
    kept: RoleState | None = None
    linger: float = LINGER
    over: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """What came of it."""

    seconds: float
    stopped: Stopped
    snapshots: list[Snapshot]
    tallies: Mapping[Address, Tally]


class ServiceEngine:
    """Performs the programs of a service's roles; scores are computed while guests are still heard."""

    def __init__(
        self, plan: Plan, replicas: Mapping[Address, Replica], port: ServicePort, wishes: ServiceWishes
    ) -> None:
        self._plan, self._replicas, self._port, self._wishes = plan, replicas, port, wishes
        self._watch = Instruments([wishes.teller, *wishes.watching])
        before = wishes.kept.seconds if wishes.kept else 0.0
        self._loop = RoleLoop(self._send, self._watch, before)
        self._loop.noted = self._noted
        self._holder = next(role.address for role in plan.roles if role.scored)
        self._stopped: Stopped | None = None
        self._best: list[Snapshot] = []  # of the model that reached the target

    def run(self) -> ServiceOutcome:
        wishes = self._wishes
        with closing(self._loop):
            first = self._judge(wishes.score(self._snapshots())) if wishes.score and not wishes.kept else False
            if not first:
                self._serve()
            if not self._best:
                self._judge(wishes.score(self._snapshots()) if wishes.score else {})
            seconds = self._loop.now
            self._see_off()
        stopped = self._stopped or "budget"
        return ServiceOutcome(seconds, stopped, self._best or self._snapshots(), wishes.teller.tallies)

    def _serve(self) -> None:
        for role in self._plan.roles:
            self._begin(role.address)
        while True:
            pause = self._loop.run()
            if self._over():
                return
            for to, message in self._port.poll(LOOK if pause is None else min(pause, LOOK), self._loop.wakeup):
                self._watch.sent(self._loop.now, message.sender, to, message, payload(message))
                self._loop.deliver(to, message)
            self._wishes.look()

    def _begin(self, who: Address) -> None:
        plan, wishes, holder = self._plan, self._wishes, who == self._holder
        role = LoopRole(
            who, chance(plan.seed, who), steps=plan.steps_of(0) if holder else None, seed=plan.seed,
            kept=wishes.kept if holder else None, taken=self._port.taken,
        )  # fmt: skip
        if holder and wishes.keep:
            role.between = lambda role: wishes.keep(role, self._loop.now) if wishes.keep else None
        self._loop.begin(role, plan.role(who).program(role.node, self._replicas[who]))

    def _over(self) -> bool:
        if self._wishes.interrupt.asked and self._stopped is None:
            self._stopped = "interrupted"
        return self._stopped == "interrupted" or all(role.ended for role in self._loop.roles.values())

    def _see_off(self) -> None:
        """Tell all guests that the run is over, also those that come again in the next seconds; not if it goes on."""
        if self._stopped == "interrupted":
            return self._port.close()
        self._wishes.over()
        until, port = time.monotonic() + self._wishes.linger, self._port
        for guest in list(port.present):
            port.send(self._holder, guest, RunOver())
        while time.monotonic() < until and not self._wishes.interrupt.asked and port.visits.keys() - port.seen_off:
            port.poll(LOOK)
        port.close()

    # -- effects ------------------------------------------------------------------------------------------------------

    def _send(self, role: LoopRole, effect: Send) -> None:
        body, loop = effect.body, self._loop
        self._watch.sent(loop.now, role.address, effect.to, body, payload(body))
        if effect.to in loop.roles:
            loop.deliver(effect.to, stamped(body, role.address, copy=not effect.loan))
        elif not self._port.send(role.address, effect.to, body, effect.loan):
            loop.deliver(role.address, Departed(incarnation=self._port.visits[effect.to], sender=effect.to))

    def _noted(self, role: LoopRole, note: Note) -> object:
        """Score the model after an update, if that is due: the program goes on with the next round afterwards."""
        judge, teller, score = self._wishes.judge, self._wishes.teller, self._wishes.score
        if note.kind != "samples" or self._stopped or not judge.due(teller.samples, self._loop.now):
            return None
        shown = self._snapshots()
        work = partial(score, shown) if score else dict
        return self._loop.compute(role, work, lambda metrics: self._scored(role, shown, metrics))

    def _scored(self, role: LoopRole, shown: list[Snapshot], metrics: Mapping[str, float]) -> None:
        if self._judge(metrics):
            self._stopped, self._best = "target", shown
            role.pace.stop_at = role.pace.next

    def _judge(self, metrics: Mapping[str, float]) -> bool:
        teller = self._wishes.teller
        loss = read_loss(teller.tallies.values())
        reached = self._wishes.judge.judge(self._loop.now, teller.samples, teller.bytes, metrics, loss)
        if reached and not self._stopped:
            self._stopped = "target"
        return reached

    def _snapshots(self) -> list[Snapshot]:
        return [self._replicas[role.address].snapshot(role.scored, role.trains) for role in self._plan.shown()]

"""Front and replicas in virtual time: the same programs, over arrivals that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from covey.engines.service.role_loop import LoopRole
from covey.engines.virtual.agenda import Agenda
from covey.inference.front import front
from covey.inference.messages import (
    CLIENTS,
    FRONT,
    EndReplica,
    InferenceAnswer,
    InferenceFeedback,
    InferenceRequest,
    ReplicaLost,
    RetireReplica,
    StartReplica,
    TrialDecided,
)
from covey.inference.path.path_costs import PathCosts
from covey.inference.path.virtual_path import VirtualPath
from covey.inference.replicas.replica import BatchModel, BatchTrial, replica
from covey.inference.replicas.stage import StagePlace, first_stage, last_stage, middle_stage
from covey.inference.request_desk import FrontSettings
from covey.inference.scaling.scaler import ScalerSettings, scaler
from covey.inference.versions.choice import VersionChoice
from covey.message import Address, Message, stamped
from covey.program import Compute, Effect, Note, Now, Receive, Send, Sleep
from covey.vector import Vector

WAIT: Final = object()
ROW: Final = torch.zeros(1)


class VirtualAnswer(NamedTuple):
    """When a request came, when it was answered, and how."""

    arrived: float
    answered: float
    answer: InferenceAnswer

    @property
    def seconds(self) -> float:
        return self.answered - self.arrived


class VirtualService:
    """A front and its replicas on an agenda.

    Args:
        settings: Of the front.
        replicas: How many there are.
        seconds: How long a replica computes a batch of so many requests; or, of replicas in stages, each of these.
        model: What it computes; or a model of each version.
        link: Seconds that a message takes, where there is no path.
        path: What requests cost beside the model; None: nothing.
        cores: Those that clients, front and replicas share; None: each has a machine of its own.
        scaled: How the scaler chooses the number of replicas; None leaves it as it is.
        setup: Seconds from the wish for a replica until its program begins.
        choice: Which version computes a request; version 0 has the replicas of even rank where there are two.
    """

    def __init__(
        self, settings: FrontSettings, replicas: int,
        seconds: Callable[[int], float] | Sequence[Callable[[int], float]],
        model: BatchModel | Sequence[BatchModel] = lambda rows: rows, link: float = 0.0, *,
        path: PathCosts | None = None, cores: int | None = None, scaled: ScalerSettings | None = None,
        setup: float = 0.0, choice: VersionChoice | None = None,
    ) -> None:  # fmt: skip
        self.answers: dict[int, VirtualAnswer] = {}
        self.batches: list[tuple[float, int]] = []  # when each was sent, and how large it was
        self._agenda, self._link = Agenda(), link
        self._seconds = [seconds] if callable(seconds) else seconds
        self._models = [model] if callable(model) else model
        self._path = VirtualPath(self._agenda, path, cores, self._hear, self._deliver) if path else None
        self._trial = BatchTrial(ROW[None], settings.budget, settings.largest) if scaled else None
        self._setup = setup
        self._since: dict[Address, float] = {}  # when each replica was wished for
        self.decided: tuple[float, TrialDecided] | None = None
        self.most = 0  # replicas at a time
        self._used = 0.0  # replica-seconds of those that are gone
        self._arrived: dict[int, float] = {}
        self._roles: dict[Address, LoopRole] = {}
        self._waits: dict[Address, int] = {}  # how often a role has begun to wait: a timeout is of one wait
        self._perform: dict[type, Callable[[LoopRole, Any], Any]] = {
            Send: self._send, Receive: self._receive, Compute: self._compute, Note: self._note,
            Sleep: self._sleep, Now: lambda role, effect: self._agenda.now,
        }  # fmt: skip
        self._begin(FRONT, lambda role: front(role.node, settings, choice))
        for rank in range(replicas):
            self.join(0.0, rank)
        if scaled:
            for version in range(scaled.versions):
                self._begin(Address("scaler", version), lambda role: scaler(role.node, scaled))

    @property
    def replica_seconds(self) -> float:
        """How long replicas were there, all together, with the times in which they were set up."""
        return self._used + sum(self._agenda.now - since for since in self._since.values())

    @property
    def busy(self) -> float:
        """The share of time in which the front worked while requests came, on average over them."""
        if self._path is None:
            return 0.0
        return fmean(min(1.0, self._path.worked[int(one.answered)]) for one in self.answers.values())

    def request(self, at: float, row: Tensor = ROW, key: str = "") -> int:
        """Somebody will ask at this time; the ticket of that."""
        ticket = len(self._arrived)
        self._arrived[ticket] = at
        asked = InferenceRequest(ticket, Vector([row]), key, sender=CLIENTS)
        self._agenda.at(at, self._ask, asked)
        return ticket

    def judge(self, at: float, ticket: int, loss: float | None = None, label: int | None = None) -> None:
        """Somebody will say at this time how good an answer was."""
        self._agenda.at(at, self._deliver, FRONT, InferenceFeedback(ticket, loss, label, sender=CLIENTS))

    def join(self, at: float, rank: int) -> None:
        """A replica will be there from this time on."""
        who = Address("replica", rank)
        self._agenda.at(at, self._join, who)

    def lose(self, at: float, rank: int) -> None:
        """A replica will be gone at this time."""
        self._agenda.at(at, self._end, Address("replica", rank))

    def run(self) -> list[VirtualAnswer]:
        """The answers to all requests, in the order of asking."""
        while len(self.answers) < len(self._arrived):
            self._agenda.step()
        return [self.answers[ticket] for ticket in sorted(self.answers)]

    def _begin(self, who: Address, program: Callable[[LoopRole], Coroutine[Effect[Any], Any, None]]) -> None:
        role = LoopRole(who, Random(0))
        self._roles[who], role.program = role, program(role)
        self._advance(role, None)

    def _join(self, who: Address, _: object) -> None:
        self._since[who] = max(0.0, self._agenda.now - self._setup)
        self.most = max(self.most, len(self._since))
        model = self._models[who.rank % len(self._models)]
        if len(self._seconds) == 1:
            return self._begin(who, lambda role: replica(role.node, model, self._trial))
        for place in self._places(who):
            self._begin(place.address, partial(_stage_program, place, model))
        return None

    def _places(self, who: Address) -> list[StagePlace]:
        return [StagePlace(who.rank, number, len(self._seconds)) for number in range(len(self._seconds))]

    def _end(self, who: Address, _: object) -> None:
        for place in self._places(who):
            self._roles.pop(place.address).close()
        self._used += self._agenda.now - self._since.pop(who)
        self._deliver(FRONT, ReplicaLost(sender=who))

    def _advance(self, role: LoopRole, value: Any) -> None:
        if self._roles.get(role.address) is not role:
            return  # it was lost meanwhile
        assert role.program is not None
        while value is not WAIT:
            try:
                effect = role.program.throw(value) if isinstance(value, Exception) else role.program.send(value)
            except StopIteration:
                return  # only scalers end, when their version is not wanted
            value = self._perform[type(effect)](role, effect)

    def _deliver(self, to: Address, message: Message) -> None:
        if to == CLIENTS:
            assert isinstance(message, InferenceAnswer)
            assert message.ticket not in self.answers, f"request {message.ticket} was answered twice"
            now = self._agenda.now
            self.answers[message.ticket] = VirtualAnswer(self._arrived[message.ticket], now, message)
        elif role := self._roles.get(to):
            role.mailbox.put(message)
            if role.want and (found := role.mailbox.take(role.want)):
                self._wake(role, found)

    def _ask(self, request: Message, _: object) -> None:
        if self._path:
            self._path.ask(request)
        else:
            self._deliver(FRONT, request)

    def _hear(self, messages: Sequence[Message]) -> None:
        """The front has read all of these before its program goes on."""
        role = self._roles[FRONT]
        for message in messages:
            role.mailbox.put(message)
        if role.want and (found := role.mailbox.take(role.want)):
            self._wake(role, found)

    def _wake(self, role: LoopRole, value: Message | None) -> None:
        role.want = None
        self._advance(role, value)

    def _send(self, role: LoopRole, effect: Send) -> None:
        if isinstance(effect.body, TrialDecided):
            self.decided = self._agenda.now, effect.body
            return None
        if isinstance(effect.body, StartReplica):
            self.join(self._agenda.now + self._setup, effect.body.rank)
            return None
        if isinstance(effect.body, EndReplica | RetireReplica) and effect.to != FRONT:
            self._agenda.at(self._agenda.now, self._end, effect.to)
            return None
        sender = role.address
        if sender.role == "stage":  # the front knows replicas only
            sender = Address("replica", sender.rank // len(self._seconds))
        message = stamped(effect.body, sender, copy=False)
        if self._path and "scaler" not in (role.address.role, effect.to.role):
            if role.address == FRONT:
                self._path.send(effect.to, message)
            elif effect.to == FRONT:
                self._path.heard(message)
            else:
                self._path.passed_on(effect.to, message)
        else:
            self._agenda.at(self._agenda.now + self._link, self._deliver, effect.to, message)
        return None

    def _receive(self, role: LoopRole, effect: Receive) -> Any:
        if (found := role.mailbox.take(effect)) is not None:
            return found
        role.want, waits = effect, self._waits.get(role.address, 0) + 1
        self._waits[role.address] = waits
        if effect.timeout is not None:
            self._agenda.at(self._agenda.now + effect.timeout, self._timeout, role, waits)
        return WAIT

    def _sleep(self, role: LoopRole, effect: Sleep) -> object:
        self._agenda.at(self._agenda.now + effect.seconds, self._advance, role, None)
        return WAIT

    def _timeout(self, role: LoopRole, waits: int) -> None:
        if role.want is not None and self._waits[role.address] == waits:
            self._wake(role, None)

    def _compute(self, role: LoopRole, effect: Compute[Any]) -> object:
        try:
            found = effect.work()
        except Exception as error:
            found = error
        number = role.address.rank % len(self._seconds) if role.address.role == "stage" else 0
        seconds = self._seconds[number](int(effect.load))
        if self._path:
            self._path.compute(seconds, int(effect.load), self._advance, role, found)
        else:
            self._agenda.at(self._agenda.now + seconds, self._advance, role, found)
        return WAIT

    def _note(self, role: LoopRole, effect: Note) -> None:
        if effect.kind == "batch":
            self.batches.append((self._agenda.now, int(effect.value)))


def _stage_program(place: StagePlace, model: BatchModel, role: LoopRole) -> Coroutine[Effect[Any], Any, None]:
    """The first stage computes the model, and the others pass on what it made: only their times count."""
    if place.number == 0:
        return first_stage(role.node, place, lambda values, count: [model(values[0])], ROW[None])
    if place.last:
        return last_stage(role.node, lambda values, count: values, model, None)
    return middle_stage(role.node, place, lambda values, count: values)

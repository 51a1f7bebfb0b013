"""The front's program in real time, on the loop of a web server."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from random import Random

from torch import Tensor

from covey.engines.service.role_loop import LoopRole, RoleLoop
from covey.inference.front import front
from covey.inference.messages import CLIENTS, FRONT, InferenceAnswer, InferenceFeedback, InferenceRequest, TrialDecided
from covey.inference.request_desk import FrontSettings
from covey.inference.scaling.scaler import ScalerSettings, scaler
from covey.inference.schema import key_of
from covey.inference.versions.choice import OneVersion, VersionChoice
from covey.message import Address, Message, stamped
from covey.observe.instruments import Instrument
from covey.program import Note, Send
from covey.vector import Vector

REMEMBERED = 10_000  # requests whose times are


class FrontDriver:
    """Drives the front's program, and lets coroutines ask it.

    Args:
        settings: Of the front.
        send: Passes a message on to a replica, or to whoever starts them.
        scaled: How the scaler chooses the number of replicas; without, there is none.
        choice: Which version computes a request.
    """

    def __init__(
        self, settings: FrontSettings, send: Callable[[Address, Message], None], scaled: ScalerSettings | None = None,
        choice: VersionChoice | None = None,
    ) -> None:  # fmt: skip
        self.statuses: Counter[int] = Counter()
        self.times: deque[float] = deque(maxlen=REMEMBERED)  # seconds of answers with status 200
        self.batches: deque[int] = deque(maxlen=REMEMBERED)
        self.batches_sent = 0
        self._settings, self._to_replica = settings, send
        self._asked: dict[int, asyncio.Future[InferenceAnswer]] = {}
        self._alarm: asyncio.Handle | None = None
        self._due = 0.0  # when it rings: uvloop's handles of short pauses do not say so
        self._soon: asyncio.Handle | None = None
        self._loop = RoleLoop(self._send, Instrument())
        self._loop.noted = self._noted
        self.choice = choice or OneVersion()
        self.decided: Callable[[TrialDecided], None] = lambda decided: None
        role = LoopRole(FRONT, Random())
        self._loop.begin(role, front(role.node, settings, self.choice))
        for version in range(scaled.versions if scaled else 0):
            assert scaled is not None
            role = LoopRole(Address("scaler", version), Random(0))
            self._loop.begin(role, scaler(role.node, scaled))
        self._go_on()

    async def ask(self, row: Tensor) -> InferenceAnswer:
        """The answer to one input."""
        # Whoever knows it can judge the answer: nobody else may guess it.
        ticket, begun, clock = secrets.randbits(64), self._loop.now, asyncio.get_running_loop()
        future: asyncio.Future[InferenceAnswer] = clock.create_future()
        self._asked[ticket] = future
        try:
            key = key_of(row) if self._settings.cache else ""
            self._loop.deliver(FRONT, InferenceRequest(ticket, Vector([row]), key, sender=CLIENTS))
            self._soon = self._soon or clock.call_soon(self._asked_together)
            answer = await future
        finally:
            self._asked.pop(ticket, None)  # a client that has hung up waits for nothing
        self.statuses[answer.status] += 1
        if answer.status == 200:
            self.times.append(self._loop.now - begun)
        return answer

    def judge(self, ticket: int, loss: float | None, label: int | None) -> str:
        """A client says how good an answer was; why that would change nothing, if it would not."""
        feedback = InferenceFeedback(ticket, loss, label, sender=CLIENTS)
        if not (reason := self.choice.objection(feedback)):
            self.deliver(feedback)
        return reason

    def deliver(self, message: Message) -> None:
        """The front hears this."""
        self._loop.deliver(FRONT, message)
        self._go_on()

    def close(self) -> None:
        for handle in (self._alarm, self._soon):
            if handle:
                handle.cancel()
        self._loop.close()

    def _go_on(self) -> None:
        pause, clock = self._loop.run(), asyncio.get_running_loop()
        if pause is None:
            return
        due = clock.time() + pause
        if self._alarm is not None:
            if self._due <= due:  # an earlier alarm is early enough
                return
            self._alarm.cancel()
        self._alarm, self._due = clock.call_later(pause, self._alarmed), due

    def _asked_together(self) -> None:
        """The front goes on when all requests that have just come were read: together they are one batch."""
        self._soon = None
        self._go_on()

    def _alarmed(self) -> None:
        self._alarm = None
        self._go_on()

    def _send(self, role: LoopRole, effect: Send) -> None:
        if isinstance(effect.body, TrialDecided):
            return self.decided(effect.body)
        if effect.to in self._loop.roles:
            return self._loop.deliver(effect.to, stamped(effect.body, role.address, copy=False))
        if effect.to != CLIENTS:
            return self._to_replica(effect.to, stamped(effect.body, role.address, copy=False))
        assert isinstance(effect.body, InferenceAnswer)
        if (asked := self._asked.get(effect.body.ticket)) and not asked.done():
            asked.set_result(effect.body)
        return None

    def _noted(self, role: LoopRole, note: Note) -> None:
        if note.kind == "batch":
            self.batches.append(int(note.value))
            self.batches_sent += 1

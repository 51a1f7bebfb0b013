"""The path of a request in virtual time: the front's event loop, and processes that wake up and share cores."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.cores import Act, Cores, RoleThread
from covey.inference.messages import CLIENTS, AnsweredBatch, InferenceRequest, RequestBatch
from covey.inference.path.path_costs import PathCosts
from covey.message import Address, Message
from covey.simulate import Machine


class VirtualPath:
    """What a request passes beside the model, with the times that were measured.

    The front reads all that has come, lets its program run, passes its batches on, writes its answers, and looks again:
    requests that come meanwhile are read together. A process that waits takes a moment to wake up.

    Args:
        agenda: Of the service.
        costs: What everything costs.
        cores: Those that clients, front and replicas share; None: each has a machine of its own.
        hear: Lets the front's program have messages.
        deliver: Lets a replica, or the clients, have one.
    """

    def __init__(
        self, agenda: Agenda, costs: PathCosts, cores: int | None, hear: Callable[[Sequence[Message]], None],
        deliver: Callable[[Address, Message], None],
    ) -> None:  # fmt: skip
        self._agenda, self._costs, self._hear, self._deliver = agenda, costs, hear, deliver
        self._cores = Cores(agenda, Machine(cores=cores) if cores else None)
        self._client = RoleThread(self._cores)
        self._chance = Random(0)
        self._came: list[Message] = []  # what the front has not read
        self._batches: deque[tuple[Address, Message]] = deque()  # what it has to pass on
        self._answers: deque[tuple[Address, Message]] = deque()  # what it has to write
        self._busy = False
        self.worked: defaultdict[int, float] = defaultdict(float)  # by second: how much of it the front worked

    def ask(self, request: Message) -> None:
        """A client asks now."""
        self._client.do(self._costs.client / 2, self._heard, request)

    def heard(self, message: Message) -> None:
        """This comes to the front."""
        self._came.append(message)
        if not self._busy:
            self._busy = True
            self._later(self._wake(), self._read)

    def send(self, to: Address, message: Message) -> None:
        """The front sends this, as soon as it can."""
        (self._answers if to == CLIENTS else self._batches).append((to, message))
        if not self._busy:
            self._busy = True
            self._write()

    def compute(self, seconds: float, count: int, act: Act, subject: Any, value: Any) -> None:
        """Call `act(subject, value)` when a replica has computed a batch of so many, on a thread, and has woken up."""
        work = seconds + self._costs.replica + count * self._costs.row

        def begin(_: object, __: object) -> None:
            self._cores.run(work, 1, end, None, None)

        def end(_: object, __: object) -> None:
            self._agenda.at(self._agenda.now + self._wake(), act, subject, value)

        self._agenda.at(self._agenda.now + self._wake(), begin, None, None)

    def passed_on(self, to: Address, message: Message) -> None:
        """A message between processes that are not the front."""
        self._agenda.at(self._agenda.now + self._wake(), self._arrived, to, message)

    def _heard(self, request: Message, _: object) -> None:
        self.heard(request)

    def _read(self) -> None:
        came, self._came = self._came, []
        self._work(sum(map(self._reading, came)), lambda: self._react(came))

    def _react(self, came: Sequence[Message]) -> None:
        self._hear(came)
        self._write()

    def _write(self) -> None:
        """Write one thing after the other; batches first, as the event loop does."""
        if queue := self._batches or self._answers:
            to, message = queue.popleft()
            cost = self._costs.request if to == CLIENTS else self._costs.batch if _is_batch(message) else 0.0
            self._work(cost / 2, lambda: self._written(to, message))
        elif self._came:
            self._read()
        else:
            self._busy = False

    def _written(self, to: Address, message: Message) -> None:
        if to == CLIENTS:
            self._later(self._wake(), lambda: self._client.do(self._costs.client / 2, self._arrived, to, message))
        else:
            self.passed_on(to, message)
        self._write()

    def _arrived(self, to: Address, message: Message) -> None:
        self._deliver(to, message)

    def _reading(self, message: Message) -> float:
        if isinstance(message, InferenceRequest):
            return self._costs.request / 2
        return self._costs.batch / 2 if isinstance(message, AnsweredBatch) else 0.0

    def _work(self, seconds: float, then: Callable[[], None]) -> None:
        """The front computes for so long."""
        begin = self._agenda.now

        def done(_: object, __: object) -> None:
            self.worked[int(begin)] += self._agenda.now - begin
            then()

        self._cores.run(seconds, 1, done, None, None)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._agenda.at(self._agenda.now + seconds, lambda _, __: act(), None, None)

    def _wake(self) -> float:
        return self._chance.choice(self._costs.wakes)


def _is_batch(message: Message) -> bool:
    return isinstance(message, RequestBatch)

"""Programs of a few roles in real time, on one thread: what they compute has a thread of its own."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final, NoReturn, TypeVar

from covey.checkpoint import RoleState
from covey.engines.mailbox import Mailbox
from covey.engines.pace import Pace
from covey.engines.remembered import Remembered
from covey.membership import Incarnation
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.program import Compute, Effect, Memory, Node, Note, Now, Receive, SavePoint, Send, Sleep
from covey.vector import Vector

T = TypeVar("T")

WAIT: Final = object()
"""What a handler of an effect answers when the program goes on later."""


class LoopRole:
    """The host of one role of a loop: its mailbox, its steps, and what its node may ask."""

    def __init__(
        self, address: Address, rng: Random, *, steps: int | None = None, seed: int = 0, kept: RoleState | None = None,
        taken: Callable[[Message], None] = lambda message: None, incarnation: int = 0,
    ) -> None:  # fmt: skip
        self.address, self.rng, self.incarnation = address, rng, Incarnation(number=incarnation)
        self.begun = kept.done if kept else 0
        self.pace = Pace(steps, self.begun)
        self.mailbox = Mailbox(taken)
        self.memories = Remembered(address, kept)
        self.node = Node(address, (steps,), self, rng, seed)
        self.between: Callable[[LoopRole], None] = lambda role: None  # called before each step, and at save points
        self.program: Coroutine[Effect[Any], Any, Any] | None = None
        self.want: Receive | None = None
        self.since = 0.0  # when it began to wait
        self.deadline: float | None = None
        self.ended, self.result = False, None

    def close(self) -> None:
        """End its program where it stands; one that awaits while it is closed must not hide why that is done."""
        if self.program is not None:
            with suppress(RuntimeError):
                self.program.close()

    # -- what a node asks ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.pace.step

    def training(self) -> bool:
        going = self.pace.training()
        self.between(self)
        return going

    def receive_nowait(self, want: Receive) -> Message | None:
        return self.mailbox.take(want)

    def room(self, to: Address) -> bool:
        return True

    def remember(self, name: str, value: T) -> Memory[T]:
        return self.memories.remember(name, value)

    def post(self, message: Message, progress: float) -> None:
        self.mailbox.put(message)

    def machine_of(self, who: Address) -> object:
        return who

    def forget_sums(self) -> None:
        """There are no sums over groups here."""

    def measure(self, kind: str, value: float) -> None:
        """Nobody asks for what programs measure of themselves."""

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> NoReturn:
        raise TypeError(f"{self.address} has no peers that its work could ask")

    def share(self, vector: Vector, place: int) -> NoReturn:
        raise TypeError(f"{self.address} shares no memory")


class RoleLoop:
    """Performs the effects of its roles; whoever has it delivers messages, and waits for more as long as it says."""

    def __init__(self, send: Callable[[LoopRole, Send], None], watch: Instrument, before: float = 0.0) -> None:
        """`send` passes a message on, at once; `before` is how many seconds an earlier loop has run."""
        self.roles: dict[Address, LoopRole] = {}
        self.noted: Callable[[LoopRole, Note], object] = lambda role, note: None  # may answer `compute(…)`
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable when something was computed
        self._send, self._watch = send, watch
        self._began = time.monotonic() - before
        self._computes = False  # whether anything was ever computed
        self._ready: deque[tuple[LoopRole, Any]] = deque()
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._computed: deque[tuple[LoopRole, Future[Any], Callable[[Any], Any], float]] = deque()
        self._handlers: dict[type, Callable[[LoopRole, Any], Any]] = {
            Send: self._sending, Receive: self._receive, Compute: self._work, Sleep: self._sleep,
            Now: lambda role, effect: self.now, Note: self._note, SavePoint: lambda role, effect: role.between(role),
        }  # fmt: skip

    @property
    def now(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self._began

    def begin(self, role: LoopRole, program: Coroutine[Effect[Any], Any, Any]) -> None:
        """Let a role begin."""
        self.roles[role.address], role.program = role, program
        self._ready.append((role, None))

    def deliver(self, to: Address, message: Message) -> None:
        """A message has come."""
        role = self.roles[to]
        self._watch.delivered(self.now, message.sender, to, message, 0)
        if role.ended:
            role.mailbox.taken(message)
            return
        role.mailbox.put(message)
        if role.want and (found := role.mailbox.take(role.want)) is not None:
            self._wake(role, found)

    def run(self) -> float | None:
        """Let every program go on that can; the seconds until one of them wants to be woken."""
        self._collect()
        self._ring_clocks()
        while self._ready:
            self._advance(*self._ready.popleft())
        now = self.now
        waits = [role.deadline - now for role in self.roles.values() if role.deadline is not None and not role.ended]
        return max(0.0, min(waits)) if waits else None

    def compute(self, role: LoopRole, work: Callable[[], Any], then: Callable[[Any], Any]) -> object:
        """Run something on the compute thread; its role goes on with what `then` makes of the answer."""
        begin, future, self._computes = self.now, self._compute.submit(work), True

        def computed(_: Future[Any]) -> None:
            self._computed.append((role, future, then, begin))
            with suppress(OSError):  # the loop may be closed
                os.eventfd_write(self.wakeup, 1)

        future.add_done_callback(computed)
        return WAIT

    def close(self) -> None:
        """End all programs; what is being computed is waited for, as a thread cannot be ended."""
        for role in self.roles.values():
            role.close()
        self._compute.shutdown(cancel_futures=True)
        os.close(self.wakeup)

    def _advance(self, role: LoopRole, value: Any) -> None:
        assert role.program is not None
        resume = role.program.send
        if isinstance(value, _Raised):
            resume, value = role.program.throw, value.error
        while not role.ended:
            try:
                effect = resume(value)
            except StopIteration as done:
                role.ended, role.result = True, done.value
                self._watch.ended(self.now, role.address)
                return
            value, resume = self._perform(role, effect), role.program.send
            if value is WAIT:
                return

    def _perform(self, role: LoopRole, effect: Effect[Any]) -> Any:
        handler = self._handlers.get(type(effect))
        if handler is None:
            raise TypeError(f"{role.address} awaited a {type(effect).__name__}, which only roles of a run can await")
        return handler(role, effect)

    def _sending(self, role: LoopRole, effect: Send) -> None:
        self._send(role, effect)

    def _receive(self, role: LoopRole, effect: Receive) -> Any:
        if (found := role.mailbox.take(effect)) is not None:
            return found
        role.want, role.since = effect, self.now
        role.deadline = None if effect.timeout is None else role.since + max(0.0, effect.timeout)
        return WAIT

    def _work(self, role: LoopRole, effect: Compute[Any]) -> object:
        return self.compute(role, effect.work, lambda found: found)

    def _sleep(self, role: LoopRole, effect: Sleep) -> object:
        role.since = self.now
        role.deadline = role.since + effect.seconds
        return WAIT

    def _note(self, role: LoopRole, effect: Note) -> object:
        self._watch.noted(self.now, role.address, effect.kind, effect.value)
        return self.noted(role, effect)

    def _wake(self, role: LoopRole, value: Any) -> None:
        if role.want is not None:
            self._watch.waited(role.since, self.now, role.address, str(role.want))
        role.want = role.deadline = None
        self._ready.append((role, value))

    def _ring_clocks(self) -> None:
        now = self.now
        for role in self.roles.values():
            if role.deadline is not None and role.deadline <= now and not role.ended:
                self._wake(role, None)

    def _collect(self) -> None:
        if not self._computes:
            return
        with suppress(BlockingIOError):
            os.eventfd_read(self.wakeup)
        while self._computed:
            role, future, then, begin = self._computed.popleft()
            self._watch.computed(begin, self.now, role.address)
            if error := future.exception():
                self._ready.append((role, _Raised(error)))
            else:
                self._ready.append((role, then(future.result())))


class _Raised:
    """What computing raised, for the program that waits for it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@contextmanager
def closing(loop: RoleLoop) -> Iterator[RoleLoop]:
    """A loop that leaves nothing behind."""
    try:
        yield loop
    finally:
        loop.close()

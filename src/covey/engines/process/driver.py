"""The process engine: performs the effects of one role's programs in real time, over real sockets, on one thread."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from covey.checkpoint import RoleState
from covey.engines.chance import chance
from covey.engines.process import commons, control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.counsel import Counsel
from covey.engines.process.desk import Desk
from covey.engines.process.keeping import restore
from covey.engines.process.native import NativeSum, Sums, ring_bytes
from covey.engines.transport.zmq import ZmqTransport, landed
from covey.message import Address, Message, check_finite, payload, vectors
from covey.observe import usage
from covey.observe.recording import RecordingTeller
from covey.observe.tally import Teller
from covey.program import (
    Collective,
    Compute,
    Effect,
    Mailbox,
    Memory,
    Node,
    Note,
    Now,
    Pace,
    Receive,
    Send,
    Sleep,
    Spawn,
)  # fmt: skip
from covey.replica import Replica, Snapshot
from covey.strategy import Plan, Role
from covey.vector import Vector

T = TypeVar("T")
REPORT_EVERY = 0.02  # seconds; a report costs about 50 us
MEASURE_EVERY = 0.2  # seconds between two looks at what the process uses
SCORER = Address("scorer", 0)


class Over(Exception):
    """The user's own loop has ended; raised in place of the gradient it will not give."""


class Shot(Message):
    """A role's part of the scored model, on its way to the scorer."""

    weight: float
    piece: tuple[tuple[int, int], ...]
    params: Vector
    buffers: Vector

    counted = False


class Running:
    """A program, and the effect it waits for."""

    __slots__ = ("coroutine", "effect", "main", "since")

    def __init__(self, coroutine: Coroutine[Effect[Any], Any, None], main: bool) -> None:
        self.coroutine, self.main = coroutine, main
        self.effect: Effect[Any] | None = None
        self.since = 0.0


class Driver:
    """One role: its programs, its mailbox, its links, and the line to the launcher."""

    def __init__(
        self, plan: Plan, role: Role, replica: Replica, links: ZmqTransport, line: control.RoleLine, desk: Desk,
        obey: Callable[[Driver, control.Downward], None], kept: RoleState | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.role, self.replica, self.links, self.line, self.desk = plan, role, replica, links, line, desk
        self.address, self.obey = role.address, obey
        role.check(replica)
        limit = plan.limits[role.address.rank] if role.trains else 0
        self.pace = Pace(limit, kept.done if kept else 0)
        self.homes = plan.homes()
        self.mailbox = Mailbox()
        self.rng = chance(plan.seed, role.address)
        self.memories: list[Memory[Any]] = []
        self.past: list[Any] = []  # what the program had remembered when it began again
        self.kept = kept
        self.teller = RecordingTeller() if plan.traced else Teller()
        self.watch = Stopwatch(kept.seconds if kept else 0.0)
        self.programs: list[Running] = []
        self.ready: deque[tuple[Running, Any, BaseException | None]] = deque()
        self.line_up: deque[Running] = deque()  # computes that wait for the desk, or for the thaw
        self.computing: Running | None = None
        self.counsel = Counsel(self)
        self.sums: Sums | None = None  # the engine's own collectives
        self.began = 0.0
        self.frozen = self.ended = self.quit = False
        self.held: Running | None = None
        self.reported = self.measured = 0.0
        if kept:
            restore(replica, kept.replica)
            kept.restore_chance(self.rng)
            self.mailbox.waiting.extend(kept.mailbox)

    # -- Host: the facts -------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.pace.step

    def training(self) -> bool:
        return self.pace.training()

    def receive_nowait(self, want: Receive) -> Message | None:
        return self.mailbox.take(want)

    def remember(self, value: T) -> Memory[T]:
        index = len(self.memories)
        if index < len(self.past):
            value = self.past[index]
        elif self.kept and index < len(self.kept.memories):
            value = self.kept.recall(index, value)
        self.memories.append(Memory(value))
        return self.memories[-1]

    def post(self, message: Message, progress: float) -> None:
        self.desk.post(message)

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T:
        return self.desk.consult(program)  # type: ignore[no-any-return]

    def share(self, vector: Vector, place: int) -> Vector:
        return commons.share(vector, place)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Build nothing, own nothing: drive the programs and listen, until the launcher says quit."""
        while not self.quit:
            while self.ready:
                self.resume(*self.ready.popleft())
            bells = (self.desk.bell, self.line.socket, *((self.sums.bell,) if self.sums else ()))
            messages, others = self.links.poll(self.patience(), bells)
            for message in messages:
                check_finite(message, self.address)
                self.deliver(message)
            if self.desk.bell in others:
                self.hear_desk()
            if self.sums and self.sums.bell in others:
                self.hear_sums(self.sums)
            if self.line.socket in others:
                for word in self.line.heard():
                    self.obey(self, word)
            self.retry()
            self.report()
            self.line.confess()

    def patience(self) -> float:
        """How long nothing needs doing: until a deadline, or the next report."""
        if self.ready:
            return 0.0
        now, until = time.monotonic(), [0.1]
        for running in self.programs:
            if isinstance(running.effect, Receive) and running.effect.timeout is not None:
                until.append(running.since + running.effect.timeout - now)
            elif isinstance(running.effect, Sleep):
                until.append(running.since + running.effect.seconds - now)
        return max(0.0, min(until))

    def start(self) -> None:
        """Begin, or after a restart begin again from the top, with what is remembered."""
        self.past, self.memories = [memory.value for memory in self.memories], []
        node = Node(self.address, self.plan.limits, self, self.rng)
        self.launch(Running(self.role.program(node, self.replica), main=True))

    def launch(self, running: Running) -> None:
        self.programs.append(running)
        self.ready.append((running, None, None))

    def resume(self, running: Running, value: Any, error: BaseException | None) -> None:
        """Give a program its answer and take what it asks next, for as long as that can be answered at once."""
        if running not in self.programs:  # closed while its answer lay ready: companions end with their role
            return None
        while True:
            try:
                effect = running.coroutine.throw(error) if error else running.coroutine.send(value)
            except StopIteration:
                return self.finish(running)
            except Exception as failure:
                if isinstance(value, Message):  # whoever sent nonsense should be known
                    failure.add_note(f"(it had just been given a {type(value).__name__} of {value.sender})")
                raise
            running.effect, running.since, error = effect, time.monotonic(), None
            if running.main and self.hold():
                self.held = running
                return None
            answered, value = self.perform(running, effect)
            if not answered:
                return None
            running.effect = None

    def hold(self) -> bool:
        """Whether the program waits before its step; one that will begin no more is as good as held, and goes on."""
        wanted, holds = self.pace.hold_at, self.pace.holds()
        if wanted is not None and (holds or self.pace.over(self.pace.step)):
            self.line.tell(control.Held(wanted))
            self.pace.hold_at = wanted if holds else None
        return holds

    def perform(self, running: Running, effect: Effect[Any]) -> tuple[bool, Any]:
        """Whether the effect could be answered at once, and with what."""
        return PERFORM[type(effect)](self, running, effect)

    def answer(self, running: Running, value: Any, error: BaseException | None = None) -> None:
        """What a program waited for is there."""
        if running.main and not isinstance(running.effect, Compute):
            begin, end = self.watch.at(running.since), self.watch.at(time.monotonic())
            self.teller.waited(begin, end, self.address, wish(running.effect) if running.effect else "")
        running.effect = None
        self.ready.append((running, value, error))

    def finish(self, running: Running) -> None:
        self.programs.remove(running)
        if not running.main:
            return
        for companion in self.programs:
            companion.coroutine.close()
        self.programs.clear()
        self.ended = True
        self.teller.noted(self.watch.now(), self.address, "memory", memory())
        self.teller.ended(self.watch.now(), self.address)
        self.line.confess(now=True)
        lane = self.teller.recorder.lane if isinstance(self.teller, RecordingTeller) else None
        self.line.tell(control.Ended(self.teller.take(self.address), lane))

    # -- effects: each says whether it could be answered at once -----------------------------------------------------

    def send(self, running: Running, effect: Send) -> tuple[bool, None]:
        effect.body.sender = self.address
        away = self.homes.get(effect.to) != self.homes[self.address]  # what stays on a machine is no traffic
        size = payload(effect.body) if away else 0
        fate = self.links.offer(
            effect.to, effect.body, loan=effect.loan, priority=effect.priority, keep=effect.keep, lossy=effect.lossy
        )
        if fate == "sent":
            self.teller.sent(self.watch.now(), self.address, effect.to, effect.body, size)
        else:
            self.teller.noted(self.watch.now(), self.address, fate, 1)
        return effect.lossy or self.links.room(effect.to), None

    def receive(self, running: Running, effect: Receive) -> tuple[bool, Message | None]:
        message = self.mailbox.take(effect)
        if message is not None:
            return True, placed(message, effect)
        if effect.into is not None:
            self.links.expect(effect)
        return False, None

    def compute(self, running: Running, effect: Compute[Any]) -> tuple[bool, None]:
        self.line_up.append(running)
        self.admit()
        return False, None

    def collective(self, running: Running, effect: Collective) -> tuple[bool, bool]:
        under_way = self.sums is not None and self.sums.take(running, effect)
        return not under_way, False  # where the engine has no way of its own the fallback runs

    def sleep(self, running: Running, effect: Sleep) -> tuple[bool, None]:
        return effect.seconds <= 0, None

    def now(self, running: Running, effect: Now) -> tuple[bool, float]:
        return True, self.watch.now()

    def note(self, running: Running, effect: Note) -> tuple[bool, None]:
        self.teller.noted(self.watch.now(), self.address, effect.kind, effect.value)
        return True, None

    def spawn(self, running: Running, effect: Spawn) -> tuple[bool, None]:
        self.launch(Running(effect.program, main=False))
        return True, None

    # -- what happens while programs wait ----------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        if self.plan.traced:
            self.teller.delivered(self.watch.now(), message.sender, self.address, message, payload(message))
        for running in self.programs:
            if isinstance(running.effect, Receive) and running is not self.held and running.effect.matches(message):
                self.links.forget(running.effect)
                return self.answer(running, placed(message, running.effect))
        self.mailbox.put(message)

    def retry(self) -> None:
        """Windows that have room again, waits that are over."""
        now = time.monotonic()
        for running in self.programs:
            effect = running.effect
            if running is self.held:
                continue
            if isinstance(effect, Send) and self.links.room(effect.to):
                self.answer(running, None)
            elif isinstance(effect, Receive) and effect.timeout is not None and now >= running.since + effect.timeout:
                self.links.forget(effect)
                self.answer(running, None)
            elif isinstance(effect, Sleep) and now >= running.since + effect.seconds:
                self.answer(running, None)

    def admit(self) -> None:
        """Give the desk its next work, unless the run is frozen."""
        if self.line_up and self.computing is None and not self.frozen:
            self.computing = self.line_up.popleft()
            self.began = self.watch.now()
            effect = self.computing.effect
            assert isinstance(effect, Compute)
            self.desk.put(effect.work)

    def hear_desk(self) -> None:
        posted, asked, done = self.desk.collect()
        for message in posted:
            self.deliver(message)
        for question in asked:
            self.counsel.take(question, Running)
        for value, error in done:
            running, self.computing = self.computing, None
            assert running is not None
            self.teller.computed(self.began, self.watch.now(), self.address)
            if isinstance(error, Over):
                self.close_down()
            else:
                self.answer(running, value, error)
            if self.frozen:
                self.chill()
            self.admit()

    def hear_sums(self, sums: Sums) -> None:
        """Native sums that are done; their traffic is what a ring would send, and marked."""
        for (running, effect), error in sums.done():
            group = effect.group
            place = group.index(self.address)
            size = ring_bytes(effect.vector, place, len(group))
            self.teller.sent(self.watch.now(), self.address, group[(place + 1) % len(group)], NativeSum(), size)
            self.teller.noted(self.watch.now(), self.address, "native bytes", size)
            self.answer(running, True, error)

    def close_down(self) -> None:
        """Begin again from the top with no step left, so that the program says goodbye."""
        for running in self.programs:
            if isinstance(running.effect, Receive):
                self.links.forget(running.effect)
            running.coroutine.close()
        self.programs.clear()
        self.line_up.clear()
        self.held = self.pace.hold_at = None
        self.pace.stop_at = 0
        self.start()

    def chill(self) -> None:
        self.report(now=True)
        self.watch.stop()
        self.line.tell(control.Frozen())

    def report(self, now: bool = False) -> None:
        """Tell the launcher how it goes, at most every so often unless it must be `now`."""
        moment = time.monotonic()
        if (moment - self.reported < REPORT_EVERY and not now) or not self.watch.started or self.ended:
            return
        self.reported = moment
        main = self.counsel.asking or next((running for running in self.programs if running.main), None)
        waiting, since = "", 0.0
        if main is not None and main.effect is not None and main is not self.held:
            waiting, since = wish(main.effect), self.watch.now() - self.watch.at(main.since)
        use = None
        if moment - self.measured >= MEASURE_EVERY:
            self.measured, use = moment, usage.own()
        self.line.tell(control.Report(self.pace.step, self.teller.take(self.address), waiting, since, use))


def placed(message: Message, want: Receive) -> Message:
    """Bring a message that came before it was expected into the vector that awaits it."""
    if want.into is not None and not landed(message, want):
        (vector,) = vectors(message)
        want.into.copy_(vector)
    return message


def wish(effect: Effect[Any]) -> str:
    """What a program waits for from others, in words; empty while it computes or sleeps."""
    if isinstance(effect, Send):
        return f"room on the link to {effect.to}"
    if isinstance(effect, Collective):
        return f"the sum over {len(effect.group)} roles"
    return str(effect) if isinstance(effect, Receive) else ""


def memory() -> int:
    """The most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def snapshot(shot: Shot) -> Snapshot:
    return Snapshot(shot.piece, shot.params, shot.buffers, shot.weight)


PERFORM: dict[type[Effect[Any]], Callable[[Driver, Running, Any], tuple[bool, Any]]] = {
    Send: Driver.send, Receive: Driver.receive, Compute: Driver.compute, Collective: Driver.collective,
    Sleep: Driver.sleep, Now: Driver.now, Note: Driver.note, Spawn: Driver.spawn,
}  # fmt: skip

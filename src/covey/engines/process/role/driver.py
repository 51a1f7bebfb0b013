"""The process engine: performs the effects of one role's programs in real time, over real sockets, on one thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from covey.checkpoint import RoleState
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.role.compute_requests import ComputeRequests
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.metrics import Metrics
from covey.engines.process.role.native_sums import NativeSums
from covey.engines.process.role.pause import Pause
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import LoopEnded, RunningProgram
from covey.engines.process.role.saving import restore
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.zmq import Other, ZmqTransport, landed
from covey.engines.window import waits, weight
from covey.message import Address, Message, check_finite, payload, vectors
from covey.model.replica import Replica
from covey.program import Collective, Compute, Effect, Note, Now, Receive, SavePoint, Send, Sleep, Spawn
from covey.strategy import Plan, Role

LISTEN = 0.1  # seconds after which a role looks around though nothing rang


class Driver:
    """One role: its programs, its links, and the line to the launcher."""

    def __init__(
        self, plan: Plan, role: Role, replica: Replica, links: ZmqTransport, line: RoleLine,
        compute_thread: ComputeThread, obey: Callable[[Driver, control.Downward], None], kept: RoleState | None = None,
    ) -> None:  # fmt: skip
        self.role, self.replica, self.links, self.line, self.compute_thread = role, replica, links, line, compute_thread
        self.address, self.obey = role.address, obey
        role.check(replica)
        if kept:
            restore(replica, kept.replica)
        self.homes = plan.homes()
        self.host = RoleHost(plan, role, compute_thread, links, kept)
        links.waives = self.awaits
        self.pace = self.host.pace
        self.watch = Stopwatch(kept.seconds if kept else 0.0)
        self.metrics = Metrics(role.address, line, self.watch, plan.traced)
        self.programs: list[RunningProgram] = []
        self.ready: deque[tuple[RunningProgram, Any, BaseException | None]] = deque()
        self.line_up: deque[RunningProgram] = deque()  # computes that wait for the desk, or for the thaw
        self.computing: RunningProgram | None = None
        self.requests = ComputeRequests(self)
        self.sums: NativeSums | SharedSum | None = None  # the engine's own collectives
        self.pause = Pause()
        self.ended = self.quit = False
        self.held: RunningProgram | None = None

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Build nothing, own nothing: drive the programs and listen, until the launcher says quit."""
        while not self.quit:
            while self.ready:
                self.resume(*self.ready.popleft())
            messages, others = self.links.poll(self.patience(), self.wakeups())
            while messages:  # none of them is held back here
                self.deliver(messages.pop(0))
            if self.compute_thread.wakeup in others:
                self.hear_compute_thread()
            if self.sums:
                self.hear_sums(self.sums)
            if self.line.socket in others:
                for word in self.line.heard():
                    self.obey(self, word)
            self.line.tell_handed()
            self.retry()
            self.report()
            self.line.confess()
            self.complain()

    def wakeups(self) -> tuple[Other, ...]:
        """What rings when there is something to do, besides the links."""
        return (self.compute_thread.wakeup, self.line.socket, *(self.sums.wakeups if self.sums else ()))

    def patience(self) -> float:
        """How long nothing needs doing: until a deadline, or the next report."""
        if self.ready:
            return 0.0
        waits = (self.pause.deadline, *(running.deadline() for running in self.programs))
        deadlines = [deadline for deadline in waits if deadline is not None]
        return max(0.0, min(min(deadlines) - time.monotonic(), LISTEN)) if deadlines else LISTEN

    def start(self) -> None:
        """Begin, or after a restart begin again from the top, with what is remembered."""
        self.launch(RunningProgram(self.role.program(self.host.node(), self.replica), main=True))

    def launch(self, running: RunningProgram) -> None:
        self.programs.append(running)
        self.ready.append((running, None, None))

    def resume(self, running: RunningProgram, value: Any, error: BaseException | None) -> None:
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
            running.wants(effect)
            error = None
            if running.main and self.hold():
                self.held = running
                return self.links.waive()
            answered, value = self.perform(running, effect)
            if not answered:
                return None
            running.effect = None

    def hold(self) -> bool:
        """Whether the program waits before its step; one that will begin no more is as good as held, and goes on."""
        wanted, holds = self.pace.hold_at, self.pace.holds()
        if wanted is not None and (holds or self.pace.over(self.pace.step)):
            self.line.tell(control.HeldAt(wanted))
            self.pace.hold_at = wanted if holds else None
        return holds

    def perform(self, running: RunningProgram, effect: Effect[Any]) -> tuple[bool, Any]:
        """Whether the effect could be answered at once, and with what."""
        return PERFORM[type(effect)](self, running, effect)

    def answer(self, running: RunningProgram, value: Any, error: BaseException | None = None) -> None:
        """What a program waited for is there."""
        if running.main and not isinstance(running.effect, Compute):
            self.metrics.waited(running.since, running.waits_for())
        running.effect = None
        self.ready.append((running, value, error))

    def finish(self, running: RunningProgram) -> None:
        self.programs.remove(running)
        if not running.main:
            return
        for companion in self.programs:
            companion.coroutine.close()
        self.programs.clear()
        self.tell_losses()
        self.tell_settings()
        self.ended = True
        left, self.host.mailbox.waiting = self.host.mailbox.waiting, []
        for message in left:
            self.links.taken(message)
        self.metrics.close()

    # -- effects: each says whether it could be answered at once -----------------------------------------------------

    def send(self, running: RunningProgram, effect: Send) -> tuple[bool, None]:
        effect.body.sender = self.address
        running.behind = self.links.offered(effect.to)
        size = payload(effect.body) if self.away(effect.to) else 0  # what stays on a machine does not count as traffic
        fate = self.links.offer(
            effect.to, effect.body, loan=effect.loan, priority=effect.priority, keep=effect.keep, lossy=effect.lossy
        )
        if fate == "sent":
            self.metrics.sent(effect.to, effect.body, size)
        else:
            self.metrics.noted(fate, 1)
        return effect.lossy or self.passes(running, effect), None

    def passes(self, running: RunningProgram, effect: Send) -> bool:
        """Whether a message that was queued has its place in the window of its link, so that its program goes on."""
        return not waits(effect) or self.links.passes(effect.to, running.behind, weight(effect.body))

    def receive(self, running: RunningProgram, effect: Receive) -> tuple[bool, Message | None]:
        message = self.host.mailbox.take(effect)
        if message is not None:
            return True, placed(message, effect)
        if effect.into is not None:
            self.links.expect(effect)
        self.links.waive()
        return False, None

    def awaits(self, sender: Address) -> bool:
        """Whether what this peer sent and lies unread is not to hold it up, so that it can send what is needed here.

        A program waits for something that may be its; or nothing is taken before all roles have come to a common point.
        """
        if self.ended or self.held is not None:
            return True
        return any(running.effect and running.effect.awaits(sender) for running in self.programs)

    def compute(self, running: RunningProgram, effect: Compute[Any]) -> tuple[bool, None]:
        self.line_up.append(running)
        self.admit()
        return False, None

    def collective(self, running: RunningProgram, effect: Collective) -> tuple[bool, bool]:
        if self.sums is None or not self.sums.take(running, effect):
            return True, False  # where the engine has no way of its own the fallback runs
        self.links.waive()
        self.hear_sums(self.sums)
        return False, False

    def sleep(self, running: RunningProgram, effect: Sleep) -> tuple[bool, None]:
        return effect.seconds <= 0, None

    def now(self, running: RunningProgram, effect: Now) -> tuple[bool, float]:
        return True, self.watch.now()

    def save_point(self, running: RunningProgram, effect: SavePoint) -> tuple[bool, None]:
        return True, None

    def note(self, running: RunningProgram, effect: Note) -> tuple[bool, None]:
        self.metrics.noted(effect.kind, effect.value)
        return True, None

    def spawn(self, running: RunningProgram, effect: Spawn) -> tuple[bool, None]:
        self.launch(RunningProgram(effect.program, main=False))
        return True, None

    def away(self, peer: Address) -> bool:
        """Whether the peer lives on another machine."""
        return self.homes.get(peer) != self.homes[self.address]

    # -- what happens while programs wait ----------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        check_finite(message, self.address)
        self.metrics.delivered(message)
        if self.pause.waiting and self.away(message.sender) and (size := payload(message)):
            self.metrics.noted("unclocked bytes", size)  # their way took no training time
        for running in self.programs:
            if isinstance(running.effect, Receive) and running is not self.held and running.effect.matches(message):
                self.links.forget(running.effect)
                self.links.taken(message)
                return self.answer(running, placed(message, running.effect))
        if self.ended:
            return self.links.taken(message)
        self.host.mailbox.put(message)
        self.links.waive()

    def retry(self) -> None:
        """Windows that have room again, waits that are over."""
        if self.pause.over():
            self.thaw()
        now = time.monotonic()
        for running in self.programs:
            effect, deadline = running.effect, running.deadline()
            if running is self.held:
                continue
            if deadline is not None and now >= deadline:
                if isinstance(effect, Receive):
                    self.links.forget(effect)
                self.answer(running, None)
            elif isinstance(effect, Send) and self.passes(running, effect):
                self.answer(running, None)

    def admit(self) -> None:
        """Give the desk its next work, unless the run stands still."""
        if not self.line_up or self.computing is not None:
            return
        if self.pause.on:
            self.pause.refuse()
        else:
            self.computing = self.line_up.popleft()
            self.metrics.computing()
            effect = self.computing.effect
            assert isinstance(effect, Compute)
            # while programs do something besides, nothing of theirs shall wait for a GPU that is behind
            self.compute_thread.put(effect.work, through=len(self.programs) > 1)

    def hear_compute_thread(self) -> None:
        posted, asked, done = self.compute_thread.collect()
        for message in posted:
            self.deliver(message)
        for question in asked:
            self.requests.take(question)
        for value, error in done:
            running, self.computing = self.computing, None
            assert running is not None
            self.metrics.computed()
            if isinstance(error, LoopEnded):
                self.line.tell(control.Left(self.replica.losses.count, error.votes))
                self.close_down()
            else:
                self.answer(running, value, error)
            if self.pause.on:
                self.chill()
            self.admit()

    def hear_sums(self, sums: NativeSums | SharedSum) -> None:
        for (running, effect), came, error in sums.advance():
            if came:
                self.metrics.summed(effect)
            self.answer(running, came, error)

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

    def thaw(self) -> None:
        self.watch.start()
        self.requests.give()
        self.admit()

    def complain(self) -> None:
        """Tell once that there is no more memory to share."""
        if self.links.memory and (why := self.links.memory.cramped()):
            self.line.tell(control.MemoryShort(why))

    def report(self, now: bool = False) -> None:
        if now:
            self.tell_losses()
        if self.metrics.due(now):
            self.tell_settings()
        main = self.requests.asking or next((running for running in self.programs if running.main), None)
        given = self.replica.losses.count
        self.metrics.report(self.pace.step, None if main is self.held else main, now, given)

    def tell_settings(self) -> None:
        """Those of a loop of the user's own, which the launcher compares with the other workers'."""
        settings = self.replica.settings
        while settings and self.role.trains and settings.reached != settings.reported[0]:
            self.line.tell(control.Settled(*settings.news()))

    def tell_losses(self) -> None:
        """Those of a GPU may come after the step that they belong to."""
        for loss in self.replica.losses.told(every=True):
            self.metrics.noted("loss", loss)


def placed(message: Message, want: Receive) -> Message:
    """Bring a message that came before it was expected into the vector that awaits it."""
    if want.into is not None and not landed(message, want):
        (vector,) = vectors(message)
        want.into.copy_(vector)
    return message


PERFORM: dict[type[Effect[Any]], Callable[[Driver, RunningProgram, Any], tuple[bool, Any]]] = {
    Send: Driver.send, Receive: Driver.receive, Compute: Driver.compute, Collective: Driver.collective,
    Sleep: Driver.sleep, Now: Driver.now, Note: Driver.note, Spawn: Driver.spawn,
    SavePoint: Driver.save_point,
}  # fmt: skip

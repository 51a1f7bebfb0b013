"""The process engine: performs the effects of one role's programs in real time, over real sockets, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from covey.checkpoint import RoleState
from covey.engines.broken_rounds import in_round
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.role.compute_requests import ComputeRequests
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.metrics import Metrics
from covey.engines.process.role.native_sums import NativeSums
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import RolePrograms, RunningProgram
from covey.engines.process.role.saving import restore
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.landing import placed
from covey.engines.transport.zmq import ZmqTransport
from covey.engines.window import waits, weight
from covey.membership import ViewChanged
from covey.message import Address, Message, check_finite, payload
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
        plan.check(role, replica)
        if kept:
            restore(replica, kept.replica)
        self.homes = plan.homes()
        self.host = RoleHost(plan, role, compute_thread, links, kept)
        links.waives = self.awaits
        self.pace = self.host.pace
        self.watch = Stopwatch(kept.seconds if kept else 0.0)
        self.metrics = Metrics(role.address, line, self.watch, plan.traced)
        self.host.measured = self.metrics.sampled
        self.settings = replica.updates.settings if role.trains else None  # of a loop of the user's own
        self.programs = RolePrograms()
        self.requests = ComputeRequests(self)
        self.sums: NativeSums | SharedSum | None = None  # the engine's own collectives
        self.breakable = plan.elastic and role.together  # waits for peers end when one of them is born again
        self.ended = self.quit = self.undone = False  # undone: its steps were only to warm up
        self.held: RunningProgram | None = None

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Build nothing, own nothing: drive the programs and listen, until the launcher says quit."""
        while not self.quit:
            while self.programs.ready:
                self.resume(*self.programs.ready.popleft())
            wakeups = self.compute_thread.wakeup, self.line.socket, *(self.sums.wakeups if self.sums else ())
            messages, others = self.links.poll(self.patience(), wakeups)
            while messages:  # none of them is held back here
                self.deliver(messages.pop(0))
            if self.compute_thread.wakeup in others:
                self.requests.hear()
            if self.sums:
                self.hear_sums(self.sums)
            if self.line.socket in others:
                for word in self.line.heard():
                    self.obey(self, word)
            self.line.tell_handed()
            self.retry()
            self.report()
            self.line.confess()
            complain(self)

    def patience(self) -> float:
        """How long nothing needs doing: until a deadline, or the next report."""
        if self.programs.ready:
            return 0.0
        pause = self.requests.pause.deadline
        deadlines = [*self.programs.deadlines(), *([] if pause is None else [pause])]
        return max(0.0, min(min(deadlines) - time.monotonic(), LISTEN)) if deadlines else LISTEN

    def start(self) -> None:
        """Begin, or after a restart begin again from the top, with what is remembered."""
        self.programs.launch(RunningProgram(self.role.program(self.host.node(), self.replica), main=True))

    def resume(self, running: RunningProgram, value: Any, error: BaseException | None) -> None:
        """Give a program its answer and take what it asks next, for as long as that can be answered at once."""
        if running not in self.programs.running:  # closed while its answer lay ready: companions end with their role
            return None
        while True:
            try:
                effect = running.coroutine.throw(error) if error else running.coroutine.send(value)
            except StopIteration:
                return self.finish(running)
            except Exception as failure:
                if isinstance(value, Message):  # the error names the sender
                    failure.add_note(f"(it had just been given a {type(value).__name__} of {value.sender})")
                raise
            running.wants(effect)
            error = None
            if running.main and self.hold():
                self.held = running
                return self.links.waive()
            self.requests.pause_here(running.main)
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
        if self.breakable and in_round(effect, self.host.mailbox):
            self.answer(running, None, ViewChanged())
            return False, None
        return PERFORM[type(effect)](self, running, effect)

    def answer(self, running: RunningProgram, value: Any, error: BaseException | None = None) -> None:
        """What a program waited for is there."""
        if running.main and not isinstance(running.effect, Compute):
            self.metrics.waited(running.since, running.waits_for())
        running.effect = None
        self.programs.ready.append((running, value, error))

    def finish(self, running: RunningProgram) -> None:
        self.programs.running.remove(running)
        if not running.main:
            return
        self.programs.close()
        self.metrics.tell_losses(self.replica.compute.losses)
        self.metrics.tell_settings(self.settings)
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
            self.metrics.sent(effect.to, effect.body, size, running.since)
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
        return self.ended or self.held is not None or self.requests.pause.endless or self.programs.await_peer(sender)

    def compute(self, running: RunningProgram, effect: Compute[Any]) -> tuple[bool, None]:
        self.requests.put(running)
        return False, None

    def collective(self, running: RunningProgram, effect: Collective) -> tuple[bool, bool]:
        if self.sums is None or not self.sums.take(running, effect):
            return True, False  # where the engine has no way of its own the fallback runs
        self.links.waive()
        self.hear_sums(self.sums)
        return False, False

    def note(self, running: RunningProgram, effect: Note) -> tuple[bool, None]:
        self.metrics.noted(effect.kind, effect.value)
        return True, None

    def spawn(self, running: RunningProgram, effect: Spawn) -> tuple[bool, None]:
        self.programs.launch(RunningProgram(effect.program, main=False))
        return True, None

    def away(self, peer: Address) -> bool:
        """Whether the peer lives on another machine."""
        return self.homes.get(peer) != self.homes[self.address]

    # -- what happens while programs wait ----------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        check_finite(message, self.address)
        self.metrics.delivered(message)
        if self.requests.pause.waiting and self.away(message.sender) and (size := payload(message)):
            self.metrics.noted("unclocked bytes", size)  # their way took no training time
        for running in self.programs.running:
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
        if self.requests.pause.over():
            self.watch.start()
            self.requests.thaw()
        now = time.monotonic()
        for running in self.programs.running:
            effect, deadline = running.effect, running.deadline()
            if running is self.held:
                continue
            if deadline is not None and now >= deadline:
                if isinstance(effect, Receive):
                    self.links.forget(effect)
                self.answer(running, None)
            elif isinstance(effect, Send) and self.passes(running, effect):
                self.answer(running, None)

    def hear_sums(self, sums: NativeSums | SharedSum) -> None:
        for (running, effect), came, error in sums.advance():
            if came:
                self.metrics.summed(effect)
            self.answer(running, came, error)

    def close_down(self) -> None:
        """Begin again from the top with no step left, so that the program says goodbye."""
        for running in self.programs.running:
            if isinstance(running.effect, Receive):
                self.links.forget(running.effect)
        self.programs.close()
        self.requests.waiting.clear()
        self.held = self.pace.hold_at = None
        self.pace.stop_at = 0
        self.start()

    def leave(self, votes: int) -> None:
        """The user's own loop has ended after this number of votes."""
        self.line.tell(control.Left(self.replica.compute.losses.count, votes))
        self.close_down()

    def stand_still(self) -> None:
        """Nothing is computed here any more, until the pause is over."""
        self.report(now=True)
        self.watch.stop()
        self.line.tell(control.Frozen())

    def report(self, now: bool = False) -> None:
        if now:
            self.metrics.tell_losses(self.replica.compute.losses)
        if self.metrics.due(now):
            self.metrics.tell_settings(self.settings)
        main = self.requests.asking or self.programs.main
        given = self.replica.compute.losses.count
        self.metrics.report(self.pace.step, None if main is self.held else main, now, given)


def complain(driver: Driver) -> None:
    """Report once that there is no more memory to share."""
    if driver.links.memory and (why := driver.links.memory.cramped()):
        driver.line.tell(control.MemoryShort(why))


PERFORM: dict[type[Effect[Any]], Callable[[Driver, RunningProgram, Any], tuple[bool, Any]]] = {
    Send: Driver.send, Receive: Driver.receive, Compute: Driver.compute, Collective: Driver.collective,
    Note: Driver.note, Spawn: Driver.spawn,
    Sleep: lambda driver, running, effect: (effect.seconds <= 0, None),
    Now: lambda driver, running, effect: (True, driver.watch.now()),
    SavePoint: lambda driver, running, effect: (True, None),
}  # fmt: skip

"""The driver of one role in real time: performs what its programs ask for, on its thread or the compute thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from covey.checkpoint import RoleState
from covey.engines.broken_rounds import in_round
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.driving_turn import BRIEF
from covey.engines.process.role.compute_requests import ComputeRequests
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.effect_handlers import EffectHandlers
from covey.engines.process.role.metrics import Metrics, TrainingNews
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import RolePrograms, RunningProgram
from covey.engines.process.role.saving import restore
from covey.engines.transport.landing import placed
from covey.engines.transport.zmq import ZmqTransport
from covey.membership import ViewChanged
from covey.message import Address, Message, check_finite, payload
from covey.model.replica import Replica
from covey.program import Collective, Compute, Effect, Receive, Send
from covey.strategy import Plan, Role

LISTEN = 0.1  # seconds after which a role looks around though nothing rang

Obey = Callable[["Driver", control.Downward], None]


class Driver:
    """One role: its programs, its links, and the line to the launcher."""

    def __init__(
        self, plan: Plan, role: Role, replica: Replica, links: ZmqTransport, line: RoleLine,
        compute_thread: ComputeThread, kept: RoleState | None = None,
    ) -> None:  # fmt: skip
        plan.check(role, replica)
        if kept:
            restore(replica, kept.replica)
        self.replica, self.links, self.line = replica, links, line
        self.host = RoleHost(plan, role, compute_thread, links, kept)
        watch = Stopwatch(kept.seconds if kept else 0.0)
        self.metrics = Metrics(role.address, line, watch, plan.traced, TrainingNews(replica, role.trains))
        self.host.measured = self.metrics.sampled
        self.programs = RolePrograms()
        self.requests = ComputeRequests(self)
        self.effects = EffectHandlers(self.host, plan.homes(), self.metrics, self.programs, self.requests)
        self.quit: Literal["undone", "over"] | None = None  # undone: its steps were only to warm up
        self.failure: BaseException | None = None  # of a round on the compute thread
        self.listened = 0.0  # when it did last
        links.waives = self.awaits

    def run(self, obey: Obey) -> None:
        """Drive the programs, listen, and obey the launcher, until it says quit.

        While work is brief the compute thread runs this loop (`go_on`), from the first such work on.
        """
        while not self.quit:
            self.round(obey)
            if work := self.requests.brief:
                self.requests.brief = None
                self.host.compute_thread.put_with_turn(work, partial(self.go_on, obey))
                self.host.compute_thread.turn.wait()
                if self.failure:
                    raise self.failure

    def go_on(self, obey: Obey) -> None:
        """(Compute thread, which has done brief work and has the turn) Drive until there is work that is not brief."""
        compute_thread = self.host.compute_thread
        try:
            self.requests.hear()
            while not self.quit:
                self.resume_ready()
                if self.requests.running and not self.requests.brief:
                    break  # this thread is to do it, and must not wait for messages before
                self.round(obey)
                if work := self.requests.brief:
                    self.requests.brief = None
                    if not compute_thread.do_in_turn(work):
                        return
                    self.requests.hear()
        except BaseException as failure:  # the driver's thread raises it
            self.failure = failure
        compute_thread.turn.lay()
        compute_thread.turn.call()

    def round(self, obey: Obey) -> None:
        """Let the programs go on that can, listen once, and obey; before brief work only if that was not just done."""
        self.resume_ready()
        if self.requests.brief and time.monotonic() < self.listened + BRIEF:
            return
        sums, wakeup = self.effects.sums, self.host.compute_thread.wakeup
        patience = 0.0 if self.requests.brief else self.programs.patience(LISTEN, self.requests.pause.deadline)
        beside = wakeup, self.line.socket, *(sums.wakeups if sums else ())
        messages, others = self.links.poll(patience, beside, alone=not self.requests.busy)
        self.listened = time.monotonic()
        while messages:  # none of them is held back here
            self.deliver(messages.pop(0))
        if wakeup in others:
            self.requests.hear()
        self.hear_sums()
        self.resume_ready()  # before the books are kept: others may wait for what it sends
        if self.line.socket in others:
            for word in self.line.heard():
                obey(self, word)
        self.line.tell_handed()
        self.retry()
        self.report()
        self.line.confess()
        complain(self)

    def resume_ready(self) -> None:
        while self.programs.ready:
            self.resume(*self.programs.ready.popleft())

    def start(self) -> None:
        """Begin, or after a restart begin again from the top, with what is remembered."""
        self.programs.launch(RunningProgram(self.host.role.program(self.host.node(), self.replica), main=True))

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
                self.programs.held = running
                return self.links.waive()
            self.requests.pause_here(running.main)
            answered, value = self.perform(running, effect)
            if not answered:
                return None
            running.effect = None

    def hold(self) -> bool:
        """Whether the program waits before its step; one that will begin no more is as good as held, and goes on."""
        pace = self.host.pace
        wanted, holds = pace.hold_at, pace.holds()
        if wanted is not None and (holds or pace.over(pace.step)):
            self.line.tell(control.HeldAt(wanted))
            pace.hold_at = wanted if holds else None
        return holds

    def perform(self, running: RunningProgram, effect: Effect[Any]) -> tuple[bool, Any]:
        """Whether the effect could be answered at once, and with what."""
        if self.host.mailbox.waiting and self.host.breakable and in_round(effect, self.host.mailbox):
            self.answer(running, None, ViewChanged())
            return False, None
        answer = self.effects.perform(running, effect)
        if isinstance(effect, Collective):
            self.hear_sums()
        return answer

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
        self.programs.ended = True
        self.host.discard_mail()
        self.metrics.close()

    def awaits(self, sender: Address) -> bool:
        """Whether what this peer sent and lies unread is not to hold it up, so that it can send what is needed here.

        A program waits for something that may be its; or nothing is taken before all roles have come to a common point.
        """
        programs = self.programs
        stands = programs.ended or programs.held is not None or self.requests.pause.endless
        return stands or programs.await_peer(sender)

    def deliver(self, message: Message) -> None:
        check_finite(message, self.host.me)
        self.metrics.delivered(message)
        self.host.hear(message)
        if self.requests.pause.waiting and self.effects.away(message.sender) and (size := payload(message)):
            self.metrics.noted("unclocked bytes", size)  # their way took no training time
        if found := self.programs.receiver(message):
            running, want = found
            self.links.forget(want)
            self.links.taken(message)
            return self.answer(running, placed(message, want))
        if self.programs.ended:
            return self.links.taken(message)
        self.host.mailbox.put(message)
        self.links.waive()

    def retry(self) -> None:
        """Windows that have room again, waits that are over."""
        if self.requests.pause.over():
            self.metrics.watch.start()
            self.requests.thaw()
        now = time.monotonic()
        for running in self.programs.running:
            effect, deadline = running.effect, running.deadline()
            if running is self.programs.held:
                continue
            if deadline is not None and now >= deadline:
                if isinstance(effect, Receive):
                    self.links.forget(effect)
                self.answer(running, None)
            elif isinstance(effect, Send) and self.effects.passes(running, effect):
                self.answer(running, None)

    def hear_sums(self) -> None:
        for (running, effect), came, error in self.effects.sums.advance() if self.effects.sums else ():
            if came:
                self.metrics.summed(effect)
            self.answer(running, came, error)

    def close_down(self) -> None:
        """Begin again from the top with no step left, so that the program says goodbye.

        It is given again what had come and it had not looked at, and what stays true: it has forgotten all of that.
        """
        for running in self.programs.running:
            if isinstance(running.effect, Receive):
                self.links.forget(running.effect)
        self.host.give_again(self.programs.unseen())
        self.programs.close()
        self.requests.waiting.clear()
        self.programs.held = self.host.pace.hold_at = None
        self.host.pace.stop_at = 0
        self.host.incarnation = self.host.incarnation._replace(closing=True)
        self.start()

    def leave(self, votes: int) -> None:
        """The user's own loop has ended after this number of votes."""
        self.line.tell(control.Left(self.replica.compute.losses.count, votes))
        self.close_down()

    def stand_still(self) -> None:
        """Nothing is computed here any more, until the pause is over."""
        self.report(now=True)
        self.metrics.watch.stop()
        self.line.tell(control.Frozen())

    def report(self, now: bool = False) -> None:
        main = self.requests.asking or self.programs.main
        busy_with = None if main is self.programs.held else main
        self.metrics.report(self.host.pace.step, busy_with, now, self.links.reader.frames)


def complain(driver: Driver) -> None:
    """Report once that there is no more memory to share, or that a peer does not come."""
    if driver.links.memory and (why := driver.links.memory.cramped()):
        driver.line.tell(control.MemoryShort(why))
    for line in driver.links.cipher.news() if driver.links.cipher else ():
        driver.line.tell(control.Notice(line))

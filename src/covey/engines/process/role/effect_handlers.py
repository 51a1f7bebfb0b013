"""How a role performs the effects of its programs. Each handler says whether it could answer at once, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from covey.engines.process.role.compute_requests import ComputeRequests
from covey.engines.process.role.metrics import Metrics
from covey.engines.process.role.native_sums import NativeSums
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import RolePrograms, RunningProgram
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.landing import placed
from covey.engines.window import waits, weight
from covey.membership import LeaveNotice
from covey.message import Address, Message, payload
from covey.program import Collective, Compute, Effect, Note, Now, Receive, SavePoint, Send, Sleep, Spawn


class EffectHandlers:
    """The handlers of one role. `homes` says on whose machine each role lives."""

    def __init__(
        self, host: RoleHost, homes: Mapping[Address, Address], metrics: Metrics, programs: RolePrograms,
        requests: ComputeRequests,
    ) -> None:  # fmt: skip
        self.host, self.homes, self.metrics, self.programs, self.requests = host, homes, metrics, programs, requests
        self.links = host.links
        self.sums: NativeSums | SharedSum | None = None  # the engine's own collectives

    def perform(self, running: RunningProgram, effect: Effect[Any]) -> tuple[bool, Any]:
        """Whether the effect could be answered at once, and with what."""
        return PERFORM[type(effect)](self, running, effect)

    def send(self, running: RunningProgram, effect: Send) -> tuple[bool, None]:
        effect.body.sender = self.host.me
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

    def away(self, peer: Address) -> bool:
        """Whether the peer lives on another machine."""
        return self.homes.get(peer) != self.homes[self.host.me]

    def receive(self, running: RunningProgram, effect: Receive) -> tuple[bool, Message | None]:
        if self.host.role.warned and self.host.notice.news:
            self.host.mailbox.put(LeaveNotice(sender=self.host.me))
        message = self.host.mailbox.take(effect)
        if message is not None:
            return True, placed(message, effect)
        if effect.into is not None:
            self.links.expect(effect)
        self.links.waive()
        return False, None

    def compute(self, running: RunningProgram, effect: Compute[Any]) -> tuple[bool, None]:
        self.host.notice.heed(busy=self.host.role.warned and effect.load > 0)
        self.requests.put(running)
        return False, None

    def collective(self, running: RunningProgram, effect: Collective) -> tuple[bool, bool]:
        if self.sums is None or not self.sums.take(running, effect):
            return True, False  # where the engine has no way of its own the fallback runs
        self.links.waive()
        return False, False

    def sleep(self, running: RunningProgram, effect: Sleep) -> tuple[bool, None]:
        return effect.seconds <= 0, None

    def now(self, running: RunningProgram, effect: Now) -> tuple[bool, float]:
        return True, self.metrics.watch.now()

    def note(self, running: RunningProgram, effect: Note) -> tuple[bool, None]:
        self.metrics.noted(effect.kind, effect.value)
        return True, None

    def spawn(self, running: RunningProgram, effect: Spawn) -> tuple[bool, None]:
        self.programs.launch(RunningProgram(effect.program, main=False))
        return True, None

    def save_point(self, running: RunningProgram, effect: SavePoint) -> tuple[bool, None]:
        return True, None


PERFORM: dict[type[Effect[Any]], Callable[[EffectHandlers, RunningProgram, Any], tuple[bool, Any]]] = {
    Send: EffectHandlers.send, Receive: EffectHandlers.receive, Compute: EffectHandlers.compute,
    Collective: EffectHandlers.collective, Sleep: EffectHandlers.sleep, Now: EffectHandlers.now,
    Note: EffectHandlers.note, Spawn: EffectHandlers.spawn, SavePoint: EffectHandlers.save_point,
}  # fmt: skip

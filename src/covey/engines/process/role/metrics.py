"""A role's reports to its launcher: computation, traffic, waits, progress and resource use."""

from __future__ import annotations

import resource
import time
from typing import NamedTuple

from covey.data.stripe_cache import read_counts
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.role.native_sums import NativeSum
from covey.engines.process.role.op_profiler import OpProfiler
from covey.engines.process.role.running_program import RunningProgram
from covey.exchange.collectives.ring_slices import ring_sent, ring_slices
from covey.message import Address, Message, payload
from covey.model.batches import Losses
from covey.model.replica import Replica
from covey.observe import usage
from covey.observe.recording import RecordingTeller
from covey.observe.tally import AcceptedSamples, Teller
from covey.program import Collective
from covey.settings import LoopSettings

REPORT_EVERY = 0.02  # seconds; a report costs about 50 us
MEASURE_EVERY = 0.2  # seconds between two looks at what the process uses


class TrainingNews(NamedTuple):
    """What a replica has to tell of its training."""

    replica: Replica
    trains: bool

    @property
    def losses(self) -> Losses:
        return self.replica.compute.losses

    @property
    def settings(self) -> LoopSettings | None:
        """Those of a loop of the user's own."""
        return self.replica.updates.settings if self.trains else None


class Metrics:
    """One role's, in seconds of training."""

    machine = ""  # whose clock tells when the role's began

    def __init__(
        self, me: Address, line: RoleLine, watch: Stopwatch, traced: bool, training: TrainingNews | None = None
    ) -> None:
        self.me, self.line, self.watch, self.training = me, line, watch, training
        self.teller = RecordingTeller() if traced else Teller()
        self.began = 0.0  # when the present compute did
        self.reported = self.measured = 0.0
        self.closed = False
        self.heard = 0  # messages, where it is traced
        self.step = 0  # that was reported last
        self.profiler: OpProfiler | None = None

    def computing(self) -> None:
        self.began = self.watch.now()

    def computed(self) -> None:
        self.teller.computed(self.began, self.watch.now(), self.me)

    def waited(self, since: float, what: str) -> None:
        """From the moment `since`, by the clock of this machine, until now."""
        self.teller.waited(self.watch.at(since), self.watch.now(), self.me, what)

    def noted(self, kind: str, value: float) -> None:
        if kind == "resumed":
            self._report_first()
            return self.line.tell(control.Resumed(int(value)))
        if isinstance(value, AcceptedSamples):
            return self.line.tell(control.Resumed(int(value), value.of))
        self.teller.noted(self.watch.now(), self.me, kind, value)

    def sampled(self, kind: str, value: float) -> None:
        self.teller.measured(self.me, kind, value)

    def sent(self, to: Address, body: Message, size: int, since: float | None = None) -> None:
        """At the moment `since`, by the clock of this machine: the receiver may have it before this is noted."""
        self.teller.sent(self.watch.now() if since is None else self.watch.at(since), self.me, to, body, size)

    def summed(self, effect: Collective) -> None:
        """A native sum is done; its traffic is what a ring would send, and marked."""
        group = effect.group
        place = group.index(self.me)
        size = ring_sent(ring_slices(effect.vector, len(group)))[place]
        self.sent(group[(place + 1) % len(group)], NativeSum(), size)
        self.noted("native bytes", size)

    def delivered(self, message: Message) -> None:
        if isinstance(self.teller, RecordingTeller):
            self.heard += 1
            self.teller.delivered(self.watch.now(), message.sender, self.me, message, payload(message))

    def due(self, now: bool) -> bool:
        """Whether it is time for a report."""
        late = now or time.monotonic() - self.reported >= REPORT_EVERY
        return late and self.watch.started and not self.closed

    def report(self, step: int, main: RunningProgram | None, now: bool = False, frames: int = 0) -> None:
        """Report the progress, at limited intervals unless it must be `now`; `main` is what the role is busy with.

        `frames` have come so far: who waits for one message while others still come does not stand still.
        """
        if now:
            self.tell_losses()
        if not self.due(now):
            return
        self.tell_settings()
        if self.profiler and self.profiler.enough(step, self.heard):
            self.profiler.end()
        moment = self.reported = time.monotonic()
        self.step = step
        waiting, since = "", 0.0
        if main is not None and main.effect is not None:
            waiting, since = main.waits_for(), self.watch.now() - self.watch.at(main.since)
        use = None
        if moment - self.measured >= MEASURE_EVERY:
            self.measured, use = moment, usage.own()
        given = self.training.losses.count if self.training else 0
        self.line.tell(control.Report(step, self.teller.take(self.me), waiting, since, given, use, frames))

    def _report_first(self) -> None:
        """Report what was done so far, of which some does not count: the launcher would add it to what does."""
        if self.teller.of(self.me).samples and self.watch.started and not self.closed:
            given = self.training.losses.count if self.training else 0
            self.line.tell(control.Report(self.step, self.teller.take(self.me), "", 0.0, given, None))

    def tell_losses(self) -> None:
        """All of them: those of a GPU may come after the step that they belong to."""
        for loss in self.training.losses.told(every=True) if self.training else ():
            self.noted("loss", loss)

    def tell_settings(self) -> None:
        """Those of a loop of the user's own, which the launcher compares with the other workers'."""
        settings = self.training and self.training.settings
        while settings and settings.reached != settings.reported[0]:
            self.line.tell(control.Settled(*settings.news()))

    def close(self) -> None:
        """The role's program is through."""
        self.tell_losses()
        self.tell_settings()
        self.closed = True
        self.noted("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        for kind, size in read_counts.notes().items():
            self.noted(kind, size)
        self.teller.ended(self.watch.now(), self.me)
        self.line.confess(now=True)
        lane = self.teller.recorder.lane if isinstance(self.teller, RecordingTeller) else None
        if lane and self.watch.zero is not None:
            lane.who, lane.machine, lane.zero = str(self.me), self.machine, self.watch.zero
        self.line.tell(control.RoleEnded(self.teller.take(self.me), lane))
        if self.profiler:
            self.line.tell(control.Profiled(self.profiler.ops()))

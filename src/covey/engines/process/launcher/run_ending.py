"""Why does a run stop, and after which step does each worker end?"""

from __future__ import annotations

from covey.engines.process import control
from covey.engines.process.launcher.quiescence import Quiescence
from covey.observe.result import Stopped


class RunEnding:
    """The end of a run, once there is a reason for it."""

    def __init__(self, quiescence: Quiescence) -> None:
        self.quiescence = quiescence
        self.reason: Stopped | None = None
        self.begun = False  # the workers are being stopped
        self.last_step: int | None = None  # of a worker that is born again while the run ends

    def send_last_steps(self) -> None:
        """Send every worker its last step: a common one where they wait for one another."""
        steps, lockstep = self.quiescence.where(), self.quiescence.lockstep
        last = max(steps.values(), default=0) + 1  # a worker may have begun the step that it would begin next
        self.last_step = last if lockstep else 0
        for address, step in steps.items():
            self.quiescence.monitor.board.tell([address], control.Stop(last if lockstep else step + 1))

"""How do all roles reach a point at which nothing moves? There a run can be saved, or given its last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from covey.engines.process import control
from covey.engines.process.launcher.monitor import Monitor
from covey.message import Address
from covey.observe.result import Stopped


class Quiescence:
    """Has workers wait before a step, and looks until no message is on its way."""

    def __init__(self, monitor: Monitor, lockstep: bool) -> None:
        self.monitor, self.board, self.roster = monitor, monitor.board, monitor.roster
        self.lockstep = lockstep  # whether workers wait for one another at every step
        self.stuck = False  # a worker waits for others that would hold
        self.resting: set[Address] = set()  # the workers that have no batch, and wait until there is one

    def hold(self, on_the_way: Callable[[int], None] = lambda step: None) -> bool:
        """Have every worker wait before its next step: a common one where they wait for one another.

        A worker of a quorum may wait for gradients of others that hold already: those then do a step more. What has to
        be done before they come to a common step is done `on_the_way` to it. False: a worker was lost.
        """
        steps, restarts = self.where(), self.monitor.restarts
        if not restarts.settled:
            return False
        steps = {address: step for address, step in steps.items() if address not in self.resting}
        if self.lockstep and steps:
            steps = dict.fromkeys(steps, max(steps.values()))
        self.hold_at(steps)
        on_the_way(max(steps.values(), default=0))
        self.stuck = False
        self.monitor.wait_for(lambda: self.missing(steps) if restarts.settled else [])
        return restarts.settled and not self.stuck

    def hold_at(self, steps: dict[Address, int]) -> None:
        for address, step in steps.items():
            self.board.tell([address], control.Hold(step))

    def missing(self, steps: dict[Address, int]) -> list[Address]:
        """Who does not hold yet; if they wait for those that do, these go on by a step."""
        late = [a for a, step in steps.items() if self.roster.seen[a].held != step and not self.roster.seen[a].ended]
        ranged = self.monitor.restarts.ranged
        if not late or (self.lockstep and not ranged) or not self.waits_for_held(late):
            return late
        if ranged and self.rest(late, steps):
            return [address for address in late if address in steps]
        if self.lockstep:
            self.stuck = True
            return []
        further = {a: step + 1 for a, step in steps.items() if a not in late and not self.roster.seen[a].ended}
        steps.update(further)
        self.hold_at(further)
        return late

    def rest(self, late: list[Address], steps: dict[Address, int]) -> bool:
        """Wait no more for those of them that have found no batch meanwhile; whether there are such."""
        self._ask(late)
        resting = [address for address in late if address in self.resting]
        self.hold_at({address: steps[address] for address in late if address not in self.resting})
        for address in resting:
            del steps[address]
        return bool(resting)

    def waits_for_held(self, late: list[Address]) -> bool:
        """Whether those that do not hold yet wait for those that do: for what they send, or for their votes."""
        if self.monitor.loops.waits_for_votes(late):
            return True
        sent = self.still()
        return sent is not None and sent == self.still()

    def where(self) -> dict[Address, int]:
        """The step that each worker would begin next; each holds there. Workers that begin no more are left out."""
        for address in self.roster.trainers:
            self.roster.seen[address].held = None
        found = self._ask(self.roster.trainers)
        return {address: at.step for address, at in found.items() if at.step is not None}

    def _ask(self, workers: Sequence[Address]) -> Mapping[Address, control.NextStep]:
        self.board.tell(workers, control.AskNextStep())
        found = self.monitor.collect(control.NextStep, workers)
        self.resting = {address for address, at in found.items() if at.rests}
        return found

    def drain(self, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until everything sent has arrived and nothing moves: two equal counts in a row (Mattern 1987).

        False if that was given up.
        """
        before, now = None, self.still()
        while not given_up() and (now is None or now != before):
            before, now = now, self.still()
        return not given_up()

    def still(self) -> int | None:
        """How many messages were sent, if all of them have arrived and no role does anything; None else."""
        self.board.tell(self.roster.roles, control.CountMessages())
        counts = self.monitor.collect(control.MessageCounts, self.roster.roles).values()
        sent, received = sum(c.sent for c in counts), sum(c.received for c in counts)
        return sent if sent == received and not any(c.busy for c in counts) else None


class RunEnding:
    """The end of a run, once there is a reason for it."""

    def __init__(self, quiescence: Quiescence) -> None:
        self.quiescence = quiescence
        self.reason: Stopped | None = None
        self.begun = False  # the workers are being stopped
        self.last_step: int | None = None  # of a worker that is restarted while the run ends

    def send_last_steps(self) -> None:
        """Send every worker its last step: a common one where they wait for one another."""
        steps, lockstep = self.quiescence.where(), self.quiescence.lockstep
        last = max(steps.values(), default=0) + 1  # a worker may have begun the step that it would begin next
        self.last_step = last if lockstep else 0
        for address, step in steps.items():
            self.quiescence.monitor.board.tell([address], control.Stop(last if lockstep else step + 1))

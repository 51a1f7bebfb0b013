"""A run in virtual time that is interrupted, kept as checkpoints are, and continued from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from covey.check.trial_task import EVEN, WORKERS, task
from covey.checkpoint import RoleState
from covey.engines.process.role.saving import restore
from covey.engines.virtual.engine import VirtualEngine, VirtualOutcome
from covey.engines.virtual.keeping import RunKeeper
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.model.threads import one_thread
from covey.observe.referee import Referee
from covey.observe.tally import Teller
from covey.run.options import options
from covey.run.request import Request, request
from covey.simulate import Cluster, Seconds

LENGTHS = 9, 18, 36  # steps of every worker; in the middle of the first that allows it the run is kept
NO_REST = (
    f"no checkpoint came about in runs of {', '.join(map(str, LENGTHS))} steps: before each step a worker must be able "
    "to wait while no message is on its way, so no program may send again and again on its own"
)
FIRST_SLOW = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={0: 3.0})


class FirstCheckpoint:
    """Writes every role's state the first time that a run is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, 0.0
        self.remembered: dict[str, list[str]] = {}  # by role

    def write(self, states: Mapping[Address, RoleState], seconds: float, teller: Teller) -> None:
        if self.remembered:
            return
        self.seconds = seconds
        for address, state in states.items():
            self.remembered[address.role] = sorted(state.memories)
            state.write(self.folder, address)

    def attempt(self) -> VirtualAttempt:
        """The run goes on from what was written."""
        roles = [path.stem.rpartition("-") for path in self.folder.glob("*.json")]
        addresses = [Address(role, int(rank)) for role, _, rank in roles]
        states = {address: RoleState.read(self.folder, address) for address in addresses}
        return VirtualAttempt(clock=self.seconds, states=states)


def same_after_a_restart(spec: str) -> str:
    """Interrupted and continued from what is kept, a run ends with the weights of one that was not, to the bit.

    With one worker; and with several, where neither their speeds nor a mere pause change the weights.
    """
    for workers in (1, WORKERS):
        tried = (_restarted(spec, workers, steps) for steps in LENGTHS)
        if why := next((found for found in tried if found is not None), NO_REST):
            return f"with {workers} worker{'s' if workers > 1 else ''}, {why}"
    return ""


def _restarted(spec: str, workers: int, steps: int) -> str | None:
    """What is wrong after a restart in the middle of this many steps; None where no checkpoint came about."""
    asked = request(task(), spec, workers, options({"engine": "simulated", "steps": steps}))
    with TemporaryDirectory() as folder, one_thread():
        whole, otherwise = _run(asked, FIRST_SLOW), _run(asked, EVEN)
        kept = FirstCheckpoint(Path(folder))
        keeper = RunKeeper(whole.seconds / 2, asked.plan.lockstep, kept.write)
        paused = _run(asked, FIRST_SLOW, VirtualAttempt(keeper=keeper))
        if not kept.remembered:
            return None
        continued = _run(asked, FIRST_SLOW, kept.attempt())
    if not _equal(whole, otherwise) or not _equal(whole, paused) or _equal(whole, continued):
        return ""
    names = "; ".join(f"{role}: {', '.join(names) or 'nothing'}" for role, names in kept.remembered.items())
    return (
        f"interrupted in the middle of {steps} steps and continued, the weights differ from those of a run without a "
        "restart: what a program has in variables is lost then, so keep it with node.remember; what is remembered: "
        f"{names}"
    )


def _run(asked: Request, cluster: Cluster, attempt: VirtualAttempt | None = None) -> VirtualOutcome:
    replicas = _replicas(asked)
    for address, state in (attempt.states if attempt else {}).items():
        restore(replicas[address], state.replica)
    return VirtualEngine(asked.plan, replicas, cluster, [], Referee(10**9), attempt=attempt).run()


def _replicas(asked: Request) -> dict[Address, Replica]:
    return {
        role.address: build.replica(asked.task, role.address, role.trains, asked.deal, asked.budget, role.part)
        for role in asked.plan.roles
    }


def _equal(these: VirtualOutcome, those: VirtualOutcome) -> bool:
    """To the bit."""
    return all(
        one.weight == other.weight
        and all(map(torch.equal, one.params.join(one.buffers).parts, other.params.join(other.buffers).parts))
        for one, other in zip(these.snapshots, those.snapshots, strict=True)
    )

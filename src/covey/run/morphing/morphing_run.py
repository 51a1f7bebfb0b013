"""A mesh whose machines come and go: it starts again with other numbers of stages and replicas, in virtual time.

As Varuna does (Athlur et al. 2022): when a machine goes or comes, the run is kept, ended, and goes on with the layout
that is predicted to be fastest. The batch of all replicas together, and the size of a micro-batch, stay the same, so
that each replica does more or fewer micro-batches in a step; what is learned does not depend on the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from covey import catalog
from covey.checkpoint import CheckpointDirectory
from covey.data.shards import Shards
from covey.errors import PeerLost, PlanError
from covey.membership import too_few
from covey.message import Address
from covey.observe.instruments import Instrument
from covey.observe.membership import MembershipLog
from covey.observe.result import Result
from covey.parallelism.plan.fastest import PipelineLayout, fastest
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.terms import CutTerms
from covey.run.morphing.morphing_checks import check
from covey.run.option_parts import FaultOptions, trace_of
from covey.run.options import Options
from covey.run.request import Request, request
from covey.run.simulated import simulated
from covey.run.virtual_restarts import STARTING
from covey.simulate import Cluster, Seconds
from covey.simulate.faults import Fault, FaultPlan
from covey.simulate.spot_trace import SpotTrace, TraceLine
from covey.simulate.units import parse_size
from covey.spec import parse, parse_call
from covey.spec.worker_range import WorkerRange
from covey.task import Task

FOREVER = Seconds(1e9)  # until a machine departs that only has to keep the run
NO_TRACE = SpotTrace(())


def mesh_in_range(strategy: str | Any, team: WorkerRange) -> bool:
    """Whether workers come and go that are the stages of pipelines."""
    if not team.least:
        return False
    mesh = catalog.resolve(catalog.chosen(strategy, team.most), team.most).composition.mesh
    return isinstance(mesh, Mesh) and mesh.cut_in_layers


def morphing(
    task: Task | str, strategy: str | Any, team: WorkerRange, given: Options
) -> tuple[Request, Callable[[Request], Result]]:  # fmt: skip
    """The request of the run with all of its machines, and what trains it while they come and go."""
    trace = trace_of(given.fault_plan) or NO_TRACE
    still = replace(given, fault_plan=FaultOptions())
    check(strategy, team, given)
    asked = request(task, strategy, team.most, still)
    return asked, lambda heard: MorphingRun(heard, team, trace).run()


class SamplesSeen(Instrument):
    """What all attempts have computed, and when the last checkpoint was written."""

    explains = False

    def __init__(self) -> None:
        self.samples, self.kept_at = 0, 0.0

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        self.samples += int(value) if kind == "samples" else 0

    def kept(self, at: float) -> None:
        self.kept_at = at


@dataclass(slots=True)
class MorphingRun:
    """All attempts at a run: each has a layout, until a machine that it uses departs, or others make a faster one."""

    asked: Request
    team: WorkerRange
    trace: SpotTrace
    seen: SamplesSeen = field(default_factory=SamplesSeen)
    log: MembershipLog = field(init=False)
    present: set[int] = field(init=False)
    ahead: list[TraceLine] = field(init=False)
    profile: Profile = field(init=False)
    clock: float = 0.0

    def __post_init__(self) -> None:
        from covey.run.cutting import profiled  # tracing models takes long to import

        self.log = MembershipLog(self.asked.left)
        self.present = set(range(self.team.most)) - self.trace.absent
        self.ahead = sorted(self.trace.lines, key=_told)
        mesh, world = self.mesh, self.world
        _, profile = profiled(self.asked.task, mesh.schedule, repeat=0, seed=self.asked.deal.seed, tied=mesh.tied)
        whole = profile.compute(0, len(profile) - 1) * self.microbatches / self.replicas
        self.profile = profile.scaled(world.compute / whole)

    # -- layouts ---------------------------------------------------------------------------------------------------

    @property
    def mesh(self) -> Mesh:
        found = self.asked.strategy.composition.mesh
        assert isinstance(found, Mesh)
        return found

    @property
    def world(self) -> Cluster:
        return self.asked.options.virtual.cluster or Cluster()

    def world_of(self, machines: list[int]) -> Cluster:
        """The cluster of an attempt, whose worker i is on the machine `machines[i]`."""
        world, places = self.world, {machine: place for place, machine in enumerate(machines)}
        links = {
            f"worker {place}": world.links[f"worker {machine}"]
            for machine, place in places.items() if f"worker {machine}" in world.links
        }  # fmt: skip
        slow = {places[machine]: factor for machine, factor in world.slowdowns.items() if machine in places}
        return replace(world, links=links, slowdowns=slow, workers=len(machines) if world.workers else None)

    @property
    def replicas(self) -> int:
        """With all machines."""
        return self.mesh.replica or 1

    @property
    def microbatches(self) -> int:
        """Of a step, of all replicas together."""
        return self.replicas * self.mesh.schedule.microbatches

    @property
    def batch(self) -> int:
        """The samples of a step."""
        return self.replicas * self.asked.task.batch_size

    def layout(self, machines: int) -> PipelineLayout:
        """The fastest one."""
        if machines == self.team.most:
            return PipelineLayout(tuple(self.mesh.after), self.replicas, math.nan)
        limit = parse_size(self.mesh.memory) if self.mesh.memory else math.inf
        terms = CutTerms(
            stages=None, schedule=self.mesh.schedule, bandwidth=self.world.link.bandwidth, memory=limit, trains=True
        )
        fits = [n for n in range(1, machines + 1) if self._deals(n)]
        found = fastest(self.profile, machines, self.microbatches, terms, fits)
        if found is None:
            raise PlanError(f"no layout of the model fits {machines} machines with memory={self.mesh.memory}")
        return found

    def _deals(self, replicas: int) -> bool:
        """Whether this many replicas have whole micro-batches, and pass over the data in equally many steps."""
        if self.microbatches % replicas or self.batch % replicas:
            return False
        deal = Shards(self.asked.deal.samples, replicas, self.batch // replicas)
        return len({deal.steps(rank) for rank in range(replicas)}) == 1

    # -- attempts --------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        with ExitStack() as stack:
            place = self.asked.options.checkpoints.checkpoint
            folder = Path(place if place is not None else stack.enter_context(TemporaryDirectory()))
            while True:
                self._let_pass(self.clock)
                layout = self.layout(len(self.present))
                machines = sorted(self.present)[: layout.machines]
                line = self._next(layout, machines)
                fault = self._fault(line, machines) if line else None
                try:
                    result = simulated(self._attempt(layout, machines, fault, folder))
                except PeerLost:
                    if line is None:
                        raise
                    self._morph(line, layout)
                    continue
                self._let_pass(result.seconds, line)
                return self._concluded(result, fault)

    def _attempt(
        self, layout: PipelineLayout, machines: list[int], fault: Fault | None, folder: Path
    ) -> Request:  # fmt: skip
        """The run with this layout on these machines, from its newest checkpoint."""
        given, task = self.asked.options, self.asked.task
        each = self.batch // layout.replicas
        mesh = replace(
            self.mesh, stage=layout.stages, replica=layout.replicas, microbatches=self.microbatches // layout.replicas,
            cut=":".join(map(str, layout.after)) or "best", load="",
        )  # fmt: skip
        spec = replace(parse(self.asked.strategy.text), mesh=parse_call(str(mesh)))
        kept = folder if CheckpointDirectory(folder).all() else None
        world = self.world_of(machines)
        world = replace(world, compute=Seconds(world.compute * each / task.batch_size))
        places = replace(given.checkpoints, checkpoint=folder, resume=kept, on_failure="stop", max_failures=None)
        options = replace(
            given, training=replace(given.training, rate=1.0), checkpoints=places,
            fault_plan=FaultOptions(faults=FaultPlan((fault,)) if fault else None),
            virtual=replace(given.virtual, cluster=world, instruments=[*given.virtual.instruments, self.seen]),
        )  # fmt: skip
        made = request(replace(task, batch_size=each), str(spec), layout.machines, options)
        return replace(
            made, name=self.asked.name, scored=self.asked.scored, kept=self.asked.kept, origin=self.asked.origin,
            morphed=kept is not None, begins=self.clock,
        )  # fmt: skip

    # -- machines --------------------------------------------------------------------------------------------------

    def _let_pass(self, until: float, before: TraceLine | None = None) -> None:
        """Machines that came and went until then, without an end of an attempt."""
        while self.ahead and _told(self.ahead[0]) <= until and self.ahead[0] is not before:
            self._change(self.ahead.pop(0))

    def _next(self, layout: PipelineLayout, machines: list[int]) -> TraceLine | None:
        """The next line of the trace that ends an attempt with this layout on these machines."""
        there = len(self.present)
        for line in self.ahead:
            there += 1 if line.event == "arrive" else -1
            if line.event == "depart" and (line.worker in machines or there < self.team.least):
                return line
            if line.event == "arrive":
                more = self.layout(there)
                if (more.after, more.replicas) != (layout.after, layout.replicas):
                    return line
        return None

    def _there_at(self, then: float) -> int:
        """How many machines are there at that time."""
        changes = [1 if line.event == "arrive" else -1 for line in self.ahead if _told(line) <= then]
        return len(self.present) + sum(changes)

    def _change(self, line: TraceLine) -> None:
        if line.event == "arrive":
            self.present.add(line.worker)
        else:
            self.present.discard(line.worker)
        who, left = f"worker {line.worker}", len(self.present)
        told = "left after a notice" if line.notice else "left"
        if left < self.team.least:
            raise too_few(Address("worker", line.worker), f"{told} at {_told(line):g} s", left, self.team.least)
        if line.event == "arrive":
            self.log.add("join", who, "joined", seconds=line.at, workers=left)
        else:
            self.log.add("leave", who, told, seconds=_told(line), workers=left)

    def _fault(self, line: TraceLine, machines: list[int]) -> Fault:
        """What ends the attempt; with a notice, or for one that arrives, the run is kept before."""
        if line.event == "arrive":
            return Fault(kind="notice", who=("worker 0",), at=line.at, lasts=FOREVER)
        who = (f"worker {machines.index(line.worker) if line.worker in machines else 0}",)  # else too few are left
        if line.notice:
            return Fault(kind="notice", who=who, at=Seconds(_told(line)), lasts=line.notice)
        return Fault(kind="kill", who=who, at=line.at)

    def _morph(self, line: TraceLine, before: PipelineLayout) -> None:
        self._let_pass(math.inf, line)
        self._change(self.ahead.pop(0))
        ended = max(_told(line), self.seen.kept_at if line.event == "arrive" or line.notice else 0.0)
        self.clock = ended + STARTING
        after = self.layout(max(self._there_at(self.clock), self.team.least))
        cause = f"{before} before, {after} from now on"
        who, there = f"worker {line.worker}", len(self.present)
        self.log.add("restart", who, cause, seconds=ended, workers=there, stalled=STARTING)
        self.asked.options.output.say(f"at {ended:.4g} s: {cause}")

    def _concluded(self, result: Result, fault: Fault | None) -> Result:
        """The last attempt's result, with what happened before it."""
        result.failures[:] = [line for line in result.failures if not (fault and line.startswith(str(fault)))]
        if self.log.events:
            result.tell_membership(self.log.events, self.seen.samples - result.samples)
        result.workers, world = self.team.most, self.world
        if world.price or world.spot_price:
            there = dict.fromkeys(range(self.team.most), result.seconds) | self.trace.seconds_present(result.seconds)
            result.tell_cost(world.prices(there), self.trace.absent, there)
        return result


def _told(line: TraceLine) -> float:
    """When a line of the trace is known."""
    return line.at - line.notice

"""Real processes, wherever they live: the launcher's side of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.engines import handover
from covey.engines.cluster.losses.elastic_cluster import ElasticCluster
from covey.engines.interrupt import Interrupt, JoinRequests, interruptible
from covey.engines.local import LocalProcesses
from covey.engines.process.contacts import Contacts
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.empty_seats import Renewal
from covey.engines.process.launcher.run_processes import RunProcesses
from covey.engines.process.launcher.run_wishes import RunWishes
from covey.engines.process.launcher.supervisor import Supervisor
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.signal_faults import SignalFaults
from covey.engines.worker_scaling import ScaledSeats, WorkerScaling
from covey.errors import CheckpointError
from covey.membership import Deaths
from covey.model import build, scored
from covey.names import option, task_name
from covey.observe.membership import MembershipLog
from covey.observe.result import Result, conclude
from covey.run import roles
from covey.run.best_model import BestModel
from covey.run.changed_plan import PLAN, ChangedPlan, changed, check_parts
from covey.run.checks import check_seats, keepable
from covey.run.kept import after, changed_settings, check_layout, mesh_of, same_cut, settings_of, uncut
from covey.run.leading.lead import FROZEN, Lead
from covey.run.leading.lead_options import FILE
from covey.run.option_parts import CheckpointOptions, deaths_survived, plan_of
from covey.run.request import Request, facts, referee
from covey.run.restarting import Attempt, Restarts, interval
from covey.run.roles import RoleWork
from covey.run.saving import save_model
from covey.simulate import parse_duration
from covey.strategy import Plan, Role


class StartableProcesses(RunProcesses, Protocol):
    """The processes of a run, before and while they live."""

    @property
    def directory(self) -> Path: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...
    def start(
        self, roles: Sequence[Role], entry: str, pack: Callable[[Contacts], bytes], handed: bytes = b""
    ) -> Switchboard: ...


StartProcesses = Callable[[Request, str, bytes], StartableProcesses]
"""How an engine makes its processes: for this request, with the module that roles need, and the handed-over task."""


def local(asked: Request) -> Result:
    """Roles as processes of this machine."""
    stall, faults = parse_duration(asked.options.processes.stall), faults_of(asked)
    frozen = stall if asked.options.lead.keeper == FILE else min(stall, FROZEN)
    joins = JoinRequests() if asked.plan.least else None
    result = on_processes(
        asked, "local", lambda asked, warm, handed: LocalProcesses(warm, asked.threads, stall, faults, joins, frozen)
    )  # fmt: skip
    result.failures += faults.unmet if faults else []
    return result


def faults_of(asked: Request) -> SignalFaults | None:
    """What goes wrong in a run on real processes, and who comes and goes; None where nothing was planned."""
    plan, everybody = plan_of(asked.options.fault_plan, begins_full=True), [role.address for role in asked.plan.roles]
    check_seats(plan, asked.plan)
    return SignalFaults(plan, [*everybody, SCORER], asked.plan.least > 0) if plan else None


def on_processes(asked: Request, name: str, start_processes: StartProcesses) -> Result:
    """Train with the processes of an engine."""
    given = asked.options
    here = run_record(asked)
    kept, run = kept_run(given.checkpoints, here, rigid=asked.plan.elastic)
    here = after(run, here)
    if run and not asked.plan.least:
        check_layout(run, here, asked.strategy.in_step)
    checkpoints = asked.lead.checkpoints if asked.lead else checkpoints_of(given.checkpoints)
    lead = asked.lead or Lead.of(given, checkpoints)
    interrupt, best = Interrupt(), BestModel.of(given)
    restarts = Restarts(given, checkpoints, interrupt, len(asked.plan.limits), log=lead.membership(asked.left))
    spot = given.fault_plan.spot_trace is not None
    restarts.failures.elastic &= keepable(asked.strategy, asked.plan.least, spot)
    with lead.told(asked.kept), interruptible(interrupt):
        result = restarts.run(
            Attempt(kept, run, log=restarts.failures.log),
            lambda attempt: _train(asked, name, start_processes, here, lead, interrupt, attempt, best),
        )
        result.keep_origins(here.origins)
        return lead.finish(result)


def _train(
    asked: Request, name: str, start_processes: StartProcesses, here: RunRecord, lead: Lead, interrupt: Interrupt,
    attempt: Attempt,
    best: BestModel,
) -> Result:  # fmt: skip
    """One attempt, with new processes."""
    given, run, scores = asked.options, attempt.run, asked.options.budget.scores
    change = _change(asked, attempt.kept, run, here)
    skipped = change.skipped if change else run.skipped if run else []
    plan, judge = _shortened(asked.plan, skipped), referee(asked, skipped)
    judge.known = attempt.lost.scored if attempt.lost else judge.known
    here = msgspec.structs.replace(here, skipped=skipped)
    handed = handover.pack(None if asked.name else asked.task, asked.spec if asked.spec.from_outside else None)

    warm = asked.task.warm and attempt.lost is None  # after a failure the clock runs while the run starts again

    def pack(contacts: Contacts) -> bytes:
        # one that is restarted takes what it must know from the others, who have come further than the checkpoint
        kept = None if contacts.incarnations else attempt.kept
        work = _work(asked, plan, contacts, kept, run, warm and not contacts.incarnations)
        inherits = change.scored if change else []
        return msgspec.msgpack.encode(msgspec.structs.replace(work, skipped=skipped, inherits=inherits))

    with start_processes(asked, roles.__name__, handed) as processes:
        board = processes.start(asked.plan.roles, f"{roles.__name__}:enter", pack, handed)
        file = processes.directory / "model.safetensors"
        wishes = RunWishes(
            score=bool(scores) and (asked.task.evaluate is not None or asked.target is not None or bool(judge.follows)),
            first=bool(scores) and asked.task.evaluate is not None and run is None, warm=warm, model=file,
            checkpoints=lead.checkpoints, lead=lead.check, keep_every=interval(given.checkpoints),
            run=here, stall=parse_duration(given.processes.stall), budget=asked.budget, watcher=given.output.watcher,
            interrupt=interrupt, lost=attempt.lost, profiled=given.processes.profiled,
            renewal=_renewal(asked, processes, attempt.log),
        )  # fmt: skip
        supervisor = attempt.supervisor = Supervisor(plan, board, processes, judge, wishes)
        better = file.with_name("best.safetensors")
        best.watch(judge, lambda: best.written(supervisor.scoring.write_last, better), lead.check)
        if run is not None:
            supervisor.resume(run)
            unlike = [] if asked.own_settings else changed_settings(run, here)
            for line in change.lines if change else unlike:
                supervisor.news.say(line)
        outcome = supervisor.run()
        result = conclude(
            facts(asked, name), judge, outcome.tallies,
            seconds=outcome.seconds, stopped=outcome.stopped, usage=outcome.usage, failures=outcome.refused,
            contention=outcome.contention,
        )  # fmt: skip
        result.keep_weights(scored.read(file))
        if asked.task.ema is not None:
            result.keep_ema(scored.read(scored.averages_beside(file)))
        best.tell(result)
        if asked.traced:
            result.keep_recording(supervisor.recording(outcome, result.strategy, result.engine))
        lead.check()
        unsaved = save_model(result, given.output.save)
        result.failures += supervisor.monitor.left()
    if unsaved:
        raise unsaved
    return result


def _change(asked: Request, kept: Path | None, run: RunRecord | None, here: RunRecord) -> ChangedPlan | None:
    """How this attempt goes on from a checkpoint of other roles; None where it has the same, or none at all."""
    if kept is None or run is None or not changed(uncut(run), uncut(here)):
        return None
    check_parts(asked.strategy, asked.plan)
    return ChangedPlan.of(kept, run, here, asked.deal, asked.plan.limits)


def _shortened(plan: Plan, skipped: Sequence[int]) -> Plan:
    """The same, with this many steps of each worker done."""
    if not skipped:
        return plan
    pairs = zip(plan.limits, skipped, strict=True)
    return replace(plan, limits=tuple(None if limit is None else limit - done for limit, done in pairs))


def _renewal(asked: Request, processes: StartableProcesses, log: MembershipLog) -> Renewal | None:
    if not asked.plan.elastic:
        return None
    assert isinstance(processes, LocalProcesses | ElasticCluster), "other engines refuse to go on after a loss"
    scaling = ScaledSeats(WorkerScaling(len(asked.plan.limits), asked.task.step_size)) if asked.auto else None
    return Renewal(
        Deaths(deaths_survived(asked.options.checkpoints), copies=asked.plan.copies), processes.renew, log,
        asked.plan.least, f"ipc://{processes.directory}/nobody-", processes.joining, scaling, processes.release,
        processes.renewable, processes.patience,
    )  # fmt: skip


def _work(
    asked: Request, plan: Plan, contacts: Contacts, kept: Path | None, run: RunRecord | None, warm: bool
) -> RoleWork:
    given = asked.options.training
    return RoleWork(
        task=task_name(asked.name).absolute() if asked.name else "",
        strategy=None if asked.spec.from_outside else asked.spec, text=asked.strategy.text,
        workers=len(asked.plan.limits), replicas=asked.deal.workers,
        servers=given.servers, limits=list(plan.limits), seed=given.seed, rate=given.rate,
        preparers=asked.options.data.preparers,
        threads=asked.threads, budget=asked.budget, contacts=contacts, rows=asked.rows, samples=asked.deal.samples,
        kept=str(kept.resolve()) if kept else "", own_settings=asked.own_settings,
        warm=warm, traced=asked.traced, profiled=asked.options.processes.profiled,
        elastic=asked.plan.elastic, least=asked.plan.least, copies=asked.plan.replicas, allowance=asked.plan.allowance,
        recut=run.strategy if run and not same_cut(run.strategy, asked.strategy.text) else "",
    )  # fmt: skip


def run_record(asked: Request) -> RunRecord:
    kept = asked.options.checkpoints
    return RunRecord(
        strategy=asked.strategy.text, workers=len(asked.plan.limits), servers=asked.servers,
        seed=asked.options.training.seed, samples=asked.deal.samples, batch_size=asked.task.step_size,
        replicas=asked.plan.replicas, limits=list(asked.plan.limits), ranged=asked.plan.least > 0,
        clock="virtual" if asked.options.engine == "simulated" else "real",
        optimizer=settings_of(build.optimizer(asked.task)) if kept.checkpoint or kept.resume else [],
        origins=[asked.origin] if asked.origin else [],
    )  # fmt: skip


def checkpoints_of(given: CheckpointOptions, told: Callable[[Path], None] | None = None) -> CheckpointDirectory | None:
    """Where this run is kept, and who is told; a folder with the checkpoints of another run stays as it is."""
    if given.checkpoint is None:
        return None
    place, resumed = Path(given.checkpoint), given.resume
    if CheckpointDirectory(place).all() and (resumed is None or Path(resumed).resolve() != place.resolve()):
        raise CheckpointError(
            f"{place} holds the checkpoints of an earlier run, which this one would replace: "
            f"go on from them with {option('resume', place)}, or choose another folder"
        )
    found = CheckpointDirectory(place)
    if told:
        found.told = told
    return found


def check_kind(place: Path, run: RunRecord, here: RunRecord) -> None:
    """Refuse the checkpoint of a run of another kind than this one."""
    if run.loop != here.loop:
        kinds = {True: "a script's own loop (covey launch)", False: "a task (covey run)"}
        raise CheckpointError(
            f"{place} is of {kinds[run.loop]}, and this is {kinds[here.loop]}: go on with the command of that run"
        )
    if run.ranged != here.ranged:
        ways = {True: "with a range of workers", False: "with a fixed number of workers"}
        raise CheckpointError(
            f"{place} is of a run {ways[run.ranged]}, and this one is {ways[here.ranged]}: go on with "
            f"{option('workers', f'MIN:{run.workers}' if run.ranged else run.workers)}"
        )
    if "" not in (run.clock, here.clock) and run.clock != here.clock:
        others = {"real": "covey run, or engine local", "virtual": "covey simulate, or engine simulated"}
        raise CheckpointError(
            f"{place} is of a run in {run.clock} time, and this one counts {here.clock} seconds: go on with "
            f"{others[run.clock]}"
        )


def newest(given: CheckpointOptions) -> tuple[Path, RunRecord]:
    """The newest checkpoint, of whatever layout."""
    assert given.resume is not None
    return CheckpointDirectory(Path(given.resume)).newest()


def kept_run(
    given: CheckpointOptions, here: RunRecord, rigid: bool = False
) -> tuple[Path | None, RunRecord | None]:  # fmt: skip
    """The checkpoint to go on from, if this run can go on from it; a `rigid` one only with the same roles."""
    if given.resume is None:
        return None, None
    checkpoints = CheckpointDirectory(Path(given.resume))
    place, run = checkpoints.newest()
    check_kind(place, run, here)
    written, past, here = here.strategy, uncut(run), uncut(here)
    longer = past.limits != here.limits and not changed(past, here)
    if run.ended and longer and (earlier := checkpoints.unended()):
        place, run = checkpoints.checked(earlier)  # a longer run: no worker may have said goodbye yet
        past = uncut(run)
    before, now = mesh_of(run.strategy), mesh_of(written)
    cut = before.members > 1 or now.members > 1
    fixed = PLAN if run.loop or cut or rigid else ()
    if rigid and run.skipped:
        raise CheckpointError(f"{place} is of a run that was resumed with other workers: go on with real processes")
    for name in (*fixed, "seed", "samples", "batch_size"):
        if getattr(past, name) != getattr(here, name):
            what = "replica x shard x expert =" if cut and name == "workers" else name  # who has batches of its own
            raise CheckpointError(
                f"{place} is of a run with {what} {getattr(past, name)!r}, this one has {getattr(here, name)!r}: use "
                f"the same, or start anew without {option('resume')}"
            )
    if run.ended and past.limits != here.limits and not changed(past, here):
        raise CheckpointError(
            f"{place}: worker {run.ended[0]} had already ended after its {run.limits[run.ended[0]]} steps; "
            f"go on with the {option('epochs')} or {option('steps')} that the run had"
        )
    return place, run

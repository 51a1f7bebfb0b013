"""Can this run do what its task and its options ask for? Tried before anything starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from torch.optim.lr_scheduler import ReduceLROnPlateau

from covey import catalog
from covey.data.partitions import Partitions
from covey.data.shards import Shards
from covey.data.streams import StreamShards
from covey.engines import machine
from covey.errors import PlanError, UnknownMetric
from covey.faults import refusing_task
from covey.membership import OnLoss
from covey.model import build
from covey.model.replica_spec import pace_of
from covey.names import option
from covey.parallelism.hybrid import why_part_lost
from covey.run.options import Options
from covey.simulate.faults import OF_SEATS, FaultPlan
from covey.spec.worker_range import WorkerRange
from covey.strategy import Plan, Role, Strategy
from covey.target import direction
from covey.task import Task


def check_place(task: Task, chosen: Strategy, given: Options) -> None:
    """Refuse processes and a device that this machine has not, and a compiled model where none can be."""
    if given.engine != "simulated":
        machine.check_processes()
    here = given.engine in ("local", "simulated")  # hosts of a cluster may have what this one has not
    if here and not given.virtual.timing_only:
        build.device(task, 0)
    if not task.compile:
        return
    if given.engine == "simulated":
        raise PlanError(
            "Task(compile=…) is for real processes: in virtual time every batch costs what the cluster says; omit it"
        )
    if chosen.composition.mesh:
        raise PlanError(
            "Task(compile=…) and a mesh: a divided model is put together while it computes and cannot be compiled; "
            "omit either"
        )
    if here and task.compile is True and not shutil.which(os.environ.get("CXX") or "g++"):
        raise PlanError(
            "Task(compile=True) needs a C++ compiler, and there is no g++ here: install one (apt install g++), name "
            "another in CXX, or use a backend without one, such as compile='aot_eager'"
        )


def check_stream(chosen: Strategy, deal: Shards) -> None:
    """Refuse a stream where samples are asked for by number."""
    if not isinstance(deal, StreamShards):
        return
    if chosen.terms.chooses or chosen.terms.parts > 1 or chosen.composition.mesh:
        raise PlanError(
            f"{chosen.text} asks for samples by number, and the data is a stream: use a strategy that takes batches as "
            "they come, such as bsp, allreduce or local_sgd, or data with len(data) and data[i]"
        )


def check_schedule(task: Task, chosen: Strategy, given: Options, deal: Shards, total: int) -> None:
    """Make the scheduler once, over an optimizer that nobody uses; refuse one that this run cannot step."""
    pace = pace_of(task, deal, total)
    if pace is None or given.virtual.timing_only:
        return
    with refusing_task():
        optimizer = build.optimizer(task)
        scheduler = pace.start(optimizer).scheduler
    if chosen.terms.accept:
        chosen.terms.accept(optimizer)  # some schedulers set the momentum
    if isinstance(scheduler, ReduceLROnPlateau):
        _check_metric(task, scheduler, given)


def _check_metric(task: Task, scheduler: ReduceLROnPlateau, given: Options) -> None:
    metric = task.schedule_by
    if not given.budget.scores:
        raise PlanError(f"Task: ReduceLROnPlateau follows scores, and {option('scores', 0)} asks for none: omit one")
    if given.checkpoints.on_failure == "continue":
        raise PlanError(
            f"Task: ReduceLROnPlateau and {option('on_failure', 'continue')}: a new worker does not know the earlier "
            f"scores; use {option('on_failure', 'restart')}"
        )
    if task.evaluate is None and metric != "loss":
        raise UnknownMetric(
            f"Task: schedule_by={metric!r}: the task has no evaluate=…, so a scheduler can only follow 'loss'"
        )
    way = direction(metric, task.better)
    right = {"higher": "max", "lower": "min"}.get(way or "", scheduler.mode)
    if scheduler.mode != right:
        raise PlanError(
            f"Task: ReduceLROnPlateau(mode={scheduler.mode!r}) and {metric}, of which {way} is better: use "
            f"mode={right!r}"
        )


def check_continue(task: Task, chosen: Strategy, roles: Sequence[Role], workers: WorkerRange, given: Options) -> bool:
    """Whether lost workers of this run are restarted; refused, with what would work, where they cannot be."""
    if given.checkpoints.on_failure != "continue":
        return False
    if not (why := why_not_continue(chosen, roles) or why_stuck(task, chosen, roles)):
        return True
    if workers.least:
        raise PlanError(f"{option('workers', workers)}: {why}; {_fixed(workers)}")
    raise PlanError(
        f"{option('on_failure', 'continue')}: {why}; or use {option('on_failure', 'restart')} with "
        f"{option('checkpoint', 'DIR')}"
    )


def check_continue_of_loops(chosen: Strategy, roles: Sequence[Role], given: Options) -> bool:
    """The same for a script's own loops, where a new worker's goes on at the place of another one's."""
    if given.checkpoints.on_failure != "continue":
        return False
    if all(role.together for role in roles):
        why = why_not_continue(chosen, roles)
    else:
        able = [name for name, entry in catalog.STRATEGIES.items() if _summed(entry.example or name, entry.on_loss)]
        able.append("malt(barrier=true)")  # whose workers have one model only with this setting
        why = f"a script's own loops go on after a loss only with {', '.join(able)}, not with {chosen.name}"
    if why:
        raise PlanError(
            f"{option('on_failure', 'continue')}: {why}; or use {option('on_failure', 'restart')} with "
            f"{option('checkpoint', 'DIR')}"
        )
    return True


def _summed(spec: str, on_loss: OnLoss) -> bool:
    return on_loss == "continue" and all(role.together for role in catalog.resolve(spec, 4).layout(4, None))


def _fixed(workers: WorkerRange) -> str:
    return f"or use a number, as {option('workers', workers.most)}"


def least_workers(chosen: Strategy, workers: WorkerRange, given: Options) -> int:
    """The smallest number of workers where batches are leased to them; 0 where each has its own."""
    if chosen.lease_always and given.checkpoints.on_failure == "continue":
        return workers.least or workers.most
    return workers.least


def check_range(chosen: Strategy, deal: Shards, workers: WorkerRange, given: Options) -> None:
    """Refuse a range of workers for a run in which they cannot come and go, with what would work."""
    if not workers.least:
        return _check_leases(chosen, deal, workers, given)
    if given.fault_plan.spot_trace and (given.checkpoints.checkpoint or given.checkpoints.resume):
        raise PlanError(
            f"{option('spot_trace')}: a run that goes on from a checkpoint begins with a worker in every seat, and not "
            f"with those of the trace: omit it, or omit {option('checkpoint')} and {option('resume')}"
        )
    why, kept = "", given.checkpoints.checkpoint or given.checkpoints.resume
    if not chosen.ranges:
        able = [name for name, entry in catalog.STRATEGIES.items() if entry.ranges]
        why = f"the workers of {chosen.name} cannot come and go; use {', '.join(able)}"
    elif chosen.composition.mesh:
        why = "the workers of a cut model cannot come and go, as each has a part of it"
    elif chosen.terms.chooses:
        skips = "skips samples, and a range deals out every one: omit epoch"
        why = f"{chosen.text}: {chosen.rigid}" if chosen.rigid else f"{chosen.text} {skips}"
    elif isinstance(deal, StreamShards | Partitions):
        why = "a worker that takes over needs the samples by number: use data with len(data) and data[i]"
    elif workers.auto and given.fault_plan.spot_trace:
        why = f"a trace says itself how many there are: use a range, as {option('workers', f'1:{workers.most}')}"
    elif kept:
        why = _why_unkept(chosen, workers)
    if why := why or _held_back(chosen, given.training.servers or chosen.servers.count):
        raise PlanError(f"{option('workers', workers)}: {why}; {_fixed(workers)}")


def _check_leases(chosen: Strategy, deal: Shards, workers: WorkerRange, given: Options) -> None:
    """The same where a fixed number of workers goes on as a range of that number alone."""
    if not least_workers(chosen, workers, given):
        return
    why = ""
    if isinstance(deal, StreamShards | Partitions):
        why = "a worker that takes over needs the samples by number: use data with len(data) and data[i]"
    elif given.checkpoints.checkpoint or given.checkpoints.resume:
        why = _why_unkept(chosen, workers)
    if why:
        raise PlanError(f"{option('on_failure', 'continue')}: {why}; or use {option('on_failure', 'restart')}")


def _held_back(chosen: Strategy, servers: int) -> str:
    """Why this number of servers may not drop a push, if so: a gradient that one of them has had comes again."""
    if chosen.settings.get("filter") != "significance" or servers < 2:
        return ""
    return (
        f"{chosen.text} holds small numbers back, and a server that has had a batch before drops them with it: use "
        f"{option('servers', 1)} or another filter"
    )


MOST_COPIES = 3


def check_replicas(chosen: Strategy, workers: WorkerRange, given: Options) -> None:
    """Refuse copies of what servers hold where there can be none, with what would work."""
    replicas, why = given.copies.replicas, ""
    if replicas == 1:
        return
    if replicas > MOST_COPIES:
        why = f"each server's parameters can have 2 or {MOST_COPIES} copies; 1 is the server alone"
    elif not chosen.servers.copied:
        able = [name for name, entry in catalog.STRATEGIES.items() if _copied(entry.example or name)]
        lacking = f"the servers of {chosen.text} hold something between two messages that copies would lack"
        why = f"{lacking if chosen.servers.count else f'{chosen.text} has no servers'}: use {', '.join(able)}"
    elif workers.least:
        why = f"the servers of a range of workers have no copies: use {option('workers', workers.most)}"
    if why:
        raise PlanError(f"{option('replicas', replicas)}: {why}")


def _copied(spec: str) -> bool:
    return catalog.resolve(spec, 4).servers.copied


def _why_unkept(chosen: Strategy, workers: WorkerRange) -> str:
    """Why a run with a range has no checkpoints, if so."""
    omit = f"omit {option('checkpoint')} and {option('resume')}"
    if workers.auto:
        return f"what a run has found out of its workers is not kept: {omit}"
    if not (own := own_state(chosen)):
        return ""
    entries = catalog.STRATEGIES.items()
    ranged = [catalog.resolve(entry.example or name, 4) for name, entry in entries if entry.ranges]
    able = ", ".join(found.name for found in ranged if not own_state(found))
    return f"workers of {chosen.name} have {own}, which a checkpoint of a range does not keep: {omit}, or use {able}"


def own_state(chosen: Strategy) -> str:
    """What only workers have, and a checkpoint of a range does not keep; empty where servers have everything."""
    return catalog.STRATEGIES[chosen.name].own_state or ("" if chosen.servers.count else "models of their own")


def keepable(chosen: Strategy, least: int, spot: bool = False) -> bool:
    """Whether a run can have checkpoints, whatever its options say; `spot`: its machines come and go by a trace."""
    return not spot and (not least or not own_state(chosen))


def check_seats(faults: FaultPlan, plan: Plan) -> None:
    """Refuse workers that come and go where their number is fixed, and a beginning with too few."""
    lasting = next((fault for fault in faults.faults if fault.kind == "kill" and fault.lasts), None)
    if lasting and not plan.elastic:
        raise PlanError(f"'{lasting}': nobody replaces it: omit 'for', or add {option('on_failure', 'continue')}")
    seats = [fault for fault in faults.faults if fault.kind in OF_SEATS or fault.optional]
    if seats and not plan.least:
        raise PlanError(
            f"'{seats[0]}': the number of workers of this run is fixed: use a range, as "
            f"{option('workers', f'1:{len(plan.limits)}')}"
        )
    begin = len(plan.limits) - len(faults.absent)
    if seats and begin < plan.least:
        asked = option("spot_trace") if seats[0].optional else option("faults", faults)
        raise PlanError(
            f"{asked}: the run would begin with {begin} workers, and at least {plan.least} are to "
            "train: let fewer join later"
        )


def why_not_continue(chosen: Strategy, roles: Sequence[Role]) -> str:
    """Why workers of this strategy are not replaced when they are lost; empty where they are."""
    codec, kinds = chosen.composition.codec, {role.address.role for role in roles}
    if chosen.on_loss != "continue":
        able = [name for name, entry in catalog.STRATEGIES.items() if entry.on_loss == "continue"]
        return f"{chosen.name} cannot go on without a lost worker; use {', '.join(able)}"
    if chosen.rigid:
        return f"{chosen.text}: {chosen.rigid}"
    if chosen.composition.mesh and (why := why_part_lost(chosen, len(roles))):
        return f"{why}: use allreduce with mesh(replica=2, stage=...), or omit 'with mesh(...)'"
    if "proxy" in kinds:
        return f"{chosen.text}: workers with proxies are not restarted: omit 'over proxies(...)'"
    if kinds - {"worker", "server", "backup", "master"}:
        return f"{chosen.text}: workers with preparers are not restarted: use preparers=0"
    if codec.pull or codec.traits.measured:
        return "a new worker does not know what the lost one had been sent: omit + pull and + auto"
    if not codec.traits.plain and "server" not in kinds:
        return f"a new worker does not know the models that + {codec.name} compares with: omit the codec"
    if kinds == {"worker"} and len(roles) < 2:
        return f"{chosen.name} with 1 worker has nobody to take the model from: use 2 or more"
    return ""


def why_stuck(task: Task, chosen: Strategy, roles: Sequence[Role]) -> str:
    """Servers that wait for each other's norms do not hear of a worker whose gradient only some of them have."""
    servers = sum(role.address.role == "server" for role in roles)
    if task.clip_norm is None or servers < 2 or chosen.terms.clips != "each update":
        return ""
    return (
        f"the servers of {chosen.name} clip each update together, and would wait for ever for one that lacks a lost "
        f"worker's gradient: use {option('servers', 1)}, omit clip_norm, or use a strategy that clips each gradient, "
        "such as ssp or asynchronous"
    )

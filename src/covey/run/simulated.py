"""Virtual time: all roles in this process, on an agenda."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from torch import nn

from covey import faults
from covey.data.stripe_cache.virtual_reads import VirtualReads
from covey.engines.process.role.saving import restore
from covey.engines.virtual import engine
from covey.engines.virtual.auto_workers import AutoWorkers
from covey.engines.virtual.group_sums import LARGE
from covey.engines.virtual.progress_watch import ProgressWatch
from covey.engines.virtual.run_faults import VirtualAttempt, killing
from covey.engines.virtual.stall import ROLE, blame
from covey.engines.virtual.virtual_membership import Replacement
from covey.engines.worker_scaling import ScaledSeats, WorkerScaling
from covey.errors import CheckpointError, CoveyError, PlanError, RoleFailed
from covey.message import Address
from covey.model import build
from covey.model.private.spent import seeded
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.model.threads import one_thread
from covey.model.timed.far_data import reading, virtual_reads
from covey.model.timed.stand_in import TimedModel, in_one, stand_in
from covey.names import option
from covey.observe.recording import Recorder, joined
from covey.observe.referee import Referee
from covey.observe.result import Result, conclude
from covey.run.best_model import BestModel
from covey.run.checks import check_seats
from covey.run.kept import after, check_layout, keep_own_settings, recalled, same_stages
from covey.run.option_parts import deaths_survived, plan_of, trace_of
from covey.run.processes import checkpoints_of, kept_run, newest, run_record
from covey.run.request import Request, facts
from covey.run.saving import Place, save_model
from covey.run.virtual_restarts import VirtualRestarts
from covey.simulate import Cluster
from covey.strategy import Plan, Role

P = ParamSpec("P")
T = TypeVar("T")
SHOWN = 12  # roles that a line names


def simulated(asked: Request, built: Callable[[Mapping[Address, Replica]], None] = lambda replicas: None) -> Result:
    """All roles in this process, on an agenda; seconds are virtual. What goes wrong is planned, and may be survived.

    `built` is shown the replicas of each attempt.
    """
    given = asked.options
    names = {role.address: str(role.address) for role in asked.plan.roles}
    plan = plan_of(given.fault_plan)
    plan.check(list(names.values()), [names[role.address] for role in asked.plan.roles if role.trains])
    check_seats(plan, asked.plan)
    _check_hosts(given.virtual.cluster or Cluster(), list(names.values()), given.output.say)
    full = next((fault for fault in plan.faults if fault.kind == "disk full"), None)
    if full and given.checkpoints.checkpoint is None:
        raise PlanError(
            f"'{full}': this run writes no checkpoint, so a full disk changes nothing: add "
            f"{option('checkpoint', 'DIR')}"
        )
    if given.checkpoints.every == "auto":
        raise PlanError(
            f"{option('every', 'auto')} measures how long a real disk takes; in virtual time give one, such as 5s"
        )
    here = run_record(asked)
    kept, run = newest(given.checkpoints) if asked.morphed else kept_run(given.checkpoints, here, rigid=True)
    here = after(run, here)
    if run and not asked.morphed:
        check_layout(run, here, asked.strategy.in_step)
    if run and not asked.morphed and not same_stages(run.strategy, asked.strategy.text):
        raise CheckpointError(f"{kept} has another mesh: in virtual time a run goes on with the one that it had")
    checkpoints = checkpoints_of(given.checkpoints, asked.kept)
    with checkpoints or nullcontext(), one_thread(), failing():
        best = BestModel.of(given)
        reads = _reads(asked)

        def train(attempt: VirtualAttempt, judge: Referee) -> Result:
            attempt.reads = reads
            return _train(asked, attempt, judge, built, best)

        attempts = VirtualRestarts(asked, here, plan, checkpoints, train)
        result = attempts.run(kept, run)
    result.keep_origins(here.origins)
    world, trace = given.virtual.cluster, trace_of(given.fault_plan)
    if world and (world.price or world.spot_price):
        absent = {int(name.rpartition(" ")[2]) for name in plan.absent}
        there = trace.seconds_present(result.seconds) if trace else {}
        result.tell_cost(world.prices(there), absent, there)
    return result


def _check_hosts(cluster: Cluster, roles: Sequence[str], say: Callable[[str], None]) -> None:
    """Refuse to kill a role that is not there, and say which links of the cluster belong to none."""
    killing(cluster.kills).check(roles, roles)
    if strange := cluster.strangers(roles):
        shown = ", ".join(roles) if len(roles) <= SHOWN else f"{len(roles)} roles, {roles[0]} to {roles[-1]}"
        say(f"the cluster describes {', '.join(strange)}, which this run does not have: it has {shown}")


def _restore(asked: Request, attempt: VirtualAttempt, replicas: Mapping[Address, Replica]) -> None:
    """Take over what a checkpoint keeps, if there is one; of another layout by the names of tensors."""
    if attempt.before:
        attempt.states = {
            role.address: recalled(
                attempt.place, role, replicas[role.address], attempt.before, asked.strategy.text
            ) for role in asked.plan.roles
        }  # fmt: skip
    for who, state in attempt.states.items():
        if asked.own_settings:
            keep_own_settings(state, replicas[who])
        restore(replicas[who], state.replica)


def _renewing(make: Callable[[Role], Replica], replicas: dict[Address, Replica]) -> Callable[[Role], Replica]:
    """Makes the replicas of new incarnations, and lets whoever watches the run see them."""

    def renewed(role: Role) -> Replica:
        replicas[role.address] = make(role)
        return replicas[role.address]

    return renewed


def _train(
    asked: Request, attempt: VirtualAttempt, judge: Referee, built: Callable[[Mapping[Address, Replica]], None],
    best: BestModel,
) -> Result:  # fmt: skip
    """One attempt."""
    given = asked.options
    asked = replace(asked, task=seeded(asked.task, given.training.seed))
    score, make, replicas = None, _maker(asked), dict[Address, Replica]()
    make = _reading(asked, make) if attempt.reads else make
    if not given.virtual.timing_only:
        module = build.model(asked.task, given.training.seed)
        score = ScoredModel(module, asked.task.evaluate, asked.task.ema is not None)
        best.watch(judge, partial(best.chosen, score))
    for role in asked.plan.roles:
        replicas[role.address] = make(role)
    if score:
        _refuse_shared([score.module, *(replica.module for replica in replicas.values())])
    _restore(asked, attempt, replicas)
    if asked.plan.elastic:
        most, least = deaths_survived(given.checkpoints), asked.plan.least
        attempt.replacement = Replacement(_renewing(make, replicas), most, given.output.say, attempt.log, least)
    if asked.auto:
        attempt.auto = AutoWorkers(ScaledSeats(WorkerScaling(len(asked.plan.limits), asked.task.step_size)))
    built(replicas)
    watcher = given.output.watcher
    watching = [ProgressWatch(watcher, judge, asked.budget, attempt.tallies)] if watcher else []
    scoring = _of("scorer 0", score.score) if score and asked.task.evaluate and given.budget.scores else None
    recorders = [Recorder()] if given.output.traced else []
    instruments = [*given.virtual.instruments, *watching, *recorders, *([attempt.auto] if attempt.auto else [])]
    # what is only timed has no numbers to add up: the sums of large groups may be charged by their formula
    outcome = engine(
        asked.plan, dict(replicas), given.virtual.cluster or Cluster(), instruments, judge, scoring,
        formulas_from=LARGE if _by_formula(asked) else None,
        attempt=attempt,
    ).run()  # fmt: skip
    for shown in watching:
        shown.conclude(outcome.seconds)
    result = conclude(
        facts(asked, "simulated"), judge, outcome.tallies.values(), seconds=outcome.seconds, stopped=outcome.stopped
    )
    for recorder in recorders:
        everybody = [role.address for role in asked.plan.roles]
        result.keep_recording(joined([recorder.lane], everybody, result.strategy, "simulated"))
    if score:
        score.assemble(outcome.snapshots)
        best.tell(result)
        _keep_models(result, score, given.output.save)
    else:
        result.tell_untrained()
    return result


def _refuse_shared(models: Sequence[nn.Module]) -> None:
    """Refuse a task whose function gives the same model to several roles, which would all train it."""
    parameters = [id(parameter) for model in models for parameter in model.parameters()]
    if len({*parameters}) < len(parameters):
        raise PlanError(
            "Task: model() returned the same model, or parts of it, twice, and each role needs its own: make it inside "
            "the function, as model=lambda: Net(), or return a copy, as model=lambda: copy.deepcopy(net)"
        )


def _keep_models(result: Result, score: ScoredModel, to: Place) -> None:
    """Let the result have the scored model and its average, and save them if that was asked for."""
    result.keep_weights(score.state())
    if score.averaged:
        result.keep_ema(score.averaged.state())
    if unsaved := save_model(result, to):
        raise unsaved


def _by_formula(asked: Request) -> bool:
    """Whether sums may be charged as a whole: where only time counts, and nobody is lost in the middle of one."""
    given = asked.options
    return given.virtual.timing_only and not given.training.link_rate and not asked.plan.elastic


@contextmanager
def failing() -> Iterator[None]:
    """What a role's code raises is reported as on any engine: the role, then its own traceback, once."""
    try:
        yield
    except (CoveyError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        who = getattr(error, ROLE, "the run")
        raise RoleFailed(f"{who} failed: {faults.words(error)}\n\n{faults.story(error)}".rstrip()) from None


def _of(who: str, function: Callable[P, T]) -> Callable[P, T]:
    """The function, which blames this role for what it raises."""

    def blaming(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            blame(error, who, 0.0)
            raise

    return blaming


def _reads(asked: Request) -> VirtualReads | None:
    """What counts and times the reading of samples, where the cluster has a backend."""
    world = asked.options.virtual.cluster
    if world is None or world.backend is None:
        return None
    if any(role.part for role in asked.plan.roles):
        raise PlanError("[backend] and a model that is cut: the time of reading is not known there: omit [backend]")
    return virtual_reads(world.backend, asked.task, asked.deal)


def _reading(asked: Request, make: Callable[[Role], Replica]) -> Callable[[Role], Replica]:
    """Makes replicas, of which those of preparers, or without them those of workers, say what they read."""

    def made(role: Role) -> Replica:
        reads = role.address.role == "preparer" if asked.task.preparers else role.trains
        return reading(make(role), asked.deal) if reads else make(role)

    return made


def _maker(asked: Request) -> Callable[[Role], Replica]:
    """What makes the replica of a role, in each of its incarnations."""

    def build_replica(role: Role) -> Replica:
        return _of(str(role.address), build.replica)(
            asked.task, role.address, role.trains, asked.deal, asked.budget, role.part
        )

    if not asked.options.virtual.timing_only:
        return build_replica
    if asked.strategy.composition.mesh:
        from covey.parallelism.plan.mesh import Mesh
        from covey.parallelism.timed.timed_mesh import TimedMesh  # tracing models takes long to import

        mesh = asked.strategy.composition.mesh
        assert isinstance(mesh, Mesh)
        return TimedMesh(
            mesh, asked.plan.roles, asked.deal, [limit or 0 for limit in asked.plan.limits[:: mesh.members]],
            build=build_replica, drive=_drive, clips=asked.task.clip_norm is not None,
            plain=asked.strategy.composition.codec.traits.plain,
        ).part  # fmt: skip
    shapes = build.shapes(asked.task)
    shapes = in_one(shapes) if asked.strategy.composition.codec.traits.plain else shapes
    data = build.timed_data(asked.task, asked.deal)
    shared = TimedModel(shapes)  # by the workers: others may have an optimizer with settings of their own
    return lambda role: stand_in(
        shared if role.trains else TimedModel(shapes), role.address, role.trains, asked.deal, data
    )  # fmt: skip


def _drive(plan: Plan, replicas: Mapping[Address, Replica]) -> None:
    """Perform a plan, of which only what its roles do counts."""
    engine(plan, dict(replicas), Cluster(), [], Referee(1)).run()

"""Where is a model cut? Decided once, by the launcher, and written into the SPEC, so that every role cuts alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from covey import catalog
from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.model import build
from covey.parallelism.chain import Chain, chain_of
from covey.parallelism.ends import inputs_of, loss_of
from covey.parallelism.pipeline.stage_roles import check_split, checked, micro_samples
from covey.parallelism.plan.cut import best_cut, equal_cut
from covey.parallelism.plan.measure import measure, optimizer_state, time_whole
from covey.parallelism.plan.mesh import BEST, EQUAL, Mesh
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.terms import Cut, CutTerms, memories
from covey.parallelism.tensor.split_plan import SplitPlan
from covey.parallelism.tensor.tensor_roles import split_plan
from covey.run.kept import mesh_of
from covey.simulate.units import format_bytes, parse_size
from covey.spec import Spec, parse_call
from covey.strategy import Strategy
from covey.task import Task
from covey.task.data import check_data


def settled(
    spec: Spec, strategy: Strategy, task: Task, workers: int, deal: Shards, *,
    counted: bool, bandwidth: float, before: str = "",
) -> tuple[Spec, Strategy]:  # fmt: skip
    """The strategy with its mesh's cut and loads said; `counted` for runs that must not depend on this machine.

    A run that goes on keeps the cut that it had `before`, unless another was asked for.
    """
    mesh = strategy.composition.mesh
    if isinstance(mesh, Mesh) and before:
        mesh = _as_before(mesh, mesh_of(before))
    if not isinstance(mesh, Mesh):
        return spec, strategy
    if not mesh.cut_in_layers:
        if mesh.tensors > 1:
            split_plan(mesh, task, build.model(task, deal.seed), deal)  # every role finds it again
        return spec, strategy
    repeat = 0 if counted or mesh.load else 3  # who says what its parts cost need not measure it
    chain, profile = profiled(
        task, mesh.schedule, repeat=repeat, seed=deal.seed, tied=mesh.tied, state=bool(mesh.memory)
    )
    cut = _cut(chain, profile, mesh, bandwidth)
    stages = checked(chain.stages(cut.after, mesh.tied), mesh)
    if mesh.tensors > 1:
        check_split(mesh, task, chain, stages, deal)
    whole = sum(profile.compute(*part) for part in cut.parts(len(profile))) or 1.0
    shares = [100 * profile.compute(*part) / whole for part in cut.parts(len(profile))]
    load = mesh.load or ":".join(f"{max(share, 0.1):.1f}" for share in shares)
    said = replace(mesh, cut=":".join(map(str, cut.after)) or BEST, load=load)
    if len(said.loads) != mesh.parts or min(said.loads) <= 0:
        raise PlanError(f"load={load}: say the share of each of {mesh.parts} parts, such as {_alike(mesh.parts)}")
    if said == strategy.composition.mesh:
        return spec, strategy
    spec = replace(spec, mesh=parse_call(str(said)))
    return spec, catalog.resolve(spec, workers)


def _alike(parts: int) -> str:
    return ":".join([f"{100 / parts:.0f}"] * parts)


def _as_before(mesh: Mesh, old: Mesh) -> Mesh:
    same = replace(old, cut=mesh.cut, load=mesh.load) == mesh and mesh.cut in (BEST, old.cut) and not mesh.load
    return replace(mesh, cut=old.cut, load=old.load) if same else mesh


def profiled(
    task: Task, schedule: Schedule, *,
    repeat: int = 5, seed: int = 0, after: Sequence[str] = (), tied: str = "refuse", state: bool = True,
    told: Callable[[str], None] = lambda line: None,
) -> tuple[Chain, Profile]:  # fmt: skip
    """The layers of the task's model, and what they cost for a (micro-)batch; `state`: the optimizer's memory too."""
    if schedule.divides and schedule.microbatches > task.batch_size:
        raise PlanError(
            f"a batch of {task.batch_size} cannot be cut into {schedule.microbatches} micro-batches: use fewer, "
            f"such as {min(4, task.batch_size)}"
        )
    whole = whole_batch(task)
    parts = min(schedule.microbatches, whole) if schedule.divides else 1
    kept = optimizer_state(task.optimizer, build.model(task, seed)) if state else 0.0
    model = build.model(task, seed)
    seen = _samples(task, micro_samples(task.batch_size, whole, schedule), seed)
    chain = chain_of(model, inputs_of(task, model, seen), after)
    samples = -(-whole // parts)
    batch = _samples(task, samples, seed)
    told(f"measuring {len(chain.layers)} layers on {samples} sample{'s' * (samples > 1)}")
    try:
        inputs, loss = inputs_of(task, model, batch), partial(loss_of, task, batch)
        found = measure(chain, inputs, loss, repeat=repeat, state=kept, tied=tied)
    except (ValueError, RuntimeError) as error:
        if samples > 1:
            raise
        raise PlanError(
            f"a batch of {whole} in {parts} micro-batches has one sample in each, which the model refuses ({error}): "
            f"use {max(1, whole // 2)} micro-batches or fewer"
        ) from None
    fill = whole / (parts * samples)
    return chain, replace(found.scaled(fill), fill=fill)


def whole_batch(task: Task) -> int:
    """Samples of a batch."""
    return min(task.batch_size, check_data(build.data_of(task)))


def time_alone(task: Task, chain: Chain, seed: int = 0) -> float:
    """Seconds in which one machine computes the task's batch, whole, with the uncut model."""
    batch = _samples(task, whole_batch(task), seed)
    return sum(time_whole(chain, inputs_of(task, chain.model, batch), partial(loss_of, task, batch)))


def _samples(task: Task, count: int, seed: int) -> Any:
    """The first samples, as one worker with all data would have them."""
    data = build.data_of(task)
    feed = Feed(data, Shards(check_data(data), 1, count, seed), 0, task.loading, device=build.device(task, 0))
    return feed.take(torch.arange(count))


def divided(task: Task, members: int, split: str, seed: int = 0) -> tuple[Mesh, nn.Module, SplitPlan]:
    """The mesh that divides the layers of the task's model among so many workers, the model, and how it is divided."""
    mesh, model = Mesh(tensor=members, split="" if split == BEST else split), build.model(task, seed)
    deal = Shards(check_data(build.data_of(task)), 1, task.batch_size, seed)
    return mesh, model, split_plan(mesh.fitted(members), task, model, deal)


def _cut(chain: Chain, profile: Profile, mesh: Mesh, bandwidth: float) -> Cut:
    limit = parse_size(mesh.memory) if mesh.memory else math.inf
    if mesh.cut == BEST:
        terms = CutTerms(stages=mesh.stages, schedule=mesh.schedule, bandwidth=bandwidth, memory=limit, trains=True)
        return best_cut(profile, terms)
    if mesh.cut == EQUAL:
        cut = equal_cut(profile, mesh.parts)
    else:
        cut = Cut(tuple(_layer(chain, border) for border in mesh.borders), (1,) * mesh.parts)
        if len(cut.after) != mesh.parts - 1:
            raise PlanError(f"cut={mesh.cut}: {mesh.parts} parts have {mesh.parts - 1} cuts, not {len(cut.after)}")
        chain.stages(cut.after, mesh.tied)
    largest = max(memories(profile, cut, mesh.schedule))
    if largest > limit:
        raise PlanError(
            f"with cut={mesh.cut} the largest stage needs {format_bytes(largest)}, more than {mesh.memory}: omit cut "
            "for the best one, or see what `covey cut` says"
        )
    return cut


def _layer(chain: Chain, border: str) -> int:
    """The number of the last layer of that name, or inside the module of that name."""
    if border.isdigit():
        return int(border)
    found = [
        number for number, layer in enumerate(chain.layers)
        if layer.name == border or layer.name.startswith(f"{border}.")
    ]  # fmt: skip
    if not found:
        raise PlanError(f"cut={border}: the layers are {', '.join(layer.name for layer in chain.layers)}")
    return found[-1]

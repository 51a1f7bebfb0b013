"""How does a run with other workers, servers or another strategy go on from a checkpoint? By name, and it says how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from covey import catalog
from covey.checkpoint import RoleState, RunRecord
from covey.data.shards import Shards
from covey.decoding import UNREADABLE, brief
from covey.errors import CheckpointError, PlanError
from covey.message import Address
from covey.model.batches import BatchSource
from covey.model.inherited import InheritedModel, inherited
from covey.model.replica import Replica
from covey.strategy import Plan, Strategy

PLAN = ("strategy", "workers", "servers", "replicas")


def changed(run: RunRecord, here: RunRecord) -> list[str]:
    """How the plan of this run differs from the kept one's, in words."""
    pairs = [(name, getattr(run, name), getattr(here, name)) for name in PLAN]
    return [f"{name} {now!r}, not {past!r}" for name, past, now in pairs if past != now]


def kept_roles(place: Path, run: RunRecord) -> dict[Address, RoleState]:
    """What every role kept."""
    names = sorted(name.removesuffix(".json") for name in run.files if name.endswith(".json"))
    addresses = [Address(role, int(rank)) for role, _, rank in (name.rpartition("-") for name in names)]
    return {who: RoleState.read(place, who) for who in sorted(addresses, key=lambda who: (who.role, who.rank))}


def scored_by(run: RunRecord, place: Path) -> list[Address]:
    """The roles whose models made the kept run's model."""
    try:
        past = catalog.resolve(catalog.chosen(run.strategy, run.workers), run.workers)
        roles = past.layout(run.workers, run.servers if past.servers.count else None)
    except PlanError as error:
        raise CheckpointError(f"{place} is of {run.strategy!r}, which cannot be read here: {error}") from None
    if any(role.part for role in roles):
        raise CheckpointError(f"{place} is of {run.strategy!r}, whose workers hold parts of the model: {SAME}")
    return [role.address for role in roles if role.scored]


SAME = "go on with the same strategy, workers and servers"


def check_parts(strategy: Strategy, plan: Plan) -> None:
    """Refuse to give a whole model to roles that hold parts of one."""
    if any(role.part for role in plan.roles):
        raise CheckpointError(f"the workers of {strategy.text!r} hold parts of the model: {SAME}")


@dataclass(frozen=True, slots=True)
class ChangedPlan:
    """How a run goes on from the checkpoint of one with other roles."""

    scored: list[Address]
    skipped: list[int]  # of each worker, steps that count as done
    lines: list[str]

    @staticmethod
    def of(place: Path, run: RunRecord, here: RunRecord, deal: Shards, limits: Sequence[int | None]) -> ChangedPlan:
        scored = scored_by(run, place)
        with readable(place):
            kept, seen = kept_roles(place, run), samples_of(run)
            model = inherited(kept, scored)
        skipped = [position(deal, rank, seen, limit) for rank, limit in enumerate(limits)]
        head = f"this run has {', '.join(changed(run, here))}: it goes on from the checkpoint's model"
        steps = ", ".join(map(str, sorted(set(skipped))))
        lines = [f"{head} and optimizer state, by name", *averaged(model, scored), *dropped(kept)]
        lines.append(f"positions: after {seen} samples each worker goes on at its step {steps}")
        return ChangedPlan(scored, skipped, lines)


def samples_of(run: RunRecord) -> int:
    """How many samples the kept run had seen."""
    return sum(each.get("samples", 0) for each in run.progress.get("tallies", []))


def position(deal: Shards, rank: int, seen: int, limit: int | None) -> int:
    """The step at which a worker would stand had all workers together seen this many samples."""
    epochs, rest = divmod(seen, deal.samples)
    step = epochs * deal.steps(rank) + rest * deal.steps(rank) // deal.samples
    return step if limit is None else min(step, limit)


def averaged(model: InheritedModel, scored: Sequence[Address]) -> list[str]:
    if not model.averaged:
        return []
    return [f"averaged over {_listed(sorted({str(who) for who in scored}))}: {', '.join(sorted(model.averaged))}"]


def dropped(kept: dict[Address, RoleState]) -> list[str]:
    """What fits no other plan: residuals, clocks, velocities, unread messages."""
    names: dict[str, list[str]] = {}
    for who, state in kept.items():
        for name in state.memories:
            names.setdefault(f"{who.role}s' {name!r}", []).append(str(who))
    messages = sum(len(state.mailbox) for state in kept.values())
    found = [*sorted(names), *([f"{messages} unread messages"] if messages else [])]
    return [f"dropped: {', '.join(found)}"] if found else []


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def take_over(place: Path, run: RunRecord, scored: Sequence[Address], replica: Replica) -> None:
    """Let a role's replica go on from the model of that run."""
    with readable(place):
        inherited(kept_roles(place, run), scored).restore(replica, samples_of(run))


@contextmanager
def readable(place: Path) -> Iterator[None]:
    """Refuse a checkpoint whose content, put together by name, is no model."""
    try:
        yield
    except (*UNREADABLE, AssertionError) as error:
        raise CheckpointError(
            f"what {place} keeps of the model cannot be put together ({brief(error)}): {SAME}, or start anew"
        ) from None


def later(source: BatchSource, rank: int, skipped: Sequence[int]) -> BatchSource:
    """The same batches, from where this many steps of each worker are done."""
    own, chosen, samples, begin = source.own, source.chosen, source.samples, source.begin
    mine = skipped[rank] if rank < len(skipped) else 0
    return replace(
        source,
        own=(lambda step: own(step + mine)) if own else None,
        chosen=(lambda r, step, part, parts: chosen(r, step + skipped[r], part, parts)) if chosen else None,
        samples=lambda r, step: samples(r, step + skipped[r]),
        begin=lambda step: begin(step + mine),
    )

"""What holds after every run with faults, whatever the strategy. Each invariant gives the reasons why it is broken."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.check.fault_log import FaultLog, total
from covey.data.shards import Shards
from covey.observe.result import Result
from covey.registry import STRATEGIES
from covey.run.request import Request
from covey.simulate.faults import OF_SEATS, Fault, FaultPlan
from covey.strategy import FaultTrait

CLOSE = 1e-12  # how far float64 weights may lie apart where sums may have another order
ALL_LOST = "was lost, and no other worker had the model"
LOST_WITH_A_WORKER: tuple[FaultTrait, ...] = ("optimizers of their own", "models of their own")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A run with faults that is over: what came of it, or why it ended."""

    asked: Request
    plan: FaultPlan
    log: FaultLog
    watched: bool  # its batches were written down
    result: Result | None = None
    why: str = ""  # it did not end as it should


def declares(asked: Request, trait: FaultTrait) -> bool:
    """Whether the strategy's entry says so."""
    entry = STRATEGIES.get(asked.strategy.name)
    return entry is not None and trait in entry.fault_traits


def ends(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """Whatever is lost, the run goes on or starts again, unless nobody has the model any more, and nothing is kept."""
    killed = any(fault.kind == "kill" for fault in record.plan.faults)
    if record.asked.plan.least and killed and ALL_LOST in record.why:
        return []
    return [record.why] if record.result is None else []


def samples_count_once(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """Every sample is accepted as often as there were epochs, where the strategy declares so."""
    asked = record.asked
    declared = asked.strategy.description.samples.startswith("every sample once per epoch")
    if not declared or record.result is None or calm.result is None:
        return []
    if asked.plan.elastic:  # what the lost one had done is done again, and its result says what counts
        same = record.result.samples == calm.result.samples
        return [] if same else [f"{record.result.samples} samples count, not {calm.result.samples}"]
    if not record.watched:
        return []
    seen = Counter(index for batch, _ in record.log.work.batches for index in batch)
    wanted = Counter(index for batch, _ in calm.log.work.batches for index in batch)
    wrong = {index for index in seen.keys() | wanted.keys() if seen[index] != wanted[index]}
    first = min(wrong, default=0)
    told = f"sample {first} was accepted {seen[first]} times, not {wanted[first]}; {len(wrong)} samples are wrong"
    return [told] if wrong else []


def replicas_are_equal(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """Where all workers take a step together at equal weights, all of them compute it at the same weights."""
    asked = record.asked
    trainers = [role for role in asked.plan.roles if role.trains]
    alike = not declares(asked, "compressed models") and not asked.strategy.composition.mesh
    if not record.watched or not alike or not all(role.one_batch for role in trainers) or asked.plan.least:
        return []
    steps = _steps(asked.deal, max(limit or 0 for limit in asked.plan.limits))
    differing = [step for step, found in _digests(record, steps).items() if len(found) > 1]
    return [f"from step {min(differing)} on workers have different weights"] if differing else []


def _digests(record: FaultRecord, steps: dict[tuple[int, ...], int]) -> dict[int, set[bytes]]:
    """The weights at which each step was computed."""
    digests: defaultdict[int, set[bytes]] = defaultdict(set)
    for batch, digest in record.log.work.batches:
        if batch in steps:
            digests[steps[batch]].add(digest)
    return digests


def weights_are_those_without_faults(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """Where workers wait for one another, faults change when things happen, and nothing else."""
    declared = record.asked.strategy.description.samples.startswith("every sample once per epoch")
    if not record.asked.strategy.in_step or not declared or calm.result is None or record.result is None:
        return []
    if record.asked.plan.elastic and any(declares(record.asked, trait) for trait in LOST_WITH_A_WORKER):
        return []
    fewer = (*OF_SEATS, "kill") if record.asked.plan.least else OF_SEATS
    if any(fault.kind in fewer for fault in record.plan.faults):  # fewer workers make smaller global batches
        return []
    if record.result.notes.get("lost optimizer states"):
        return []
    exact = declares(record.asked, "same bits")
    for name, there in calm.result.weights.items():
        here = record.result.weights[name]
        if not (torch.equal(here, there) if exact else _close(here, there)):
            gap = (here - there).abs().max().item()
            return [f"{name} ends up to {gap:.3g} away from the run without faults"]
    return []


def no_message_counts_twice(calm: FaultRecord, record: FaultRecord) -> list[str]:
    if record.asked.plan.elastic:  # lent numbers of a broken round may change on their way, and are dropped
        return []
    return [f"{message} was delivered more often than it was sent" for message in record.log.doubled()]


def faults_on_links_are_noticed(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """No run goes on after a message was lost, and a doubled one is refused by name."""
    if record.result is None:
        return []
    told, restarted = record.result.failures, bool(record.log.restarts)
    lost = [line for line in told if line.startswith("drop") and ": it lost" in line and not line.endswith("as lossy")]
    found = [f"{line}, and nobody noticed" for line in lost if not restarted]
    doubled = [fault for fault in record.plan.faults if fault.kind == "duplicate" and not _unmet(fault, told)]
    if doubled and not restarted and not any("refused a second time" in line for line in told):
        found.append(f"{doubled[0]}: nobody noticed")
    return found


def _unmet(fault: Fault, told: list[str]) -> bool:
    return any(line.startswith(f"{fault}: the run ended before it") for line in told)


def forces_balance(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """Elastic forces cancel: all models together have moved as far as their optimizers moved them."""
    log, declared = record.log, declares(record.asked, "forces cancel")
    if not record.watched or not declared or log.initial is None or record.result is None:
        return []
    if record.asked.plan.elastic:  # a lost worker takes its part of the sum along
        return []
    gap = total(log.replicas) - log.initial - log.work.moved
    scale = max(1.0, abs(log.initial))
    return [f"elastic forces do not cancel: {gap:.3g} is left"] if abs(gap) > 1e-9 * scale else []


def weight_is_whole(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """No gossip weight is lost or doubled: only a worker that is lost takes its own along."""
    declared = declares(record.asked, "weights sum to 1")
    if not declared or record.result is None or (record.asked.plan.elastic and _lost_workers(record.result)):
        return []
    workers = [replica for who, replica in record.log.replicas.items() if who.role == "worker"]
    whole = 1 - len(record.plan.absent) / len(workers)  # who is not there at the beginning has none
    have = sum(replica.shown.weight for replica in workers)
    kept = math.isclose(have, whole, rel_tol=CLOSE)
    return [] if kept else [f"all workers have weight {have:.12g}, not {whole:.12g}"]


def _lost_workers(result: Result) -> bool:
    """Whether anybody died or left in a run that went on."""
    return isinstance(result.membership, list) and any(event.event != "join" for event in result.membership)


INVARIANTS: tuple[Callable[[FaultRecord, FaultRecord], list[str]], ...] = (
    ends, samples_count_once, replicas_are_equal, weights_are_those_without_faults, no_message_counts_twice,
    faults_on_links_are_noticed, forces_balance, weight_is_whole,
)  # fmt: skip


def broken(calm: FaultRecord, record: FaultRecord) -> list[str]:
    """All that does not hold of a run, beside the same run without faults."""
    return [why for holds in INVARIANTS for why in holds(calm, record)]


def _steps(deal: Shards, steps: int) -> dict[tuple[int, ...], int]:
    return {
        tuple(deal.indices(rank, step).tolist()): step for rank in range(deal.workers) for step in range(steps)
    }  # fmt: skip


def _close(here: Tensor, there: Tensor) -> bool:
    return torch.allclose(here, there, rtol=CLOSE, atol=CLOSE)

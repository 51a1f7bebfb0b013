"""Kept values are right, not only kept: what the papers' formulas come to, in plain loops, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from covey.central.server.shard import Params, Push
from covey.data.shards import Shards
from covey.message import Address, Message
from covey.model import build
from covey.observe.instruments import Instrument
from covey.topology import build as graph_of
from tests.behaviour.situations import UNEVEN, fitted, situations
from tests.worlds import run

TASK, WORKERS, RATE = situations()["uneven"].task, 3, 0.3


class ByHand:
    """The batches that workers see, and gradients at any weights."""

    def __init__(self, workers: int = WORKERS) -> None:
        self.deal = Shards(37, workers, 4)
        self.module = build.model(TASK, 0)
        self.start = parameters_to_vector(self.module.parameters()).detach().clone()
        self.ranks = range(workers)
        self.steps = [3 * self.deal.steps(rank) for rank in self.ranks]

    def present(self, step: int) -> list[int]:
        return [rank for rank in self.ranks if step < self.steps[rank]]

    def size(self, rank: int, step: int) -> int:
        return len(self.deal.indices(rank, step))

    def gradient(self, w: Tensor, rank: int, step: int) -> Tensor:
        vector_to_parameters(w, self.module.parameters())
        self.module.zero_grad()
        x, y = (column[self.deal.indices(rank, step)] for column in TASK.data)  # type: ignore[union-attr]
        torch.nn.functional.cross_entropy(self.module(x), y).backward()
        return parameters_to_vector([p.grad for p in self.module.parameters()]).clone()

    def mean_gradient(self, w: Tensor, step: int) -> Tensor:
        """Over all samples of a step."""
        there = self.present(step)
        sizes = [self.size(rank, step) for rank in there]
        return sum(n * self.gradient(w, r, step) for r, n in zip(there, sizes, strict=True)) / sum(sizes)  # type: ignore[return-value]


def mean(models: list[Tensor]) -> Tensor:
    return torch.stack(models).mean(0)


def together(hand: ByHand, delay: int = 0) -> Tensor:
    """All in step, on gradients of weights that are `delay` updates old."""
    past = [hand.start]
    for step in range(max(hand.steps)):
        past.append(past[-1] - RATE * hand.mean_gradient(past[max(0, step - delay)], step))
    return past[-1]


def alone_then_averaged(hand: ByHand, period: int, after: int = 0) -> Tensor:
    """Local SGD; before step `after` all step together."""
    models = [hand.start.clone() for _ in hand.ranks]
    for step in range(max(hand.steps)):
        there = hand.present(step)
        if step < after:
            common = models[0] - RATE * hand.mean_gradient(models[0], step)
            models = [common if rank in there else model for rank, model in enumerate(models)]
            continue
        for rank in there:
            models[rank] = models[rank] - RATE * hand.gradient(models[rank], rank, step)
        if (step - after + 1) % period == 0:
            common = mean([models[rank] for rank in there])
            for rank in there:
                models[rank] = common
    return mean(models)


def by_barrier(hand: ByHand) -> Tensor:
    """MALT: the average of all gradients that are there; who ends early keeps its model."""
    models = [hand.start for _ in hand.ranks]
    for step in range(max(hand.steps)):
        there = hand.present(step)
        common = models[0] - RATE * mean([hand.gradient(models[0], rank, step) for rank in there])
        models = [common if rank in there else model for rank, model in enumerate(models)]
    return mean(models)


def blocks(
    hand: ByHand, outer: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], period: int
) -> Tensor:
    """Blocks of steps alone; `outer` makes of model, momentum and mean change the next, and its start."""
    model, start, momentum = hand.start, hand.start, torch.zeros_like(hand.start)
    for first in range(0, max(hand.steps), period):
        ends = {}
        for rank in hand.present(first):
            w = start
            for step in range(first, min(first + period, hand.steps[rank])):
                w = w - RATE * hand.gradient(w, rank, step)
            if min(first + period, max(hand.steps)) <= hand.steps[rank]:  # who ends within a block just leaves
                ends[rank] = w
        model, momentum, start = outer(model, momentum, mean(list(ends.values())) - start)
    return model


def bmuf(m: float, z: float, nesterov: bool) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def outer(model: Tensor, momentum: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        momentum = m * momentum + z * change
        model = model + momentum
        return model, momentum, model + m * momentum if nesterov else model

    return outer


def diloco(rate: float, m: float) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def outer(model: Tensor, momentum: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        momentum = m * momentum - change
        model = model - rate * (-change + m * momentum)
        return model, momentum, model

    return outer


def dpsgd(hand: ByHand, graph: str) -> Tensor:
    weights, models = graph_of(graph, {}, len(hand.ranks)), [hand.start.clone() for _ in hand.ranks]
    for step in range(max(hand.steps)):
        there = hand.present(step)
        new = list(models)
        for rank in there:
            away = sum(weights.weight(rank, peer) for peer in hand.ranks if peer not in there and peer != rank)
            mixed = (weights.weight(rank, rank) + away) * models[rank]
            mixed = mixed + sum(weights.weight(rank, peer) * models[peer] for peer in there if peer != rank)
            new[rank] = mixed - RATE * hand.gradient(models[rank], rank, step)
        models = new
    return mean(models)


def butterfly(hand: ByHand) -> Tensor:
    """Zhao & Canny 2013: in step t with the partner at distance 2^(t mod log2 n), after one's own step."""
    models = [hand.start.clone() for _ in hand.ranks]
    for step in range(max(hand.steps)):
        there = hand.present(step)
        for rank in there:
            models[rank] = models[rank] - RATE * hand.gradient(models[rank], rank, step)
        hop = 1 << (step % (len(hand.ranks).bit_length() - 1))
        models = [mean([model, models[rank ^ hop]]) if {rank, rank ^ hop} <= set(there) else model
                  for rank, model in enumerate(models)]  # fmt: skip
    return mean(models)


def elastic(hand: ByHand, period: int, pull: float, momentum: float = 0.0, in_turn: bool = False) -> Tensor:
    """Zhang et al. 2015, all at once or each with a fresh centre; the centre is scored."""
    centre, models = hand.start.clone(), [hand.start.clone() for _ in hand.ranks]
    speeds = [torch.zeros_like(centre) for _ in hand.ranks]
    for step in range(max(hand.steps)):
        forces, common = {}, centre.clone()
        for rank in hand.present(step) if step % period == 0 else ():
            forces[rank] = pull * (models[rank] - (centre if in_turn else common))
            centre = centre + forces[rank]
        for rank in hand.present(step):
            speeds[rank] = momentum * speeds[rank]
            ahead = models[rank] + speeds[rank]
            moved = -RATE * (1 - momentum) * hand.gradient(ahead, rank, step)
            speeds[rank] = speeds[rank] + moved
            models[rank] = ahead + moved - forces.get(rank, 0.0)
    return centre


BY_HAND: Mapping[str, tuple[int, Callable[[ByHand], Tensor]]] = {
    **dict.fromkeys(
        ("bsp", "allreduce", "allreduce(pattern=bruck, bucket=100)", "sliced", "caffeonspark", "firecaffe",
         "p3(slice=7)", "tictac", "staggered(flows=2)", "bytescheduler(partition=64, credit=200)", "poseidon",
         "quorum(size=3)", "bytescheduler(partition=100, credit=300, exchange=allreduce)", "gradient_coding",
         "gradient_coding(scheme=cyclic)", "bounded_delay(delay=0)", "bsp over colocated",
         "bsp over proxies(groups=2)", "bsp over hashed(count=3, points=4)"), (3, together),
    ),
    "bounded_delay(delay=1)": (3, lambda hand: together(hand, 1)),
    "malt(barrier=true)": (3, by_barrier),
    "local_sgd(period=1, after=100)": (3, lambda hand: alone_then_averaged(hand, 1, 100)),
    "local_sgd(period=3)": (3, lambda hand: alone_then_averaged(hand, 3)),
    "local_sgd(period=2, after=3)": (3, lambda hand: alone_then_averaged(hand, 2, 3)),
    "bmuf(period=2)": (3, lambda hand: blocks(hand, bmuf(2 / 3, 1.0, False), 2)),
    "bmuf(period=2, momentum=0.5, rate=0.7, nesterov=true)": (3, lambda hand: blocks(hand, bmuf(0.5, 0.7, True), 2)),
    "diloco(period=2)": (3, lambda hand: blocks(hand, diloco(0.7, 0.9), 2)),
    "diloco(period=3, rate=1.3, momentum=0.5)": (3, lambda hand: blocks(hand, diloco(1.3, 0.5), 3)),
    "dpsgd": (3, lambda hand: dpsgd(hand, "ring")),
    "dpsgd over chain": (4, lambda hand: dpsgd(hand, "chain")),
    "dpsgd over star": (4, lambda hand: dpsgd(hand, "star")),
    "butterfly": (4, butterfly),
    "easgd(period=2, mode=synchronous)": (3, lambda hand: elastic(hand, 2, 0.3)),
    "easgd(period=3, mode=round_robin, pull=0.2)": (3, lambda hand: elastic(hand, 3, 0.2, in_turn=True)),
    "eamsgd(period=2, mode=synchronous, momentum=0.5)": (3, lambda hand: elastic(hand, 2, 0.3, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("spec", BY_HAND)
def test_in_step(spec: str) -> None:
    """Whatever the speeds: every worker's own batches, the last of them short, and workers that end early."""
    workers, formula = BY_HAND[spec]
    found = run(TASK, spec, workers, cluster=fitted(UNEVEN, workers), epochs=3).scored
    assert torch.allclose(flat(found), formula(ByHand(workers)), rtol=1e-9, atol=1e-12)


def flat(state: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.double().reshape(-1) for value in state.values()])


class Replay(Instrument):
    """What a server does as gradients come, in the order in which they came in the run."""

    def __init__(self, server: Callable[[Replay, int, Tensor, int], None], workers: int) -> None:
        self.hand, self.server, self.workers = ByHand(workers), server, workers
        self.w, self.version = self.hand.start.clone(), 0
        self.given: dict[int, tuple[Tensor, int]] = {}
        self.waiting: list[tuple[int, Tensor, int, int]] = []
        self.memory: dict[str, Any] = {}

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Params):
            self.given[to.rank] = self.w.clone(), self.version

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Push):
            at_, version = self.given[sender.rank]
            gradient = self.hand.gradient(at_, sender.rank, message.step)
            self.waiting.append((sender.rank, gradient, version, message.samples))
            self.server(self, sender.rank, gradient, version)

    def step(self, gradient: Tensor, scale: float = 1.0) -> None:
        self.w, self.version, self.waiting = self.w - RATE * scale * gradient, self.version + 1, []


def each(share: float, damp: Callable[[int], float] = lambda age: 1.0) -> Callable[..., None]:
    return lambda now, rank, gradient, version: now.step(gradient, share * damp(now.version - version))


def compensated(share: float, strength: float, adaptive: bool) -> Callable[..., None]:
    def server(now: Replay, rank: int, g: Tensor, version: int) -> None:
        scale: Any = strength
        if adaptive:
            now.memory["ms"] = 0.95 * now.memory.get("ms", torch.zeros_like(g)) + 0.05 * g * g
            scale = strength / torch.sqrt(now.memory["ms"] + 1e-7)
        now.step(g + scale * g * g * (now.w - now.given[rank][0]), share)

    return server


def softsync(size: int, damp: Callable[[int], float]) -> Callable[..., None]:
    def server(now: Replay, rank: int, gradient: Tensor, version: int) -> None:
        if len(now.waiting) >= size:
            counts = [damp(now.version - version) for _, _, version, _ in now.waiting]
            total = sum(count * g for count, (_, g, _, _) in zip(counts, now.waiting, strict=True))
            now.step(total / len(counts))  # type: ignore[arg-type, operator]

    return server


def inverse(age: int) -> float:
    return 1 / max(1, age)


def dynamic(age: int) -> float:
    return 1 / (1 + age)


REPLAYED: Mapping[str, Callable[..., None]] = {
    "asynchronous": each(1 / 3), "asynchronous(weight=0.2)": each(0.2),
    "asynchronous(damping=inverse)": each(1.0, inverse), "asynchronous(damping=dynamic)": each(1.0, dynamic),
    "ssp(bound=1)": each(1 / 3), "ssp(bound=2, damping=dynamic)": each(1.0, dynamic),
    "dssp(low=1, extra=2)": each(1 / 3),
    "dc_asgd": compensated(1 / 3, 0.04, False), "dc_asgd(strength=1.5, weight=0.5)": compensated(0.5, 1.5, False),
    "dc_asgd(adaptive=true)": compensated(1 / 3, 2.0, True), "softsync(groups=3)": softsync(1, inverse),
    "softsync(groups=3, damping=none)": softsync(1, lambda age: 1.0),
}  # fmt: skip


@pytest.mark.parametrize("spec", REPLAYED)
def test_as_gradients_come(spec: str) -> None:
    replay = Replay(REPLAYED[spec], WORKERS)
    found = run(TASK, spec, WORKERS, cluster=fitted(UNEVEN, WORKERS), epochs=3, watch=[replay]).scored
    assert replay.version == sum(replay.hand.steps)
    assert torch.allclose(flat(found), replay.w, rtol=1e-9, atol=1e-12)

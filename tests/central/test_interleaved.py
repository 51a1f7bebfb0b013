"""bytescheduler(exchange=allreduce): partitions are summed in one order that the first worker gives; no bit changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any, cast

import pytest
import torch
from torch import nn

from covey import catalog
from covey.central.scheduled import tuning
from covey.central.scheduled.interleaved import Begin, Weights
from covey.errors import PlanError
from covey.exchange.collectives.concurrent import ROUNDS, ConcurrentSum
from covey.exchange.collectives.sums import Chunk
from covey.program import Host, Node
from tests.central.test_priorities import SLOW, Backwards, Lars, Mixed, deep, same
from tests.worlds import World, adam, mlp, run, sgd, slowed, vector, worker

SPEC = "bytescheduler(partition=256, credit=512, exchange=allreduce)"
PLAIN = "allreduce(pattern=scatter)"


def assert_same(one: World, other: World) -> None:
    """The saved model, and every worker's; batch-norm's statistics but for rounding."""
    for name, tensor in one.scored.items():
        exact = "running" not in name
        assert torch.equal(tensor, other.scored[name]) if exact else torch.allclose(tensor, other.scored[name]), name
    for mine, theirs in zip(one.workers(), other.workers(), strict=True):
        assert torch.equal(mine.flat.parts[0], theirs.flat.parts[0])


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_numbers_and_the_bytes_are_those_of_one_sum_after_backward(workers: int) -> None:
    """Of 17 samples worker 0 has a batch more than some others: then it is the first of fewer, or alone."""
    task = deep(sgd(0.1, momentum=0.9), samples=17, batch_size=3, rate=lambda progress: 1 - progress / 2)
    plain, fast = (run(task, spec, workers, epochs=2, cluster=slowed(SLOW, w0=2)) for spec in (PLAIN, SPEC))
    assert_same(fast, plain)
    sent, others = (sum(event.size for event in world.log.sends) for world in (fast, plain))
    assert abs(sent - others) <= 0.05 * others, "but for the rounding of slices"
    assert len(fast.log.values("update")) == len(plain.log.values("update"))
    assert fast.outcome.samples == plain.outcome.samples
    assert workers == 1 or fast.outcome.seconds < plain.outcome.seconds


@pytest.mark.parametrize(
    "more", [{"optimizer": adam()}, {"clip_norm": 0.01}, {"optimizer": lambda pairs: Lars(pairs, lr=0.1)}]
)
def test_whatever_the_optimizer_looks_at(more: dict[str, Any]) -> None:
    """Adam counts steps; clipping needs the norm of all; others whole parameters."""
    assert_same(*(run(deep(**more), spec, 3, steps=4, cluster=SLOW) for spec in (SPEC, PLAIN)))


@pytest.mark.parametrize("together", [False, True])
def test_unusual_models(together: bool) -> None:
    """Layers that are not called, unused ones, batch-norm, also over the batches of all workers."""

    def model() -> nn.Module:
        module = Mixed().double()
        return nn.SyncBatchNorm.convert_sync_batchnorm(module) if together else module

    task = mlp(sgd(0.1, momentum=0.9, weight_decay=0.01), samples=41, model=model)
    assert_same(*(run(task, spec, 3, epochs=2) for spec in (SPEC, PLAIN)))


def begun(world: World, step: int) -> list[int]:
    """The layers of the partitions of a step, in the order in which the first worker begins them."""
    sent = [event.message for event in world.log.kinds(Begin) if event.to == worker(1)]
    return [message.place // 8 for message in sent if message.step == step]  # type: ignore[attr-defined]


def test_the_first_layer_overtakes_partitions_of_the_last_that_were_ready_before() -> None:
    world = run(deep(), SPEC, 2, steps=3, cluster=SLOW)
    order = begun(world, 1)
    assert sorted(order) == [0] * 8 + [1] * 8 + [2] * 8
    assert order[0] == 2 and order[-1] == 2, "the first is ready first, and its rest goes last"
    assert order.index(0) < 8
    assert begun(run(deep(model=Backwards), SPEC, 2, steps=3, cluster=SLOW), 1)[-1] == 0, "by the order of use"


def test_all_sum_in_the_order_that_the_first_worker_gives() -> None:
    """Though worker 2 is slow, and has its gradients later; else workers would wait for each other's next sum."""
    world = run(deep(), SPEC, 3, steps=4, cluster=slowed(SLOW, w2=3))
    told = [m.step * 25 + m.place + 1 for m in (e.message for e in world.log.kinds(Begin) if e.to == worker(1))]  # type: ignore[attr-defined]
    for rank in range(3):
        chunks = [event.message.step for event in world.log.kinds(Chunk) if event.sender == worker(rank)]  # type: ignore[attr-defined]
        assert list(dict.fromkeys(step // ROUNDS for step in chunks if step % ROUNDS == 0)) == told


def test_no_more_than_the_credit_is_under_way() -> None:
    """At the first worker: from the first chunk of a sum to the last one that comes."""
    world = run(deep(), "bytescheduler(partition=256, credit=700, exchange=allreduce)", 2, steps=3, cluster=SLOW)
    spans: dict[int, list[float]] = defaultdict(list)
    sends = [event for event in world.log.sends if event.sender == worker(0)]
    for event in sends + [event for event in world.log.deliveries if event.to == worker(0)]:
        if isinstance(event.message, Chunk):
            spans[event.message.step // ROUNDS].append(event.at)
    most = max(
        sum(min(span) <= moment < max(span) for span in spans.values()) for moment in map(min, spans.values())
    )  # fmt: skip
    assert most == 2, "two partitions fit into 700 bytes, and both were used"


def test_forward_goes_on_while_sums_do() -> None:
    world = run(deep(), SPEC, 2, steps=3, cluster=SLOW)
    ends = [event.at for event in world.log.deliveries if isinstance(event.message, Chunk)]
    lanes = [event.message.step // ROUNDS for event in world.log.deliveries if isinstance(event.message, Chunk)]
    last = max(at for at, lane in zip(ends, lanes, strict=True) if lane <= 25)  # of step 0, with its buffers' lane
    first = min(begin for begin, _, who in world.log.computes if begin > 0.011 and who == worker(0))
    assert first < last


def test_what_is_scored_is_never_half_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores while updates come slice by slice; each is of weights that all slices had after some step."""
    scored, ends, ended = list[float](), list[float](), Weights.ended

    def size(parts: Iterable[torch.Tensor]) -> float:
        return float(sum(part.detach().abs().sum() for part in parts))

    def evaluate(module: nn.Module) -> dict[str, float]:
        scored.append(size(module.parameters()))
        return {"size": scored[-1]}

    async def watched(weights: Weights, step: int) -> None:
        ends.append(size([view.clone() for view in weights.replica.layout.parameters.values()]))
        await ended(weights, step)

    monkeypatch.setattr(Weights, "ended", watched)
    run(deep(samples=16, batch_size=4, evaluate=evaluate), SPEC, 2, epochs=3, cluster=SLOW)
    first, *later = scored  # of the initial weights
    assert len(set(later)) >= 3 and set(later) <= set(ends) and first not in ends


def test_partition_and_credit_are_found_by_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "TRIALS", 5)
    monkeypatch.setattr(tuning, "TRIAL", 3)
    task, spec = deep(samples=400, batch_size=4), "bytescheduler(partition=auto, credit=auto, exchange=allreduce)"
    tuned = run(task, spec, 2, steps=17, cluster=SLOW)
    assert_same(tuned, run(task, PLAIN, 2, steps=17))
    assert tuned.log.values("partition")[0] in (128, 512, 2048) and len(tuned.log.values("credit")) == 1
    counts = {event.message.count for event in tuned.log.kinds(Begin)}  # type: ignore[attr-defined]
    assert counts == {1, 4, 16}


def test_a_lane_obeys_or_refuses() -> None:
    node = Node(worker(0), (1,), cast(Host, None), Random(0), 0)
    sent = ConcurrentSum(node, 3, -2).send(
        worker(1), Chunk(1, vector(1.0)), loan=True, keep="latest", lossy=True, paced=True
    )
    assert (sent.body.step, sent.priority) == (3 * ROUNDS + 1, -2)  # type: ignore[attr-defined]
    assert (sent.loan, sent.keep, sent.lossy, sent.paced) == (True, "latest", True, True)
    with pytest.raises(AssertionError, match="as urgent as its lane"):
        ConcurrentSum(node, 3).send(worker(1), Chunk(1, vector(1.0)), priority=5)


def test_the_choice_of_the_exchange_is_told() -> None:
    strategy = catalog.resolve(SPEC, 4)
    assert strategy.text == SPEC and strategy.servers.count == 0
    assert (strategy.taxonomy.architecture, strategy.taxonomy.exchange) == ("peers", "all-reduce")
    with pytest.raises(PlanError, match="with int8: .* omit the codec, or use exchange=servers"):
        catalog.resolve(f"{SPEC} + int8", 2)
    with pytest.raises(PlanError, match="must be 0 or more"):
        catalog.resolve("bytescheduler(partition=-1, exchange=allreduce)", 2)
    assert same(*(run(deep(), spec, 2, steps=2) for spec in (SPEC, SPEC)))

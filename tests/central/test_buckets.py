"""Gradients that leave in buckets while backward runs: the same bits, a shorter step, an order that the model gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from covey import catalog
from covey.errors import PlanError
from covey.exchange.collectives import ring_slices
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.sums import Chunk
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.program import Node
from covey.simulate import BytesPerSecond, Cluster, Seconds
from covey.simulate import Link as Wire
from covey.task import Task
from covey.vector import Piece
from tests.worlds import CLUSTER, World, cloud, mlp, perform, run, sgd, worker


def normed() -> Task:
    """Several layers in float32, where the order of additions shows, with batch-norm's buffers, and clipped."""
    return mlp(
        sgd(0.3, momentum=0.9), data=cloud(65, dtype=torch.float32), clip_norm=0.5,
        model=lambda: nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_values_never_change_with_the_size_of_buckets(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unequal batches, several rows of a ring, machines of three; a byte is a bucket for each parameter."""
    monkeypatch.setattr(ring_slices, "GRAIN", 60)
    spec, workers = f"allreduce(pattern={pattern}, local=3", 6 if pattern == "hierarchical" else 3
    at_once = run(normed(), f"{spec})", workers, epochs=1)
    for size in (1, 300):
        assert_same(run(normed(), f"{spec}, bucket={size})", workers, epochs=1), at_once)
    first, *others = at_once.workers()
    assert all(torch.equal(first.flat.parts[0], other.flat.parts[0]) for other in others)


def assert_same(world: World, other: World) -> None:
    assert world.scored.keys() == other.scored.keys()
    for name, tensor in world.scored.items():
        assert torch.equal(tensor, other.scored[name]), name
    assert world.outcome.samples == other.outcome.samples
    sent, others = (sum(event.size for event in seen.log.sends) for seen in (world, other))
    assert abs(sent - others) <= 0.02 * others, "buckets are no more bytes, but for the rounding of slices"


# -- time -------------------------------------------------------------------------------------------------------------

LAYERS, WIDTH = 6, 16
MODEL = LAYERS * WIDTH * WIDTH * 8  # bytes


def deep() -> Task:
    """Equal layers, so that each is a bucket, ready after an equal part of backward."""
    return mlp(
        model=lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).double(),
        data=cloud(64, WIDTH, WIDTH),
    )


def summing(slowness: float, latency: float = 0.0) -> Cluster:
    """Links on which a scatter among 4, 2 (n-1)/n of the model, takes so many times as long as a batch."""
    bandwidth = BytesPerSecond(2 * 3 / 4 * MODEL / (slowness * CLUSTER.compute))
    return replace(CLUSTER, link=Wire(bandwidth=bandwidth, latency=Seconds(latency)))


def step_seconds(bucket: int, slowness: float) -> float:
    spec = f"allreduce(pattern=scatter, bucket={bucket})"
    return run(deep(), spec, 4, steps=3, cluster=summing(slowness)).outcome.seconds / 3


@pytest.mark.parametrize("slowness", [0.2, 1.0, 4.0])
def test_a_step_is_the_longer_of_computing_and_exchanging(slowness: float) -> None:
    """Taxonomy E.1: all buckets after the wait for the first, or backward and then the last one."""
    compute = float(CLUSTER.compute)
    comm = slowness * compute
    forward, backward = compute / 3, 2 / 3 * compute
    expected = max(compute + comm / LAYERS, forward + backward / LAYERS + comm)
    assert step_seconds(1, slowness) == pytest.approx(expected)
    assert step_seconds(0, slowness) == pytest.approx(compute + comm)
    assert expected < 0.92 * (compute + comm)


def test_overlap_is_in_the_trace_and_each_bucket_is_one_sum() -> None:
    world = run(deep(), "allreduce(pattern=scatter, bucket=1)", 4, steps=2, cluster=summing(0.2))
    blocks = [(begin, end) for begin, end, who in world.log.computes if who == worker(0)]
    mine = [sent for sent in world.log.kinds(Chunk) if sent.sender == worker(0)]
    assert len(mine) == 2 * LAYERS * 2 * 3, "steps, buckets, rounds, peers"
    inside = [sent for sent in mine if any(begin < sent.at < end for begin, end in blocks)]
    assert len(inside) >= LAYERS * 2 * 3, "half of them leave while backward runs"
    after = run(deep(), "allreduce(pattern=scatter)", 4, steps=2)
    blocks = [(begin, end) for begin, end, who in after.log.computes if who == worker(0)]
    assert not [s for s in after.log.kinds(Chunk) if any(begin < s.at < end for begin, end in blocks)]


# -- order ------------------------------------------------------------------------------------------------------------


class Backwards(nn.Module):
    """Whose last layer by name is the first that computes, so that its gradient is the last to be ready."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(3, 3, bias=False)
        self.first = nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def pieces_of(module: nn.Module, backward: int = 1) -> list[Piece]:
    def source(step: int) -> Batch:
        loss = module(torch.ones(2, 3)).square().sum()
        for _ in range(backward):
            loss.backward(retain_graph=True)
        return Batch(loss.item(), 2)

    pieces: list[Piece] = []

    async def program(node: Node, replica: Replica) -> None:
        assert node.training()
        pieces.extend([piece async for piece in replica.stream(node, 1)])

    perform(program, replicas=[Replica(module, sgd(), BatchSource(own=source))])
    return pieces


def test_the_order_follows_from_the_model_and_not_from_backward() -> None:
    assert pieces_of(Backwards()) == [((9, 18),), ((0, 9),)]


def test_a_second_backward_is_refused_where_the_first_one_has_left() -> None:
    with pytest.raises(PlanError, match="twice in a step.*bucket=0"):
        pieces_of(nn.Linear(3, 3), backward=2)


# -- settings and measuring -------------------------------------------------------------------------------------------


def test_sizes_are_written_as_people_do() -> None:
    spec = "allreduce(bucket=4MB)"
    assert catalog.resolve(spec, 2).text == spec
    assert catalog.resolve("allreduce(bucket=0)", 2).text == "allreduce"
    with pytest.raises(PlanError, match="give bytes"):
        catalog.resolve("allreduce(bucket=-1)", 2)
    with pytest.raises(PlanError, match="4MiB"):
        catalog.resolve("allreduce(bucket=lots)", 2)


def test_measured_buckets_shorten_the_step_and_the_result_says_their_size() -> None:
    slow_link = summing(0.8, latency=1e-5)
    measured = run(deep(), "allreduce(pattern=scatter, bucket=auto)", 4, steps=10, cluster=slow_link)
    at_once = run(deep(), "allreduce(pattern=scatter)", 4, steps=10, cluster=slow_link)
    (bucket,) = measured.log.values("bucket")
    assert 0 < bucket < MODEL / 2
    assert measured.outcome.seconds < 0.8 * at_once.outcome.seconds


def test_layers_that_speak_with_their_likes_may_do_so_while_buckets_leave() -> None:
    """SyncBatchNorm asks the other workers in the middle of backward, when the last layers are being summed."""

    def model() -> nn.Module:
        layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
        synchronized: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(layers)
        return synchronized

    at_once, world = (run(mlp(model=model), f"allreduce(bucket={size})", 3, steps=3) for size in (0, 1))
    assert_same(world, at_once)

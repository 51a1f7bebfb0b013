"""Float buffers: averaged whenever models are averaged, and kept as a mean by the server they are pushed to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import catalog
from covey.decentral.elastic.easgd import Centre, Elastic
from covey.decentral.gossip.dpsgd import NeighbourModel
from covey.decentral.gossip.gosgd import Gossip
from covey.message import Message
from covey.task import Task
from tests.promises.specs import TRAINED_AS
from tests.worlds import CLUSTER, World, cloud, run, server, sgd, slowed, worker

MODEL_BYTES = 8 * (6 + 6 + 6 * 3 + 3)  # scale, shift, weight, bias
BUFFER_BYTES = 8 * (6 + 6)  # mean and variance


def task(samples: int = 64) -> Task:
    """Normalisation first, so that its statistics depend on the data alone."""
    return Task(
        model=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).double(), data=cloud(samples),
        optimizer=sgd(), loss=nn.functional.cross_entropy, batch_size=8,
    )  # fmt: skip


def in_pairs(momentum: float = 0.1) -> nn.Module:
    """Of one sample, too, what is normalised has two numbers of each channel."""
    norm = nn.BatchNorm1d(3, momentum=momentum)
    return nn.Sequential(nn.Unflatten(1, (3, 2)), norm, nn.Flatten(), nn.Linear(6, 3)).double()


def statistics(world: World, rank: int, step: int, start: Tensor | None = None) -> Tensor:
    """The running mean and variance of a worker after one more batch, worked out by hand (momentum 0.1)."""
    x = cloud(64)[0][world.deal.indices(rank, step)]
    begin = torch.cat([torch.zeros(6), torch.ones(6)]).double() if start is None else start
    return 0.9 * begin + 0.1 * torch.cat([x.mean(0), x.var(0)])


def buffers(world: World, rank: int) -> Tensor:
    return world.replicas[worker(rank)].buffers.parts[0]


def scored(world: World) -> Tensor:
    return torch.cat([world.scored["0.running_mean"], world.scored["0.running_var"]])


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("servers", [1, 2])
def test_bsp_workers_keep_their_own_and_the_server_their_mean(servers: int) -> None:
    world = run(task(), "bsp", 4, servers=servers, steps=2)
    own = []
    for rank in range(4):
        own.append(statistics(world, rank, 1, start=statistics(world, rank, 0)))
        assert close(buffers(world, rank), own[rank])
    assert close(world.replicas[server(0)].buffers.parts[0], torch.stack(own).mean(0))
    assert close(scored(world), torch.stack(own).mean(0))
    assert not close(own[0], own[1])


def test_a_push_that_waits_keeps_the_statistics_it_came_with() -> None:
    """Worker 0 pushes twice before worker 1 once: its second batch changes what it keeps, not what waits."""
    world = run(task(), "softsync(groups=1)", 2, steps=2, cluster=slowed(w1=9))
    own = [[first := statistics(world, rank, 0), statistics(world, rank, 1, start=first)] for rank in range(2)]
    together = (own[0][0] + own[0][1]) / 2
    assert close(scored(world), ((together + own[1][0]) / 2 + own[1][1]) / 2), "then worker 1 is alone"


@pytest.mark.parametrize(
    "spec", ["firecaffe", "allreduce", "allreduce(bucket=64)", "poseidon", "bytescheduler(exchange=allreduce)"]
)
def test_a_worker_that_has_ended_counts_no_more(spec: str) -> None:
    """Worker 0 has a fifth batch, of one sample."""
    world = run(replace(task(65), model=in_pairs), spec, 2, epochs=1)
    expected = torch.cat([torch.zeros(3), torch.ones(3)]).double()
    for step in range(5):
        batches = [cloud(65)[0][world.deal.indices(rank, step)].view(-1, 3, 2) for rank in range(2 if step < 4 else 1)]
        new = [torch.cat([x.mean((0, 2)), x.transpose(0, 1).flatten(1).var(1)]) for x in batches]
        expected = 0.9 * expected + 0.1 * torch.stack(new).mean(0)
    assert close(torch.cat([world.scored["1.running_mean"], world.scored["1.running_var"]]), expected)


def test_asynchronous_server_moves_a_share_towards_each_push() -> None:
    world = run(task(), "asynchronous", 2, steps=1, cluster=slowed(w1=2))  # worker 0 pushes first
    first, second = statistics(world, 0, 0), statistics(world, 1, 0)
    start = torch.cat([torch.zeros(6), torch.ones(6)]).double()
    assert close(scored(world), ((start + first) / 2 + second) / 2)


def test_allreduce_averages_them_every_step() -> None:
    world = run(task(), "allreduce", 4, steps=2)
    first = torch.stack([statistics(world, rank, 0) for rank in range(4)]).mean(0)
    second = torch.stack([statistics(world, rank, 1, start=first) for rank in range(4)]).mean(0)
    for rank in range(4):
        assert close(buffers(world, rank), second)
        assert torch.equal(buffers(world, rank), buffers(world, 0))


def test_local_sgd_averages_them_with_the_models() -> None:
    alone = run(task(), "local_sgd(period=2)", 4, steps=1)
    together = run(task(), "local_sgd(period=2)", 4, steps=2)
    for rank in range(4):
        assert close(buffers(alone, rank), statistics(alone, rank, 0))
    own = [statistics(together, rank, 1, start=statistics(together, rank, 0)) for rank in range(4)]
    for rank in range(4):
        assert close(buffers(together, rank), torch.stack(own).mean(0))


@pytest.mark.parametrize(
    ("strategy", "kinds", "extra"),
    [
        ("easgd(period=1)", (Centre, Elastic), 0),
        ("gosgd(probability=1)", (Gossip,), 8),
        ("dpsgd", (NeighbourModel,), 0),
    ],
)
def test_models_travel_with_their_buffers(strategy: str, kinds: tuple[type[Message], ...], extra: int) -> None:
    world = run(task(), strategy, 3, steps=4, cluster=CLUSTER)
    for kind in kinds:
        assert {sent.size for sent in world.log.kinds(kind)} == {MODEL_BYTES + BUFFER_BYTES + extra}
    assert torch.isfinite(scored(world)).all()
    assert not close(scored(world), torch.cat([torch.zeros(6), torch.ones(6)]).double())


def test_only_the_first_server_gets_buffers() -> None:
    world = run(task(), "bsp", 2, servers=2, steps=3)
    up = {
        index: sum(sent.size for sent in world.log.sends if sent.sender == worker(0) and sent.to == server(index))
        for index in range(2)
    }
    assert sum(up.values()) == 3 * (MODEL_BYTES + BUFFER_BYTES)
    assert up[0] - up[1] in (3 * BUFFER_BYTES, 3 * (BUFFER_BYTES + 8), 3 * (BUFFER_BYTES - 8))
    down = sum(sent.size for sent in world.log.sends if sent.to == worker(0))
    assert down == 3 * MODEL_BYTES, "workers keep their own buffers: nothing of them comes back"


@pytest.mark.parametrize("name", [*catalog.for_any_model(), "bytescheduler(exchange=allreduce)"])
def test_scored_statistics_are_those_of_the_data(name: str) -> None:
    """However often models or gradients meet, and though worker 0 has a last batch more, of one sample."""
    x, y = cloud(65)
    far = replace(task(65), model=lambda: in_pairs(0.5), data=(x + 20, y))
    world = run(far, TRAINED_AS.get(name, name), 2, epochs=4)
    assert 18 < world.scored["1.running_mean"].mean() < 22


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "easgd"])
def test_counters_are_not_averaged(strategy: str) -> None:
    world = run(task(), strategy, 2, steps=3)
    for replica in world.workers():
        norm = replica.module[0]  # type: ignore[index]
        assert int(norm.num_batches_tracked) == 3
    assert int(world.scored["0.num_batches_tracked"]) == 3, "as PyTorch's DistributedDataParallel would save it"


@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_counters_are_saved_by_processes_too(strategy: str) -> None:
    weights = covey.fit(task(), strategy, 2, steps=3, threads=1).weights
    assert int(weights["0.num_batches_tracked"]) == 3


@pytest.mark.parametrize("strategy", ["bsp", "asynchronous"])
def test_where_a_servers_model_is_scored_its_counters_are_those_of_the_first_worker(strategy: str) -> None:
    """Of 65 samples worker 0 has 33, and so a batch more than worker 1."""
    world = run(replace(task(65), model=in_pairs), strategy, 2, epochs=1)
    counted = [int(replica.module[1].num_batches_tracked) for replica in world.workers()]  # type: ignore[index]
    assert counted == [5, 4] and int(world.scored["1.num_batches_tracked"]) == 5

"""One weird trick: the weights of one worker with everybody's samples, in three schemes; units stay where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.catalog import formulas
from covey.central.layers.rounds import Activations, Errors, Outputs
from covey.central.layers.weird_trick import Scheme, Trick, rounds
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.exchange.collectives.sums import Chunk
from covey.message import Message
from covey.model import build
from covey.model.threads import one_thread
from covey.parallelism.units.unit_replica import UnitReplica
from covey.strategy import CountedRun
from covey.task import Task
from covey.vector import chunk
from tests.worlds import World, adam, alone, run, sgd, slowed, vector, worker

FRONT = 4 * 9 + 4  # numbers of the convolution
WIDTHS = (16, 10, 7, 3)  # what goes into the first fully connected layer, and what comes out of each
SCHEMES = ("a", "b", "c")


def cnn(*last: nn.Module) -> nn.Module:
    tail = [nn.Linear(16, 10), nn.ReLU(inplace=True), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3), *last]
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *tail).double()


def pictures(samples: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, (3 * x.mean((1, 2, 3)).sigmoid()).long().clamp(max=2)


def task(samples: int = 101, **more: Any) -> Task:
    given: dict[str, Any] = {
        "model": cnn, "data": pictures(samples), "optimizer": sgd(0.2, momentum=0.9, weight_decay=0.01),
        "loss": F.cross_entropy, "batch_size": 8,
    }  # fmt: skip
    return Task(**(given | more))


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], within: float = 1e-9) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=within, rtol=0, msg=lambda text: f"{name}: {text}")  # noqa: B023


def moved(given: Task, weights: dict[str, Tensor]) -> bool:
    start = build.model(given, 0).state_dict()
    return all((weights[name] - start[name]).abs().max() > 0.01 for name in start)


# -- one update of all samples -----------------------------------------------------------------------------------------


CASES = [("a", 1, 22), ("a", 2, 22), ("a", 5, 6), ("b", 3, 22), ("c", 3, 22)]


@pytest.mark.parametrize(("scheme", "workers", "steps"), CASES)
def test_the_weights_of_one_worker_with_all_samples(scheme: str, workers: int, steps: int) -> None:
    """101 samples: last batches are short and unequal; 5 workers have 3 units of the last layer, two of them none."""
    given = task(rate=lambda progress: 1 - progress / 2)
    reference = alone(given, steps=steps, batch_size=8 * workers)
    assert moved(given, reference)
    world = run(given, f"one_weird_trick(scheme={scheme})", workers, steps=steps, cluster=slowed(w0=3))
    assert_same(world.scored, reference)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_losses_too(scheme: str) -> None:
    """In scheme c the rounds have 2, 3 and 3 samples of each worker."""
    given = task(samples=96, optimizer=adam(0.01))
    world = run(given, f"one_weird_trick(scheme={scheme})", 3, steps=20)
    ours = torch.tensor([world.log.values("loss", worker(rank)) for rank in range(3)], dtype=torch.float64).mean(0)
    losses = plain(given, 20, 24)[1]
    torch.testing.assert_close(ours, torch.tensor(losses, dtype=torch.float64), atol=1e-9, rtol=0)
    assert losses[0] > losses[-1] + 0.01


@pytest.mark.parametrize("scheme", ["a", "c"])
def test_those_whose_samples_are_used_up_still_have_their_units(scheme: str) -> None:
    """97 samples: only worker 0 has a fourth batch, of one sample, in every epoch; in the end it is alone."""
    given = task(samples=97)
    world = run(given, f"one_weird_trick(scheme={scheme})", 4, epochs=2)
    assert [len(world.log.values("samples", worker(rank))) for rank in range(4)] == [8, 6, 6, 6]
    assert_same(world.scored, uneven(given, 4, steps=8))


def uneven(given: Task, workers: int, steps: int) -> dict[str, Tensor]:
    """A plain loop over the batches that these workers have together, while they have some."""
    assert isinstance(given.data, tuple)
    deal = Shards(len(given.data[0]), workers, given.batch_size, 0)
    limits = [2 * deal.steps(rank) for rank in range(workers)]
    return plain(given, steps, 0, lambda step: torch.cat([
        deal.indices(rank, step) for rank in range(workers) if step < limits[rank]
    ]))[0]  # fmt: skip


def plain(
    given: Task, steps: int, batch: int, numbers: Callable[[int], Tensor] | None = None
) -> tuple[dict[str, Tensor], list[float]]:
    """One process and a plain loop; its weights and losses."""
    assert isinstance(given.data, tuple)
    module, losses = build.model(given, 0), list[float]()
    optimizer, deal = given.optimizer(module.named_parameters()), Shards(len(given.data[0]), 1, max(1, batch), 0)
    with one_thread():
        for step in range(steps):
            chosen = numbers(step) if numbers else deal.indices(0, step)
            optimizer.zero_grad()
            loss = given.forward(module, tuple(column[chosen] for column in given.data))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return module.state_dict(), losses


def test_a_gradient_is_clipped_by_its_whole_norm() -> None:
    given = task(clip_norm=0.1)
    assert_same(run(given, "one_weird_trick", 3, steps=8).scored, alone(given, steps=8, batch_size=24))


def test_synchronized_statistics_are_those_of_the_large_batch() -> None:
    def model() -> nn.Module:
        front = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        net = nn.Sequential(*front, nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        return converted

    given = task(model=model)
    ours, theirs = run(given, "one_weird_trick", 3, steps=8).scored, alone(given, steps=8, batch_size=24)
    del ours["1.num_batches_tracked"], theirs["1.num_batches_tracked"]
    assert_same(ours, theirs)


class Functions(nn.Module):
    """Traced, not an nn.Sequential; what follows the last layer is done by whoever has the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.wide, self.last = nn.Conv2d(1, 2, 3), nn.Linear(32, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.wide(self.front(x).tanh().flatten(1)))
        return F.log_softmax(self.last(F.dropout(x, 0.0)), dim=1)


def test_a_model_with_functions_and_a_head() -> None:
    given = task(model=lambda: Functions().double(), loss=F.nll_loss)
    world = run(given, "one_weird_trick(scheme=b)", 2, steps=10)
    assert_same(world.scored, alone(given, steps=10, batch_size=16))
    assert world.replicas[worker(1)].flat.numel == 20 + 5 * 33 + 2 * 10


# -- who has what ------------------------------------------------------------------------------------------------------


def slices(workers: int, rank: int) -> list[int]:
    return [stop - first for first, stop in (chunk(width, workers, rank) for width in WIDTHS[1:])]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_worker_has_its_units_and_no_others(workers: int) -> None:
    """Of weights, gradients and the optimizer's state."""
    world = run(task(optimizer=adam()), "one_weird_trick", workers, steps=2)
    for rank in range(workers):
        replica = world.replicas[worker(rank)]
        mine = sum(own * (inputs + 1) for own, inputs in zip(slices(workers, rank), WIDTHS[:-1], strict=True))
        assert replica.flat.numel == replica.grad.numel == FRONT + mine
        moments = [state["exp_avg"].numel() for state in replica.optimizer.state.values()]
        assert sum(moments) == FRONT + mine
    fronts = [world.replicas[worker(rank)].module[0].weight for rank in range(workers)]  # type: ignore[index]
    assert all(torch.equal(fronts[0], other) for other in fronts[1:])


def test_fully_connected_weights_never_move_and_the_front_is_summed() -> None:
    """Links of a run of 2 steps with 3 workers and batches of 8, in numbers of 8 bytes."""
    links = {scheme: traffic(run(task(96), f"one_weird_trick(scheme={scheme})", 3, steps=2)) for scheme in SCHEMES}
    expected: Counter[str] = Counter(formulas.ring(CountedRun(workers=3, steps=2, numbers=FRONT, width=8), 2))
    for one in range(3):
        for other in range(3):
            if one != other:
                expected[f"worker {one}->worker {other}"] += 2 * 8 * numbers(one, other, 3, 8)
    assert links["a"] == links["b"] == links["c"] == expected


def numbers(one: int, other: int, workers: int, batch: int) -> int:
    """What goes from one worker to another for a batch of `batch` from each."""
    mine, theirs, total = slices(workers, one), slices(workers, other), batch * workers
    activations, errors = batch * WIDTHS[0], batch * WIDTHS[0]
    between = total * sum(mine[:-1]) + total * sum(theirs[:-1])  # outputs forward, errors back
    return activations + errors + between + batch * mine[-1] + batch * theirs[-1]


def traffic(world: World) -> Counter[str]:
    found: Counter[str] = Counter()
    for event in world.log.sends:
        assert type(event.message) in (Activations, Outputs, Errors, Chunk) or not event.size
        found[f"{event.sender}->{event.to}"] += event.size
    return Counter({link: size for link, size in found.items() if size})


def test_nothing_comes_back_to_a_front_that_does_not_learn() -> None:
    """A model of fully connected layers: samples themselves are handed out, and no error for them."""
    given = task(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Linear(4, 2)).double(), samples=32)
    world = run(given, "one_weird_trick", 2, steps=1)
    assert sum(event.size for event in world.log.kinds(Activations)) == 2 * 8 * 36 * 8
    assert sum(event.size for event in world.log.kinds(Errors)) == 2 * (16 * 2 + 8 * 1) * 8
    assert not world.log.kinds(Chunk)


# -- the schemes -------------------------------------------------------------------------------------------------------


def test_which_rows_go_together() -> None:
    assert rounds("a", [4, 4, 2]) == [[(0, 4), (0, 4), (0, 2)]]
    assert rounds("b", [4, 0, 2]) == [[(0, 4), (0, 0), (0, 0)], [(0, 0), (0, 0), (0, 2)]]
    assert rounds("c", [4, 4, 2]) == [[(0, 1), (0, 1), (0, 0)], [(1, 2), (1, 2), (0, 1)], [(2, 4), (2, 4), (1, 2)]]
    assert rounds("c", [1, 0, 0]) == [[(0, 1), (0, 0), (0, 0)]], "rounds without samples are none"


def handed_out(scheme: Scheme) -> list[list[tuple[int, int]]]:
    """In each round of a step of 3 workers: who hands out how many rows to each other."""
    world = run(task(96, batch_size=6), f"one_weird_trick(scheme={scheme})", 3, steps=1)
    found: dict[int, list[tuple[int, int]]] = {}
    for event in world.log.kinds(Activations):
        assert isinstance(event.message, Activations)
        found.setdefault(event.message.step, []).append((event.sender.rank, len(event.message.values.parts[0])))
    return [sorted(set(found[number])) for number in sorted(found)]


def test_a_has_one_round_b_one_of_each_worker_c_the_nth_part_of_all() -> None:
    assert handed_out("a") == [[(0, 6), (1, 6), (2, 6)]]
    assert handed_out("b") == [[(0, 6)], [(1, 6)], [(2, 6)]]
    assert handed_out("c") == [[(0, 2), (1, 2), (2, 2)]] * 3


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_what_a_round_needs_travels_during_the_round_before(scheme: str) -> None:
    world = run(task(96), f"one_weird_trick(scheme={scheme})", 3, steps=1)
    leaves = [first(world, Activations, turn) for turn in range(3)]
    ends = [first(world, Errors, turn * len(WIDTHS)) for turn in range(3)]
    assert all(after < end for after, end in zip(leaves[1:], ends[:-1], strict=True))
    assert all(one < two for one, two in pairwise(ends)), "and yet one round ends after the other"


def first(world: World, kind: type[Message], number: int) -> float:
    """When the first message of this kind and number left."""
    return min(event.at for event in world.log.kinds(kind) if getattr(event.message, "step", None) == number)


# -- variable batches --------------------------------------------------------------------------------------------------


def varied(given: Task, scheme: Scheme, workers: int, steps: int) -> dict[str, Tensor]:
    """By hand: after each round the fully connected layers step on its samples, in the end the front on all."""
    assert isinstance(given.data, tuple)
    module = build.model(given, 0)
    optimizer = given.optimizer(module.named_parameters())
    deal = Shards(len(given.data[0]), workers, given.batch_size, 0)
    front = list(module[0].parameters())  # type: ignore[index]
    units = [p for p in module.parameters() if all(p is not other for other in front)]
    with one_thread():
        for step in range(steps):
            batches = [deal.indices(rank, step) for rank in range(workers)]
            total = sum(map(len, batches))
            slopes = [torch.zeros_like(p) for p in front]
            for rows in rounds(scheme, [len(batch) for batch in batches]):
                chosen = torch.cat([batch[slice(*ends)] for batch, ends in zip(batches, rows, strict=True)])
                optimizer.zero_grad()
                given.forward(module, tuple(column[chosen] for column in given.data)).backward()
                for slope, p in zip(slopes, front, strict=True):
                    assert p.grad is not None
                    slope.add_(p.grad, alpha=len(chosen) / total)
                    p.grad = None
                optimizer.step()
            optimizer.zero_grad()
            for slope, p in zip(slopes, front, strict=True):
                p.grad = slope
            optimizer.step()
    assert units
    return module.state_dict()


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_variable_batches_update_the_units_after_every_round(scheme: Scheme) -> None:
    given = task()
    ours = run(given, f"one_weird_trick(scheme={scheme}, variable=true)", 3, steps=10).scored
    assert_same(ours, varied(given, scheme, 3, 10))
    same = alone(given, steps=10, batch_size=24)
    assert max(float((ours[name] - same[name]).abs().max()) for name in ours) > 1e-3, "another algorithm"


def test_variable_batches_count_their_updates() -> None:
    world = run(task(96, optimizer=adam()), "one_weird_trick(scheme=b, variable=true)", 3, steps=4)
    replica = world.replicas[worker(0)]
    assert isinstance(replica, UnitReplica)
    for name, parameter in replica.layout.parameters.items():
        assert replica.optimizer.state[parameter]["step"] == (12 if name in replica.ends.names else 4), name


def test_one_round_has_nothing_to_vary() -> None:
    with pytest.raises(PlanError, match="scheme a has one round.*scheme=b"):
        run(task(), "one_weird_trick(variable=true)", 3, steps=1)


# -- chance ------------------------------------------------------------------------------------------------------------


def dropping() -> nn.Module:
    front = [nn.Conv2d(1, 2, 3), nn.Dropout(0.2), nn.Flatten()]
    return nn.Sequential(*front, nn.Linear(32, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3)).double()


def test_alone_chance_is_that_of_a_plain_worker() -> None:
    given = task(model=dropping)
    assert_same(run(given, "one_weird_trick", 1, steps=12).scored, run(given, "allreduce", 1, steps=12).scored, 0.0)


@pytest.mark.parametrize("scheme", ["a", "b"])
def test_every_slice_draws_its_own_mask_again_in_every_step_and_round(scheme: str) -> None:
    drawn: dict[int, list[Tensor]] = {}

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(16, 3)).double()

    def before(replicas: Any) -> None:
        for who, replica in replicas.items():
            replica.module[3].register_forward_hook(
                lambda module, given, made, rank=who.rank: drawn.setdefault(rank, []).append(made == 0)
            )

    given, spec = task(model=model, samples=96), f"one_weird_trick(scheme={scheme})"
    one, two = (run(given, spec, 2, steps=3, before=before).scored for _ in range(2))
    assert_same(one, two, 0.0)
    first, second = drawn[0], drawn[1]
    times = len(first) // 2  # of two runs
    assert times == (3 if scheme == "a" else 6)
    for mask in first[:times]:
        assert 0.3 < mask.double().mean() < 0.7
    assert not any(torch.equal(mine, theirs) for mine, theirs in zip(first, second, strict=True))
    assert not any(torch.equal(mask, later) for mask, later in pairwise(first[:times]))


def test_statistics_are_the_mean_of_those_who_have_computed() -> None:
    async def whole(*_: object) -> None:
        """What others add does not matter here."""

    for rank, front, statistics in ((0, 0.5, 3.0), (1, 0.0, 0.0)):
        trick: Any = SimpleNamespace(
            node=SimpleNamespace(rank=rank, sum=whole), share=SimpleNamespace(buffers=vector(6.0)), front=vector(1.0),
            peers=(),
        )  # fmt: skip
        with pytest.raises(StopIteration):
            Trick.sum_front(trick, [2, 0, 2]).send(None)
        assert (trick.front.parts[0].item(), trick.share.buffers.parts[0].item()) == (front, statistics)

"""Downpour: own periods for push and fetch, local moves between, Adagrad on the shards; filters before a push."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covey import catalog
from covey.central.server.store import Accrued, Fetched
from covey.errors import PlanError
from covey.message import Address
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.task import Task
from tests.worlds import INSTANT, World, alone, middle, mlp, paced, quadratic, run, server, sgd, worker


def pushes(world: World, rank: int = 0, shard: int = 0) -> list[Accrued]:
    return [s.message for s in world.log.kinds(Accrued) if s.sender == worker(rank) and s.to == server(shard)]


def test_pushes_at_0_3_6_hold_1_3_3_gradients_and_the_weights_move_in_between() -> None:
    """A loss with gradient 1: what is pushed counts gradients. Fetches at 0, 2, 4, 6; between them w moves by lr."""
    task = ramp(lr=0.25)
    moved: list[float] = []
    world = run(
        task, "downpour(push=3, fetch=2, server=task)", 1, steps=8, cluster=INSTANT,
        before=lambda replicas: spy(replicas, moved),
    )  # fmt: skip
    pushed = [(push.step, push.values.parts[0].tolist()) for push in pushes(world)]
    assert pushed == [(0, [1, 1]), (3, [3, 3]), (6, [3, 3]), (7, [1, 1])], "and at the end what is left"
    assert [sent.message.step for sent in world.log.kinds(Fetched)] == [0, 2, 4, 6]
    # fetched, moved; fetched after a push of 1, moved; fetched after 1 + 3, moved; fetched the same, moved
    assert moved == [0, -0.25, -0.25, -0.5, -1, -1.25, -1, -1.25]


def ramp(lr: float, numbers: int = 2) -> Task:
    """The gradient is 1 everywhere."""
    return Task(
        model=lambda: Numbers(numbers), data=(torch.zeros(64),), optimizer=sgd(lr),
        step=lambda model, batch: model.w.sum() + 0 * batch[0].sum(), batch_size=4,
    )  # fmt: skip


class Numbers(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))


def spy(replicas: dict[Address, Replica], seen: list[float]) -> None:
    """Note the first weight at which each gradient is taken."""
    replica = replicas[worker(0)]
    source = replica.batch_source.own
    assert source is not None

    def noting(step: int) -> Batch:
        seen.append(replica.flat.parts[0][0].item())
        return source(step)

    replica.batch_source = BatchSource(own=noting)


@pytest.mark.parametrize("fetch", [1, 2, 5])
@pytest.mark.parametrize("optimizer", [sgd(), sgd(0.05, momentum=0.9)])
def test_alone_with_push_1_it_is_plain_training_for_any_fetch(fetch: int, optimizer: object) -> None:
    task = mlp(optimizer)  # type: ignore[arg-type]
    world = run(task, f"downpour(fetch={fetch}, server=task)", 1, steps=9)
    expected = alone(task, 9, 8)
    assert all(torch.allclose(world.scored[key], expected[key], atol=1e-12) for key in expected)
    assert torch.allclose(world.flat(worker(0)), world.flat(server(0)), atol=1e-12), "the server is where the worker is"


def test_a_warm_start_is_one_replicas_alone() -> None:
    """The first 5 updates are worker 0's, in steps of 10 ms; only then do the others begin, however fast they are."""
    log = run(ramp(0.1), "downpour(warm=5)", 3, steps=8, servers=2, cluster=INSTANT).log
    pushed = [(round(event.at, 6), event.sender.rank) for event in log.kinds(Accrued) if event.to == server(0)]
    assert pushed[:5] == [(round(0.01 * k, 6), 0) for k in range(1, 6)]
    assert sorted(pushed[5:8]) == [(0.06, rank) for rank in range(3)] and len(pushed) == 24
    short = run(ramp(0.1), "downpour(warm=50)", 3, steps=4, cluster=INSTANT).log
    assert [e.sender.rank for e in short.kinds(Accrued)][:4] == [0] * 4, "who is through holds nobody up"
    assert len(short.kinds(Accrued)) == 12


def test_adagrad_on_the_server() -> None:
    """h += x^2, w -= gamma x / sqrt(h): the first step moves every number by gamma, whatever its gradient."""
    task = quadratic(lr=0.1)
    first = run(task, "downpour", 1, steps=1).scored["w"]
    assert torch.allclose((first - 1).abs(), torch.full((5,), 0.1).double(), atol=1e-6)
    world = run(task, "downpour(gamma=0.3)", 1, steps=2)
    w, h = torch.ones(5).double(), torch.zeros(5).double()
    for step in range(2):
        x = w - middle(task, world.deal, 0, step)
        h += x * x
        w = w - 0.3 * x / h.sqrt()
    assert torch.allclose(world.scored["w"], w, atol=1e-8)


@pytest.mark.parametrize(("spec", "size"), [("downpour", 0.1), ("downpour(gamma=0.3)", 0.3)])
def test_a_schedule_changes_gamma_as_it_changes_the_rate(spec: str, size: float) -> None:
    first = run(replace(quadratic(lr=0.1), rate=lambda progress: 0.5), spec, 1, steps=1).scored["w"]
    assert torch.allclose((first - 1).abs(), torch.full((5,), 0.5 * size).double(), atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(
    push=st.integers(1, 4), fetch=st.integers(1, 4), servers=st.integers(1, 3),
    sieve=st.sampled_from(["none", "significance, threshold=0.3", "random_skip", "key_caching"]),
    slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=3), seed=st.integers(0, 9),
)  # fmt: skip
def test_nothing_is_pushed_twice_and_without_waiting_filters_nothing_is_missing(
    push: int, fetch: int, servers: int, sieve: str, slow: list[float], seed: int
) -> None:
    """Gradient 1 in every step: what is pushed is at most what was computed, and exactly that if no filter waits."""
    spec = f"downpour(push={push}, fetch={fetch}, server=task, filter={sieve})"
    world = run(ramp(0.1, 7), spec, len(slow), steps=9, servers=servers, seed=seed, cluster=paced(slow, 0.3))
    moved = torch.zeros(7).double()
    for rank in range(len(slow)):
        total = sum(sum(p.values.parts[0].sum().item() for p in pushes(world, rank, s)) for s in range(servers))
        assert total <= 9 * 7
        if sieve in ("none", "key_caching"):
            assert total == 9 * 7, "the last push holds what was gathered after the one before"
        moved += total / 7
    assert world.flat(server(0)).sum() <= 0 and moved[0] <= 9 * len(slow)


def test_a_schedule_counts_the_samples_of_each_push_once() -> None:
    world = run(quadratic(samples=56), "downpour(push=3)", 2, steps=7)
    assert world.replicas[server(0)].progress.seen == world.outcome.samples == 56


def test_every_push_is_an_update_of_every_shard() -> None:
    """And the versions that a worker holds of two shards are never further apart than there are workers."""
    world = run(quadratic(), "downpour(server=task)", 3, steps=12, servers=2, cluster=paced([1, 1.3, 2], 0.5))
    versions = {(p.step, r, s): p.version for r in range(3) for s in range(2) for p in pushes(world, r, s)}
    assert all(abs(versions[step, r, 0] - versions[step, r, 1]) <= 3 for step, r, _ in versions)
    assert len(world.log.values("update")) == 36


# -- filters ----------------------------------------------------------------------------------------------------------


def lasso(lr: float = 0.2) -> Task:
    """Least squares where only two of eight inputs matter."""
    chance = torch.Generator().manual_seed(5)
    x = torch.randn(64, 8, dtype=torch.float64, generator=chance)
    y = x @ torch.tensor([2.0, -1.0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    return Task(
        model=lambda: Numbers(8), data=(x, y), optimizer=sgd(lr), batch_size=64,
        step=lambda model, batch: 0.5 * (batch[0] @ model.w - batch[1]).square().mean(),
    )  # fmt: skip


def test_kkt_sends_no_number_that_the_penalty_holds_at_zero_and_changes_no_solution() -> None:
    """Exact gradients, slack 0: the weights of every step are those of sending everything."""
    world = run(lasso(), "downpour(server=task, filter=kkt, l1=0.3)", 1, steps=40)
    whole = run(lasso(), "downpour(server=task, filter=kkt, l1=0.3, slack=0.3)", 1, steps=40)
    assert torch.allclose(world.scored["w"], whole.scored["w"], atol=1e-12)
    assert (world.scored["w"][2:] == 0).all() and (world.scored["w"][:2] != 0).all()
    sent = [set(push.keys.parts[0].tolist()) for push in pushes(world)]
    assert sent[-1] == {0, 1}, "held at zero: never sent; others: always"
    assert all({0, 1} <= keys for keys in sent)


def test_kkt_looks_at_the_mean_of_the_gradients_that_a_push_holds() -> None:
    """Gradient 1 and a penalty of 2: three gradients come to 3, and still none of them would move the weight."""
    held = run(ramp(0.1), "downpour(push=3, server=task, filter=kkt, l1=2)", 1, steps=7)
    assert [push.values.parts[0].tolist() for push in pushes(held)] == [[], [], []]
    moved = run(ramp(0.1), "downpour(push=3, server=task, filter=kkt, l1=0.75)", 1, steps=7)
    assert [push.values.parts[0].tolist() for push in pushes(moved)] == [[1, 1], [3, 3], [3, 3]]
    assert moved.scored["w"].tolist() == pytest.approx([-0.1 * 7 * 0.25] * 2), "the penalty counts once a gradient"


def test_the_solution_is_the_same_however_many_gradients_a_push_holds() -> None:
    once, thrice, whole = (
        run(lasso(0.05), f"downpour(push={push}, server=task, filter=kkt, l1=0.3, slack={slack})", 1, steps=240)
        for push, slack in ((1, 0), (3, 0), (3, 0.3))
    )
    assert torch.allclose(once.scored["w"], thrice.scored["w"], atol=1e-4)
    assert torch.allclose(whole.scored["w"], thrice.scored["w"], atol=1e-4)


def test_significance_gathers_what_it_does_not_send() -> None:
    """Gradient 1 and a threshold of 2.5: 3 is sent at every third step, in one piece."""
    world = run(ramp(0.1), "downpour(server=task, filter=significance, threshold=2.5)", 1, steps=9)
    assert [push.values.parts[0].tolist() for push in pushes(world)] == [[], [], [3, 3]] * 3


def test_key_caching_changes_bytes_and_never_values() -> None:
    """Inputs that are always zero have gradients that are always zero: the list of the others is sent once."""
    chance = torch.Generator().manual_seed(6)
    x = torch.randn(64, 40, dtype=torch.float64, generator=chance)
    x[:, 10:] = 0
    task = Task(
        model=lambda: Numbers(40), data=(x, x.sum(1)), optimizer=sgd(), batch_size=4,
        step=lambda model, batch: 0.5 * (batch[0] @ model.w - batch[1]).square().mean(),
    )  # fmt: skip
    names = ("none", "key_caching")
    plain, cached = (run(task, f"downpour(filter={f})", 2, steps=9, servers=2, cluster=INSTANT) for f in names)
    assert torch.equal(plain.scored["w"], cached.scored["w"])
    first, *later = pushes(cached)
    assert first.keys.parts and not any(push.keys.parts for push in later), "then its signature only"
    assert {push.signature for push in later} == {first.signature}
    assert sum(s.size for s in cached.log.kinds(Accrued)) < 0.4 * sum(s.size for s in plain.log.kinds(Accrued))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("downpour(push=0)", "every 1 step or more"),
        ("downpour(fetch=0)", "every 1 step or more"),
        ("downpour(filter=kkt)", "go together"),
        ("downpour(l1=0.1)", "go together"),
        ("downpour(filter=kkt, l1=0.1)", "add server=task"),
        ("downpour(skip=1)", "less than 1"),
    ],
)
def test_what_cannot_work_is_refused(spec: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        catalog.resolve(spec, 2)

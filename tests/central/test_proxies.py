"""Two levels: what a proxy adds up, what it answers from its copy, how old that may be, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import covey
from covey import catalog
from covey.central.server.shard import Params, Pull, Push
from covey.errors import PlanError
from covey.message import Address
from covey.task import Task
from tests.promises.test_promises import CtrlC, assert_all_ended
from tests.worlds import (
    CLUSTER,
    INSTANT,
    Point,
    Recorder,
    World,
    cloud,
    mlp,
    paced,
    quadratic,
    run,
    server,
    sgd,
    slowed,
    worker,
)

Reads = dict[int, torch.Tensor]


def marks(samples: int, reads: Reads) -> Task:
    """A gradient is a mark in one place, so that weights tell which gradients they hold; `reads` keeps them."""

    def step(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
        (number,) = batch[0].tolist()
        place = model.get_parameter("w")
        reads[number] = place.detach() != 1
        return place[number]

    numbers = torch.arange(samples)
    model = lambda: Point(samples, torch.float64)  # noqa: E731
    return Task(model=model, data=(numbers,), optimizer=sgd(1.0), step=step, batch_size=1)


def oldest(world: World, reads: Reads, workers: int, steps: int) -> int:
    """How many steps behind its reader was the oldest gradient that a read did not hold."""
    numbers = [[int(world.deal.indices(rank, step)) for step in range(steps)] for rank in range(workers)]
    age = 0
    for rank in range(workers):
        for now in range(steps):
            held = reads[numbers[rank][now]]
            missing = [then for other in numbers for then in range(now) if not held[other[then]]]
            age = max([age, *(now - then for then in missing)])
    return age


proxied = st.tuples(st.integers(2, 5), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)).filter(
    lambda drawn: drawn[1] <= drawn[0]
)


@settings(max_examples=20, deadline=None)
@given(
    shape=proxied, slow=st.lists(st.floats(0.2, 8.0), min_size=5, max_size=5), jitter=st.sampled_from([0.0, 0.5]),
    servers=st.integers(1, 2), seed=st.integers(0, 50),
)  # fmt: skip
def test_a_read_is_at_most_as_old_as_both_bounds(
    shape: tuple[int, int, int, int], slow: list[float], jitter: float, servers: int, seed: int
) -> None:
    workers, groups, inner, outer = shape
    reads: Reads = {}
    spec = f"ssp(bound={inner}) over proxies(groups={groups}, bound={outer})"
    cluster = paced(slow[:workers], jitter)
    world = run(marks(8 * workers, reads), spec, workers, epochs=1, servers=servers, cluster=cluster, seed=seed)
    assert len(reads) == 8 * workers
    assert oldest(world, reads, workers, 8) <= inner + outer
    proxies, roots = (leads(world.log, role) for role in ("proxy", "server"))
    assert max(proxies) <= inner, "inside a group the workers' bound holds"
    assert max(roots) <= outer, "and between groups the proxies' own"
    assert torch.allclose(world.scored["w"], torch.full((8 * workers,), 1 - 1 / workers).double(), atol=1e-12)


def leads(log: Recorder, role: str) -> list[float]:
    return [note.value for note in log.notes if note.kind == "lead" and note.who.role == role]


@pytest.mark.parametrize(("inner", "outer"), [(0, 0), (2, 0), (0, 2), (1, 2)])
def test_both_bounds_are_used_up(inner: int, outer: int) -> None:
    """The fast worker of the fast group is held by its neighbour after `inner` steps, that one by the other group."""
    reads: Reads = {}
    spec = f"ssp(bound={inner}) over proxies(groups=2, bound={outer})"
    world = run(marks(40, reads), spec, 4, epochs=1, cluster=slowed(INSTANT, w1=5, w2=50, w3=50))
    assert oldest(world, reads, 4, 10) == inner + outer


# -- what it equals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("groups", "servers"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_bsp_behind_proxies_without_a_bound_is_bsp(groups: int, servers: int) -> None:
    """Also where some workers have a batch more than others: of 161 samples one has 33, in 5 batches of 8."""
    task = mlp(sgd(0.1, momentum=0.9), samples=161)
    cluster = slowed(w1=3, w4=0.5)
    ours = run(task, f"bsp over proxies(groups={groups})", 5, epochs=2, servers=servers, cluster=cluster)
    theirs = run(task, "bsp", 5, epochs=2, servers=servers, cluster=cluster)
    assert ours.outcome.samples == theirs.outcome.samples == 322
    assert all(torch.allclose(ours.scored[key], theirs.scored[key], atol=1e-12) for key in theirs.scored)
    assert ours.log.values("update") == theirs.log.values("update")
    assert set(ours.log.values("staleness")) == {0}


def test_clipping_and_buffers_are_those_of_bsp() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()

    task = mlp(model=model, data=cloud(96), clip_norm=0.05)
    ours, theirs = (run(task, spec, 4, steps=6, servers=2) for spec in ("bsp over proxies(groups=2)", "bsp"))
    assert all(torch.allclose(ours.scored[key], theirs.scored[key], atol=1e-10) for key in theirs.scored)


def test_with_a_bound_bsp_groups_drift_apart_and_updates_stay_whole() -> None:
    """Update t is the mean of everybody's gradient t, though a fast group has pushed its next one already."""
    world = run(quadratic(samples=400), "bsp over proxies(groups=2, bound=2)", 4, steps=10, cluster=slowed(w2=4, w3=4))
    assert len(world.log.values("update")) == 10
    assert max(world.log.values("staleness")) == 2
    assert max(leads(world.log, "server")) == 2
    assert set(leads(world.log, "proxy")) == {0}


def test_one_worker_to_a_proxy_changes_nothing_but_the_way() -> None:
    """Asynchronous, each group a single worker: every gradient is written back as it comes, and counts its share."""
    spec = "asynchronous over proxies(groups=3)"
    ours, theirs = (run(mlp(), name, 3, steps=8, cluster=paced([1, 1, 1])) for name in (spec, "asynchronous"))
    assert len(ours.log.values("update")) == len(theirs.log.values("update")) == 24
    assert ours.outcome.samples == theirs.outcome.samples


def test_codecs_travel_on_both_ways() -> None:
    task = quadratic(size=64, dtype=torch.float32)
    result = covey.fit(task, "bsp + bf16 over proxies(groups=2)", 4, engine="simulated", steps=5)
    assert result.traffic.by_role["worker->proxy"] == 4 * 5 * 64 * 2
    assert result.traffic.by_role["proxy->server"] == 2 * 5 * 64 * 2


# -- what it spares ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bsp", "ssp(bound=2)", "asynchronous"])
@pytest.mark.parametrize(("workers", "groups"), [(4, 2), (6, 2), (6, 3)])
def test_the_servers_hear_as_many_times_less_as_a_group_has_workers(name: str, workers: int, groups: int) -> None:
    """Asynchronous: while all are there; a worker that is left alone in its group is written back alone."""
    cluster = CLUSTER if name == "asynchronous" else slowed(w1=2)
    plain = covey.fit(quadratic(), name, workers, engine="simulated", steps=8, cluster=cluster)
    spec = f"{name} over proxies(groups={groups})"
    result = covey.fit(quadratic(), spec, workers, engine="simulated", steps=8, cluster=cluster)
    assert result.traffic.by_role["proxy->server"] * workers == plain.traffic.by_role["worker->server"] * groups
    assert result.traffic.by_role["server->proxy"] * workers <= plain.traffic.by_role["server->worker"] * groups
    assert result.traffic.by_role["worker->proxy"] == plain.traffic.by_role["worker->server"]
    assert "worker->server" not in result.traffic.by_role


@pytest.mark.parametrize(("bound", "most"), [(0, 16), (1, 12), (3, 6)])
def test_a_copy_serves_bound_more_steps(bound: int, most: int) -> None:
    """In lockstep a proxy pulls every bound + 1 steps (or bound, if another group's push is a moment late)."""
    log = run(quadratic(), f"ssp(bound=0) over proxies(groups=2, bound={bound})", 4, steps=16, cluster=INSTANT).log
    pulls = [sent for sent in log.kinds(Pull) if sent.sender == Address("proxy", 0)]
    assert 16 // (bound + 1) <= len(pulls) <= most
    assert len([sent for sent in log.kinds(Params) if sent.sender.role == "proxy"]) == 64


# -- what is lost: nothing --------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["asynchronous", "ssp(bound=1)"]), shape=proxied, seed=st.integers(0, 50),
    slow=st.lists(st.floats(0.2, 8.0), min_size=5, max_size=5), more=st.integers(0, 4),
)  # fmt: skip
def test_every_gradient_counts_once_when_all_have_left(
    name: str, shape: tuple[int, int, int, int], seed: int, slow: list[float], more: int
) -> None:
    """Also with shards of unequal length, and with a group of which one worker is through long before the other."""
    workers, groups, _, bound = shape
    samples, reads = 5 * workers + min(more, workers - 1), Reads()
    spec = f"{name} over proxies(groups={groups}, bound={bound})"
    world = run(marks(samples, reads), spec, workers, epochs=1, cluster=paced(slow[:workers], 0.3), seed=seed)
    assert torch.allclose(world.scored["w"], torch.full((samples,), 1 - 1 / workers).double(), atol=1e-12)
    assert world.replicas[server(0)].progress.seen == world.outcome.samples == samples
    assert sum(written_back(world.log)) == samples


def written_back(log: Recorder) -> list[int]:
    """Of how many gradients each push to the server is."""
    pushes = [event.message for event in log.kinds(Push) if event.to == server(0)]
    return [push.gradients for push in pushes if isinstance(push, Push)]


def test_a_write_back_is_of_the_whole_group() -> None:
    """Asynchronous: after three gradients of a group of three, whoever they are from; the rest goes at goodbye."""
    log = run(quadratic(samples=96), "asynchronous over proxies(groups=1)", 3, steps=5, cluster=slowed(w2=6)).log
    counts = written_back(log)
    assert counts[:3] == [3, 3, 3] and sum(counts) == 15
    pushed = [sent.sender for sent in log.kinds(Push)][:2]
    assert pushed == [worker(0), worker(1)], "nobody waits for the slow one"


def test_a_write_back_is_as_old_as_the_oldest_gradient_in_it() -> None:
    """Of two gradients at a time, now and then one of a worker that is five times as slow."""
    log = run(quadratic(samples=96), "asynchronous over proxies(groups=1)", 2, steps=12, cluster=slowed(w1=5)).log
    came = iter([push.version for push in _pushes(log, Address("proxy", 0))])
    versions = [(push.version, list(islice(came, push.gradients))) for push in _pushes(log, server(0))]
    assert [version for version, _ in versions] == [min(those) for _, those in versions]
    assert any(len(set(those)) > 1 for _, those in versions)


def _pushes(log: Recorder, to: Address) -> list[Push]:
    return [sent.message for sent in log.deliveries if isinstance(sent.message, Push) and sent.to == to]


def test_groups_of_unequal_size_write_back_as_many_gradients_as_they_have_workers() -> None:
    log = run(quadratic(samples=160), "asynchronous over proxies(groups=2)", 5, steps=6, cluster=CLUSTER).log
    pushes = [event for event in log.kinds(Push) if event.to == server(0)]
    counts = {rank: {e.message.gradients for e in pushes if e.sender == Address("proxy", rank)} for rank in range(2)}
    assert counts == {0: {2}, 1: {3}}


@pytest.mark.parametrize("name", ["bsp", "ssp(bound=2)", "asynchronous"])
@pytest.mark.parametrize("moment", [2, 9, 30])
def test_it_ends_cleanly_at_any_moment(name: str, moment: int) -> None:
    log, spec = Recorder(), f"{name} over proxies(groups=2, bound=1)"
    cluster = paced([1, 2, 1, 3], 0.3)
    watching = [log, CtrlC(moment)]
    result = covey.fit(
        mlp(samples=101), spec, 4, engine="simulated", epochs=50, instruments=watching, cluster=cluster
    )  # fmt: skip
    assert result.stopped == "interrupted"
    assert_all_ended(log, result)


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("quorum over proxies", "they go with bsp, ssp and asynchronous"),
        ("petuum over proxies", "cannot have proxies"),
        ("dc_asgd over proxies", "cannot have proxies"),
        ("asynchronous(epoch=0.5) over proxies", "where epochs end with all"),
        ("bsp over proxies(groups=5)", "4 workers make from 1 to 4 groups"),
        ("bsp over proxies(bound=-1)", "0 or more"),
    ],
)
def test_what_cannot_work_is_refused(spec: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        catalog.resolve(spec, 4)


def test_a_strategys_text_says_its_proxies() -> None:
    strategy = catalog.resolve("bsp over proxies(groups=2, bound=1)", 4)
    assert strategy.text == "bsp over proxies(groups=2, bound=1)"
    assert strategy.taxonomy.scheduling == "bounded", "groups may be a step apart"
    names: Sequence[str] = [str(role.address) for role in strategy.layout(4, 2) if not role.trains]
    assert names == ["proxy 0", "proxy 1", "server 0", "server 1"]

"""Epochs that end before all are through: when, for whom, and which samples that costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import covey
from covey import catalog
from covey.central.server.client import Servers
from covey.central.server.shard import Params, Push
from covey.errors import PlanError
from covey.simulate import from_flags
from covey.task import Task
from covey.vector import Vector
from tests.worlds import INSTANT, World, middle, mlp, paced, quadratic, run, server, sgd, slowed, worker


def watched(samples: int, seen: list[int], batch_size: int = 4) -> Task:
    """A task that writes down the number of each sample it sees."""

    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        seen.extend(batch[1].tolist())
        return (model.get_parameter("w") - batch[0]).square().mean()

    base = quadratic(samples=samples)
    assert isinstance(base.data, tuple)
    return replace(base, data=(*base.data, torch.arange(samples)), step=step, loss=None, batch_size=batch_size)


def steps_of(world: World, rank: int) -> list[int]:
    sent = [event.message for event in world.log.kinds(Push) if event.sender == worker(rank)]
    return [push.step for push in sent if isinstance(push, Push)]


def begins(world: World, rank: int) -> list[float]:
    return [round(begin, 6) for begin, _, who in world.log.computes if who == worker(rank)]


def test_with_four_replicas_an_epoch_ends_at_the_third_finish() -> None:
    """4 batches an epoch, of 10, 20, 30 and 50 ms: the third replica ends at 120 ms, the last is in its third batch."""
    world = run(quadratic(), "asynchronous(epoch=0.75)", 4, epochs=2, cluster=slowed(INSTANT, w1=2, w2=3, w3=5))
    assert steps_of(world, 3) == [0, 1, 2, 4, 5], "batch 3 of the first epoch is skipped, and 6 and 7 of the second"
    assert begins(world, 3) == [0, 0.05, 0.1, 0.15, 0.2]
    assert [steps_of(world, rank) for rank in range(3)] == [list(range(8))] * 3, "who is through goes on at once"
    assert world.outcome.seconds == pytest.approx(0.25)
    assert world.log.values("skipped", worker(3)) == [4, 4, 4]
    assert world.outcome.samples == 128 - 12


def test_an_epoch_is_over_when_one_of_several_servers_says_so() -> None:
    """The others will: they have heard the same pushes, or are about to."""
    store: Any = object.__new__(Servers)
    answers = [Params(0, 7, Vector(()), 0, over=over) for over in (2, 1)]

    async def receive(kind: Any, index: int, *_: Any) -> Params:
        return answers[index]

    async def ask(step: int) -> None: ...

    store.node, store.back = SimpleNamespace(step=0), SimpleNamespace(receive=receive)
    store.ask, store.place = ask, lambda index: None
    store.servers, store.versions, store.over = [server(0), server(1)], [0, 0], 1
    with pytest.raises(StopIteration):
        store.pull().send(None)
    assert store.over == 2 and store.versions == [7, 7]


def test_a_share_of_samples_ends_it_for_all() -> None:
    """Of 16 batches 8 are enough, the last of them worker 3's second; the others have just begun their third.

    Half of the replicas are through when all are, since they are equally fast: nothing would be skipped.
    """
    world = run(quadratic(), "asynchronous(epoch=0.5, unit=samples)", 4, epochs=2, cluster=INSTANT)
    first = [[step for step in steps_of(world, rank) if step < 4] for rank in range(4)]
    assert first == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1]]
    replicas = run(quadratic(), "asynchronous(epoch=0.5)", 4, epochs=2, cluster=INSTANT)
    assert replicas.outcome.samples == 128 and not replicas.log.values("skipped")


def test_a_batch_of_the_next_epoch_is_of_the_next_epoch() -> None:
    """After a skip a worker computes on the samples of the step that it is at, not on the next of its old ones."""
    task = quadratic(lr=0.1)
    world = run(task, "asynchronous(epoch=0.75)", 4, epochs=2, cluster=slowed(INSTANT, w1=2, w2=3, w3=5))
    pushes = [event.message for event in world.log.deliveries if isinstance(event.message, Push)]
    versions = [torch.ones(5).double()]
    for push in pushes:
        grad = versions[push.version] - middle(task, world.deal, push.sender.rank, push.step)
        versions.append(versions[-1] - 0.1 / 4 * grad)
    assert torch.allclose(world.scored["w"], versions[-1], atol=1e-12)


def test_a_schedule_of_the_rate_goes_once_through_the_samples_that_were_seen_or_skipped() -> None:
    """Both epochs count whole, whatever was skipped; then comes the batch in which the last one's end met worker 3."""
    speeds = slowed(INSTANT, w1=2, w2=3, w3=5)
    world = run(quadratic(), "asynchronous(epoch=0.75)", 4, epochs=2, cluster=speeds)
    assert world.replicas[server(0)].progress.seen == 2 * 64 + 4


def test_skipped_samples_differ_between_epochs_and_no_sample_is_skipped_more_than_others() -> None:
    """The slow worker skips 12 of 16 samples in each of 60 epochs; the order is drawn anew, so it hits all alike."""
    seen: list[int] = []
    world = run(watched(64, seen), "asynchronous(epoch=0.75)", 4, epochs=60, cluster=slowed(INSTANT, w3=4))
    counts = torch.tensor([60 - Counter(seen)[number] for number in range(64)]).double()
    assert counts.sum() == sum(world.log.values("skipped")) > 500
    expected = counts.mean()
    assert float(((counts - expected) ** 2 / expected).sum()) < 103.4, "chi-square, 63 degrees of freedom, 0.1 %"


def test_one_slow_worker_of_four_no_longer_makes_epochs_four_times_as_long() -> None:
    cluster = from_flags(slow=["3:4x"])
    times = {
        spec: covey.fit("examples/digits.py", spec, 4, engine="simulated", epochs=6, cluster=cluster)
        for spec in ("asynchronous", "asynchronous(epoch=0.75)", "project_adam", "quorum", "quorum(epoch=0.75)")
    }
    for name in ("asynchronous", "quorum"):
        whole, cut = times[name], times[f"{name}(epoch=0.75)"]
        assert cut.seconds < whole.seconds / 3
        assert whole.samples == 6 * 1437 and 0.75 * whole.samples < cut.samples < whole.samples
        accuracies = [result.history[-1]["accuracy"] for result in (whole, cut)]
        assert abs((accuracies[0] or 0) - (accuracies[1] or 0)) < 0.04, "what is skipped is hardly missed"
    assert times["project_adam"].seconds < times["asynchronous"].seconds / 3


shares = st.sampled_from([0.3, 0.5, 0.75, 0.9])


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(["asynchronous", "quorum", "softsync", "dc_asgd"]), share=shares,
    unit=st.sampled_from(["replicas", "samples"]), slow=st.lists(st.floats(0.2, 8.0), min_size=1, max_size=4),
    samples=st.integers(17, 40), servers=st.integers(1, 2), seed=st.integers(0, 9),
)  # fmt: skip
def test_samples_are_counted_as_they_are(
    name: str, share: float, unit: str, slow: list[float], samples: int, servers: int, seed: int
) -> None:
    """Whatever the speeds and shards: seen and skipped are all there are, and the share of each epoch is seen."""
    seen: list[int] = []
    spec, task = f"{name}(epoch={share}, unit={unit})", watched(samples, seen)
    world = run(task, spec, len(slow), epochs=3, servers=servers, seed=seed, cluster=paced(slow, 0.3))
    assert world.outcome.samples == len(seen)
    assert len(seen) + sum(world.log.values("skipped")) == 3 * samples
    done: Counter[int] = Counter()
    for rank in range(len(slow)):
        for step in steps_of(world, rank)[::servers]:
            done[step // world.deal.steps(rank)] += world.deal.batch(rank, step)
    if unit == "samples":
        assert all(done[epoch] >= share * samples for epoch in range(3))
    else:
        finished = [
            sum((epoch + 1) * world.deal.steps(rank) - 1 in steps_of(world, rank) for rank in range(len(slow)))
            for epoch in range(3)
        ]
        assert all(count >= share * len(slow) - 1e-9 for count in finished)


def test_with_all_of_it_nothing_changes() -> None:
    cluster = slowed(w1=3)
    ours, theirs = (
        run(mlp(), spec, 3, epochs=2, cluster=cluster) for spec in ("asynchronous(epoch=1)", "asynchronous")
    )
    assert ours.trace == theirs.trace


def test_a_schedule_of_the_rate_ends_where_the_epochs_end() -> None:
    """What is skipped counts as seen for it: else a rate that falls to 0 would stay above it."""
    task = mlp(sgd(), rate=lambda progress: 1 - progress)
    world = run(task, "asynchronous(epoch=0.5)", 4, epochs=4, cluster=slowed(INSTANT, w2=6, w3=6))
    assert world.log.values("skipped")
    assert world.replicas[server(0)].progress.rate == 0.0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("asynchronous(epoch=0)", "a share between 0 and 1"),
        ("quorum(epoch=1.5)", "a share between 0 and 1"),
        ("asynchronous(epoch=0.5, unit=workers)", "replicas"),
        ("bsp(epoch=0.75)", "epoch"),
    ],
)
def test_what_cannot_work_is_refused(spec: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        catalog.resolve(spec, 4)


def test_project_adam_ends_its_epochs_at_three_quarters_of_the_replicas() -> None:
    strategy = catalog.resolve("project_adam", 4)
    assert strategy.settings["epoch"] == 0.75 and "0.75 of its replicas" in strategy.description.samples
    by_samples = catalog.resolve("project_adam(epoch=0.6, unit=samples)", 4)
    assert "0.6 of its samples" in by_samples.description.samples
    assert catalog.resolve(by_samples.text, 4).text == by_samples.text

"""What tells MALT apart: slots of constant size that are overwritten, and a sender that never waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import catalog
from covey.decentral.gossip import malt
from covey.decentral.gossip.malt import Scatter, Slots
from covey.errors import PlanError
from covey.model.replica import Replica
from covey.vector import Vector
from tests.worlds import CLUSTER, INSTANT, World, paced, quadratic, run, slowed, worker


def peeked(strategy: str, steps: int = 100, slow: float = 100.0) -> tuple[World, list[list[Vector]]]:
    """A run of a slow worker 0 and a fast worker 1, and what the slow one found in its slots, step by step."""
    found: list[list[Vector]] = []
    gathered = malt.gathered

    def watched(slots: Slots) -> list[Vector]:
        unread = gathered(slots)
        if list(slots) == [1]:
            found.append(unread)
        return unread

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(malt, "gathered", watched)
        return run(quadratic(), strategy, 2, steps=steps, cluster=slowed(INSTANT, w0=slow)), found


@pytest.mark.parametrize("queue", [1, 3])
def test_of_a_sender_that_is_100_times_as_fast_only_the_newest_are_left(queue: int) -> None:
    world, found = peeked(f"malt(queue={queue})", slow=99.5)  # so that no two things happen at one moment
    sent = [event.message for event in world.log.kinds(Scatter) if event.sender == worker(1)]
    assert len(sent) == 100
    assert [len(unread) for unread in found] == [queue, 1, *[0] * 98], (
        "the others were overwritten before the first look"
    )
    newest = [message.vector.parts[0] for message in sent[99 - queue : 99] if isinstance(message, Scatter)]
    assert [vector.parts[0].tolist() for vector in found[0]] == [vector.tolist() for vector in newest]
    ends = [end for _, end, who in world.log.computes if who == worker(1)]
    assert ends[-1] == pytest.approx(1.0), "the sender never waited"


def test_the_sender_does_not_wait_for_a_slow_link() -> None:
    """A gradient takes 100 ms and a step 10: what cannot leave is replaced by what is newer."""
    world = run(quadratic(size=12500), "malt", 2, steps=30, cluster=CLUSTER)
    assert max(end for _, end, _ in world.log.computes) == pytest.approx(0.3)
    assert len(world.log.kinds(Scatter)) < 2 * 30 / 5


@pytest.mark.parametrize(("workers", "setting"), [(2, "barrier=true"), (3, "barrier=true"), (4, "bound=0")])
def test_with_a_barrier_all_to_all_is_bsp(workers: int, setting: str) -> None:
    task = quadratic(samples=4 * 4 * workers)
    ours = run(task, f"malt({setting})", workers, steps=6)
    theirs = run(task, "bsp", workers, steps=6)
    assert torch.allclose(ours.scored["w"], theirs.scored["w"], atol=1e-12)
    for replica in ours.workers():
        assert torch.allclose(replica.flat.parts[0], theirs.scored["w"], atol=1e-12)


def test_alone_it_steps_on_its_own_gradient() -> None:
    """Nothing came yet: the fold has only one's own."""
    ours = run(quadratic(), "malt", 2, steps=1, cluster=CLUSTER)
    alone = run(quadratic(), "local_sgd(period=100)", 2, steps=1, cluster=CLUSTER)
    for rank in range(2):
        assert torch.equal(ours.flat(worker(rank)), alone.flat(worker(rank)))


@pytest.mark.parametrize(("topology", "share"), [("complete", "gradient"), ("halton", "model"), ("ring", "model")])
def test_models_travel_where_news_must_be_passed_on(topology: str, share: str) -> None:
    strategy = catalog.resolve(f"malt over {topology}", 6)
    assert strategy.settings["share"] == share
    world = run(quadratic(), strategy.text, 6, steps=30)
    spread = torch.stack([world.flat(worker(rank)) for rank in range(6)]).std(0).max()
    assert spread < 0.2


def test_only_along_the_dataflow() -> None:
    log = run(quadratic(), "malt over halton", 8, steps=3).log
    assert {(sent.to.rank - sent.sender.rank) % 8 for sent in log.kinds(Scatter)} == {1, 2, 4, 6}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PlanError, match="1 slot or more"):
        catalog.resolve("malt(queue=0)", 2)
    with pytest.raises(PlanError, match="models can only be averaged"):
        catalog.resolve("malt(share=model, fold=sum)", 2)
    assert catalog.resolve("malt(barrier=true)", 2).lockstep and not catalog.resolve("malt", 2).lockstep


# -- bounded staleness ------------------------------------------------------------------------------------------------


def leads(strategy: str, workers: int = 3, steps: int = 40) -> tuple[World, list[float]]:
    """How far each fold of worker 0 was ahead of the oldest vector it had; worker 2 is 4 times as slow."""
    world = run(quadratic(samples=480), strategy, workers, steps=steps, cluster=slowed(INSTANT, w2=4))
    return world, world.log.values("lead", worker(0))


@pytest.mark.parametrize("bound", [1, 3])
def test_within_a_bound_the_lead_reaches_it_and_no_more(bound: int) -> None:
    world, lead = leads(f"malt(bound={bound})")
    assert max(lead) == bound, "asynchronous MALT leads without limit, a barrier never"
    waits = [wait for wait in world.log.waits if wait.who == worker(0) and "Scatter" in wait.what]
    assert waits and all("from worker 2" in wait.what for wait in waits), "the fast wait for the slow one only"
    free = run(quadratic(samples=480), "malt", 3, steps=40, cluster=slowed(INSTANT, w2=4))
    assert not [wait for wait in free.log.waits if "Scatter" in wait.what]


def test_within_a_bound_every_vector_is_folded_once() -> None:
    """The receiver is slow: without a bound its only slot is overwritten again and again."""
    folded: list[int] = []
    taken = malt.take

    def counted(replica: Replica, vector: Vector, others: Sequence[Vector], share: Any, fold: Any) -> None:
        folded.append(len(others))
        taken(replica, vector, others, share, fold)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(malt, "take", counted)
        run(quadratic(), "malt(bound=2)", 2, steps=30, cluster=slowed(INSTANT, w0=4.5))
        within, folded[:] = sum(folded), []
        run(quadratic(), "malt", 2, steps=30, cluster=slowed(INSTANT, w0=4.5))
    assert within >= 2 * (30 - 2) > sum(folded), "all but those that the last fold need not wait for"


@pytest.mark.parametrize("topology", ["complete", "halton"])
def test_a_bound_of_0_is_the_barrier(topology: str) -> None:
    ours = run(quadratic(), f"malt(bound=0) over {topology}", 4, steps=6, cluster=slowed(w1=3))
    theirs = run(quadratic(), f"malt(barrier=true) over {topology}", 4, steps=6, cluster=slowed(w1=3))
    assert torch.equal(ours.scored["w"], theirs.scored["w"])


@given(
    slow=st.lists(st.floats(1, 8), min_size=4, max_size=4), jitter=st.floats(0, 1), bound=st.integers(1, 4),
    samples=st.integers(20, 70), over=st.sampled_from(["complete", "ring", "halton"]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_the_bound_holds_whatever_the_speeds(
    slow: list[float], jitter: float, bound: int, samples: int, over: str
) -> None:
    """Also where shards are unequal, so that some end before the others."""
    world = run(
        quadratic(samples=samples), f"malt(bound={bound}) over {over}", 4, epochs=3, cluster=paced(slow, jitter)
    )
    assert max(world.log.values("lead")) <= bound
    arrived = {id(event.message) for event in world.log.deliveries}
    assert all(id(event.message) in arrived for event in world.log.kinds(Scatter))


def test_what_a_bound_does_not_go_with() -> None:
    for settings_ in ("bound=-1", "bound=2, barrier=true", "bound=2, queue=3"):
        with pytest.raises(PlanError, match="a bound of 0 is a barrier"):
            catalog.resolve(f"malt({settings_})", 2)
    assert catalog.resolve("malt(bound=2)", 2).taxonomy.scheduling == "bounded"
    assert catalog.resolve("malt(bound=0)", 2).taxonomy.scheduling == "synchronous"

"""BigDL's dropping of stragglers: what a share of the parts takes longer than is learned, and then not waited for."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from covey import catalog
from covey.central.sliced.dropping import Dropping, Patience
from covey.central.sliced.slice_owners import FreshSlice, GradientSlice
from covey.errors import PlanError
from tests.worlds import INSTANT, middle, paced, quadratic, run, slowed, worker

SPEC = "bigdl(drop=0.25, parts=4, warmup=2, window=3)"


def test_the_limit_is_what_all_but_a_share_keep_to() -> None:
    """Ten parts, of which a fifth is to be dropped; then no more are while so many are, and it is relaxed by 1 %."""
    dropping, patience = Dropping(0.2, 0.4, 5, warmup=1, window=2), Patience()
    step = [(10, 20, 30, 40, 50), (100, 200, 300, 400, 500)]
    assert all(dropping.enough(step, patience) for _ in range(2)) and patience.limit is None, "not yet"
    assert dropping.enough(step, patience) and patience.limit == 300, "400 and 500 are late, in both steps"
    fewer = [step[0], step[1][:3]]
    assert all(dropping.enough(fewer, patience) for _ in range(2)) and patience.limit == 303
    assert all(dropping.enough(step, patience) for _ in range(2)) and patience.limit == 300
    assert not dropping.enough([step[0], ()], patience), "half of the step is more than the most that may miss"


@pytest.mark.parametrize(
    ("most", "missing", "enough"), [(0.5, 4, True), (0.5, 5, False), (0.0, 0, True), (1.0, 8, True)]
)
def test_exactly_the_most_may_miss(most: float, missing: int, enough: bool) -> None:
    """Of two workers' eight parts."""
    dropping = Dropping(0.0, most, 4, warmup=1, window=2)
    times = [tuple(range(4)), tuple(range(4))]
    late = [times[0][: 4 - max(0, missing - 4)], times[1][: 4 - min(4, missing)]]
    assert dropping.enough(late, Patience()) == enough


def test_a_straggler_is_waited_for_until_the_limit_is_learned_and_then_for_a_part_of_its_batch() -> None:
    """Three workers of 10 ms and one of 100, in parts of 25: steps of 100 ms, and after 5 of them of 25."""
    task = quadratic(lr=0.5, dtype=torch.float32)
    world = run(task, SPEC, 4, steps=9, cluster=slowed(INSTANT, w3=10))
    ends = [note.at for note in world.log.notes if note.kind == "update"]
    assert ends == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.525, 0.55, 0.575, 0.6])
    sent = [e.message.samples for e in world.log.kinds(GradientSlice) if (e.sender, e.to) == (worker(3), worker(0))]
    assert sent == [4] * 5 + [0] * 4
    assert world.log.values("dropped") == [4] * 4
    by_hand = torch.ones(5)
    for step in range(9):
        counted = range(4 if step < 5 else 3)
        by_hand -= 0.5 * (by_hand - torch.stack([middle(task, world.deal, rank, step) for rank in counted]).mean(0))
    assert torch.allclose(world.scored["w"], by_hand, atol=0.03), "the wire has 8 bits after the point"
    unasked = run(task, "bigdl", 4, steps=9, cluster=slowed(INSTANT, w3=10)).log
    assert unasked.values("dropped") == []


@pytest.mark.parametrize("seed", [1, 2])
def test_an_update_of_too_few_parts_is_left_out_on_all_owners(seed: int) -> None:
    spec = "bigdl(drop=0.1, most=0.1, parts=3, warmup=1, window=2)"
    log = run(quadratic(), spec, 3, steps=15, seed=seed, cluster=paced([1, 1, 2], 0.5)).log
    ready = Counter(dict.fromkeys(range(15), 0))
    for event in log.kinds(GradientSlice):
        if event.to.rank == (event.sender.rank + 1) % 3:
            ready[event.message.step] += len(event.message.times)
    void = {step for step in range(15) if ready[step] < 0.9 * 9}
    assert void and log.values("dropped").count(9) == len(void) and len(log.values("update")) == 15 - len(void)
    fresh = {(e.sender.rank, e.message.step): e.message.params.parts[0] for e in log.kinds(FreshSlice)}
    for rank in range(3):
        same = {step for step in range(1, 15) if torch.equal(fresh[rank, step], fresh[rank, step - 1])}
        assert void <= same


def test_what_cannot_be_is_refused() -> None:
    for given in ("drop=1", "drop=0.2, most=0.1", "drop=0.1, parts=0", "drop=0.1, window=0"):
        with pytest.raises(PlanError, match="bigdl"):
            run(quadratic(), f"bigdl({given})", 2, steps=1)


@pytest.mark.parametrize(("given", "most"), [("drop=0.1", 0.2), ("drop=0.6", 1.0), ("drop=0.1, most=0.4", 0.4)])
def test_an_update_may_miss_twice_the_usual_share_and_no_more_than_all(given: str, most: float) -> None:
    assert catalog.resolve(f"bigdl({given})", 2).settings["most"] == most

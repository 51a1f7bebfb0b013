"""Workers that take their steps together are scored after certain steps, on real processes."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import covey
from covey.catalog import STRATEGIES, resolve
from covey.errors import PeerLost
from tests.real.harness import Room, Watch, fit, interrupt

NUMBER = "parts = [p.detach().flatten() for p in model.parameters()]; return {'number': sum(map(weighed, parts))}"
WEIGHED = "weighed = lambda part: float((part * torch.arange(1, len(part) + 1)).sum())"
PACE = "time.sleep(0.01)"
EVERY = [resolve(entry.example or name, 4) for name, entry in STRATEGIES.items() if not entry.models]
IN_STEP = [strategy.text for strategy in EVERY if strategy.in_step and not strategy.terms.chooses]


def scored(room: Room, **given: Any) -> str:
    more = f"{WEIGHED}; {given.pop('more', '')}"
    before = given.pop("before_score", "pass")
    return room.task(before_score=f"{before}; {NUMBER}", options="evaluate=score", samples=96, more=more, **given)


def lines(result: covey.Result) -> list[tuple[Any, Any]]:
    return [(row["samples"], row["number"]) for row in result.history]


@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_a_score_is_of_exactly_its_step(room: Room, strategy: str) -> None:
    """One worker is slower than the other; a step of both is 8 samples."""
    slow = "CALLS[0] == 1 and TURN.append(first('one')); time.sleep(0.02 if TURN[0] else 0.002)"
    task = scored(room, before_step=slow, more="TURN = []")
    found = lines(fit(task, strategy, 2, steps=18, scores=4))
    assert [samples for samples, _ in found] == [0, 24, 48, 72, 96, 120, 144]
    for samples, number in found[2::2]:
        assert number == lines(fit(task, strategy, 2, steps=samples // 8))[-1][1], f"after {samples} samples"


def test_bsp_and_allreduce_reach_the_target_within_one_score_of_each_other() -> None:
    for seed in (0, 1):
        bsp, allreduce = (
            covey.fit("examples/digits.py", strategy, 2, until="accuracy>=0.9", scores=8, confirm=2, seed=seed)
            for strategy in ("bsp", "allreduce")
        )
        assert bsp.reached and allreduce.reached and abs(len(bsp.history) - len(allreduce.history)) <= 1
        both = zip(bsp.history, allreduce.history, strict=False)
        assert all(one["samples"] == other["samples"] for one, other in both)


@pytest.mark.full
@pytest.mark.parametrize("strategy", IN_STEP)
def test_every_strategy_in_step_comes_to_its_scores(room: Room, strategy: str) -> None:
    result = fit(scored(room, before_step="time.sleep(0.002)"), strategy, 4, steps=12, scores=3)
    assert len(result.history) == 1 + 6 and result.stopped == "budget"


def test_a_strategy_that_chooses_its_samples_is_scored_by_their_number(room: Room) -> None:
    assert len(fit(scored(room), "sandblaster", 2, steps=30, scores=1, engine="simulated").history) > 2


@pytest.mark.parametrize("phase", ["training", "scoring"])
def test_a_run_that_goes_on_is_scored_after_the_same_steps(room: Room, phase: str) -> None:
    task = scored(room, before_step=PACE, before_score="time.sleep(0.11)" if phase == "scoring" else "pass")
    kept, watch = room.path / "kept", Watch(lambda now: now.phase == phase and now.samples >= 150, interrupt)
    whole = fit(task, "bsp", 2, steps=60, scores=6)
    broken = fit(task, "bsp", 2, steps=60, scores=6, checkpoint=kept, watcher=watch)
    assert broken.stopped == "interrupted" and 2 < len(broken.history) < len(whole.history)
    resumed = fit(task, "bsp", 2, steps=60, scores=6, resume=kept)
    assert lines(resumed) == lines(whole)


@pytest.mark.parametrize("every", ["30ms", "10ms"])
def test_checkpoints_and_scores_do_not_wait_for_each_other(room: Room, every: str) -> None:
    """A worker that is sent to the step of a checkpoint may pause for a score on its way."""
    task = scored(room, before_step="time.sleep(0.003)")
    kept = fit(task, "bsp", 2, steps=100, scores=12, checkpoint=room.path / "kept", every=every)
    assert list(room.path.glob("kept/checkpoint-*"))
    assert lines(kept) == lines(fit(task, "bsp", 2, steps=100, scores=12))


def test_a_worker_that_is_lost_while_the_other_pauses_comes_back_before_the_score(room: Room) -> None:
    """It dies in its ninth step, some time after the other one has paused before the tenth."""
    dies = "CALLS[0] == 9 and first('once') and (time.sleep(0.5), os.kill(os.getpid(), 9))"
    result = fit(scored(room, before_step=dies), "bsp", 2, steps=24, scores=4, on_failure="continue")
    assert isinstance(result.membership, list) and len(result.membership) == 1
    assert lines(result) == lines(fit(scored(room), "bsp", 2, steps=24, scores=4))


def test_a_worker_that_is_stopped_while_the_other_pauses_ends_the_run(room: Room) -> None:
    stops = "CALLS[0] == 9 and first('once') and os.kill(os.getpid(), 19)"
    with pytest.raises(PeerLost, match=r"worker \d .*stopped"):
        fit(scored(room, before_step=stops), "bsp", 2, steps=24, scores=4, stall="1s")


def test_a_worker_that_is_stopped_in_a_pause_ends_the_run(room: Room) -> None:
    watch = Watch(
        lambda now: now.phase == "scoring" and now.samples > 0, lambda: room.kill("worker 1", signal.SIGSTOP)
    )
    task = scored(room, before_score="time.sleep(0.5)")
    with pytest.raises(PeerLost, match=r"worker 1 .*stopped"):
        fit(task, "allreduce", 2, steps=24, scores=4, stall="1s", watcher=watch)

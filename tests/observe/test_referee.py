"""The referee: when to score, and when it is enough."""

from __future__ import annotations

import math

import pytest

from covey.errors import PlanError
from covey.observe.referee import Referee, TargetReached
from covey.observe.scoring_steps import ScoringSteps
from covey.target import Target


def test_a_score_is_due_after_every_so_many_samples() -> None:
    referee = Referee(every=100)
    assert [referee.due(samples) for samples in (0, 99, 100, 150)] == [False, False, True, True]
    assert not referee.judge(1.0, 250, 8, {"accuracy": 0.5}, 0.7)
    assert [referee.due(samples) for samples in (250, 299, 300)] == [False, False, True]
    assert referee.history == [{"seconds": 1.0, "samples": 250, "bytes": 8, "accuracy": 0.5, "loss": 0.7}]


def test_a_resumed_run_is_scored_when_its_next_score_is_due() -> None:
    referee = Referee(every=100)
    referee.resume([{"seconds": 1.0, "samples": 250, "bytes": 8, "loss": 0.7}])
    assert [referee.due(samples) for samples in (250, 299, 300)] == [False, False, True]


def test_the_end_is_not_asked_for() -> None:
    """Whatever runs the training scores the end in any case; two scores of it would be one too many."""
    referee = Referee(every=100, total=300)
    assert [referee.due(samples) for samples in (200, 299, 300, 310)] == [True, True, False, False]


def test_a_score_after_as_many_samples_takes_the_place_of_the_one_before() -> None:
    referee = Referee(every=100)
    referee.judge(1.0, 100, 8, {"accuracy": 0.5}, 0.7)
    referee.judge(1.5, 100, 9, {"accuracy": 0.6}, math.nan)
    assert referee.history == [{"seconds": 1.5, "samples": 100, "bytes": 9, "accuracy": 0.6, "loss": 0.7}]


def test_the_target_is_reached_once() -> None:
    referee = Referee(every=1, target=Target("accuracy", 0.9))
    assert [referee.judge(n, n, 0, {"accuracy": a}, 0.0) for n, a in enumerate((math.nan, 0.8, 0.9, 1.0))] == [
        False, False, True, True,
    ]  # fmt: skip
    assert referee.reached == TargetReached("accuracy", 0.9, 2, 2)


def test_the_training_loss_can_be_a_target_unless_the_score_has_one() -> None:
    target = Target("loss", 0.1, "<=")
    assert Referee(1, target).judge(0.0, 1, 0, {}, 0.05)
    assert not Referee(1, target).judge(0.0, 1, 0, {"loss": 0.5}, 0.05)


def test_the_training_loss_is_kept_beside_a_loss_of_the_score() -> None:
    referee = Referee(every=100)
    referee.judge(1.0, 100, 8, {"loss": 0.5}, 0.7)
    referee.judge(1.5, 100, 9, {"loss": 0.4}, math.nan)
    assert referee.history == [{"seconds": 1.5, "samples": 100, "bytes": 9, "loss": 0.4, "training_loss": 0.7}]
    assert referee.metrics() == {}


def test_an_unknown_metric_is_refused_with_what_there_is() -> None:
    with pytest.raises(PlanError, match=r"bleu>=1\.0 names no metric .* There are: accuracy, f1, loss"):
        Referee(1, Target("bleu", 1.0)).judge(0.0, 1, 0, {"f1": 0.1, "accuracy": 0.1}, 0.0)
    with pytest.raises(PlanError, match="at least 1"):
        Referee(0)


def judged(referee: Referee, *scores: float) -> list[bool]:
    """One score after every second and every 100 samples."""
    begin = len(referee.history)
    return [referee.judge(n, 100 * n, 0, {"accuracy": score}, 0.0) for n, score in enumerate(scores, begin)]


def test_with_confirmation_two_scores_in_a_row_count_and_the_crossing_lies_before_the_first() -> None:
    referee = Referee(100, Target("accuracy", 0.9), confirm=2)
    assert judged(referee, 0.2, 0.8, 1.0, 0.7, 0.95, 0.95, 0.1) == [False] * 5 + [True, False]
    reached = referee.reached
    assert reached is not None and reached.samples == 380 and reached.seconds == pytest.approx(3.8)


def test_one_lucky_score_is_not_enough_and_nothing_that_is_no_number_confirms_it() -> None:
    referee = Referee(100, Target("accuracy", 0.9), confirm=2)
    assert not any(judged(referee, 0.2, 0.95, math.nan, 0.95, 0.2, 0.95))
    assert referee.reached is None


def test_initial_weights_that_meet_the_target_have_to_be_confirmed_too() -> None:
    referee = Referee(100, Target("accuracy", 0.9), confirm=2)
    assert judged(referee, 0.95, 0.95) == [False, True]
    assert referee.reached == TargetReached("accuracy", 0.9, 0, 0)


def test_two_scores_of_the_same_samples_are_one() -> None:
    """The end of a run replaces the score before it, and does not confirm it."""
    referee = Referee(100, Target("accuracy", 0.9), confirm=2)
    assert judged(referee, 0.2, 0.95) == [False, False]
    assert not referee.judge(1.5, 100, 0, {"accuracy": 0.96}, 0.0)


def test_a_kept_score_is_confirmed_by_the_next_run() -> None:
    before = Referee(100, Target("accuracy", 0.9), confirm=2)
    assert judged(before, 0.2, 0.8, 1.0) == [False] * 3
    after = Referee(100, Target("accuracy", 0.9), confirm=2)
    after.resume([dict(row) for row in before.history])
    assert judged(after, 1.0) == [True]
    assert after.reached is not None and after.reached.samples == 150


def test_where_steps_count_samples_do_not() -> None:
    referee = Referee(100, steps=ScoringSteps(each_pass=4, samples=400, scores=2, total=8))
    assert not referee.due(10**6)
    assert referee.next_step == 2
    referee.passed(2)
    assert referee.next_step == 4
    referee.resume([{"seconds": 1.0, "samples": 400, "bytes": 8, "loss": 0.7}])
    assert referee.next_step == 6
    referee.passed(6)
    assert referee.next_step is None


def test_an_attempt_that_begins_again_tells_its_scores_once() -> None:
    told: list[int | float | None] = []
    lost = Referee(100)
    lost.told = lambda row, measured: told.append(row["samples"])
    judged(lost, 0.1, 0.2, 0.3)
    again = Referee(100)
    again.told, again.known = lost.told, lost.furthest
    again.resume(lost.history[:2])
    judged(again, 0.3, 0.4)
    assert told == [0, 100, 200, 300] and [row["samples"] for row in again.history] == told
    again.judge(3.5, 300, 0, {"accuracy": 0.5}, 0.0)
    assert told[-2:] == [300, 300], "the score of the end replaces the one before it"

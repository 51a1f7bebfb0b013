"""The referee: when to score, and when it is enough."""

from __future__ import annotations

import math

import pytest

from covey.errors import PlanError
from covey.observe.referee import Referee, TargetReached
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


def test_an_unknown_metric_is_refused_with_what_there_is() -> None:
    with pytest.raises(PlanError, match=r"bleu>=1\.0 names no metric .* There are: accuracy, f1, loss"):
        Referee(1, Target("bleu", 1.0)).judge(0.0, 1, 0, {"f1": 0.1, "accuracy": 0.1}, 0.0)
    with pytest.raises(PlanError, match="at least 1"):
        Referee(0)

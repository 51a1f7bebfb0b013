"""Targets: what a person types after --until."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import covey
from covey.errors import PlanError
from covey.scoring import target_of
from covey.target import Better, Target, parse_target
from tests.worlds import mlp


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("accuracy>=0.9", Target("accuracy", 0.9, ">=")),
        (" accuracy >= 0.9 ", Target("accuracy", 0.9, ">=")),
        ("accuracy:0.9", Target("accuracy", 0.9, ">=")),
        ("loss<=0.1", Target("loss", 0.1, "<=")),
        ("loss:0.1", Target("loss", 0.1, "<=")),
        ("top5/accuracy>=1e-2", Target("top5/accuracy", 0.01, ">=")),
    ],
)
def test_parse(text: str, target: Target) -> None:
    assert parse_target(text) == target


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([">=", "<="]))
def test_round_trip(value: float, op: str) -> None:
    target = parse_target(f"loss{op}{value!r}")
    assert parse_target(str(target)) == target


def test_reached() -> None:
    assert Target("accuracy", 0.9).reached(0.9)
    assert not Target("accuracy", 0.9).reached(0.89)
    assert Target("loss", 0.1, "<=").reached(0.05)
    assert not Target("loss", 0.1, "<=").reached(0.2)
    assert not Target("loss", 0.1, "<=").reached(math.nan)


def test_a_bare_metric_is_told_to_quote() -> None:
    with pytest.raises(
        PlanError, match=r"quote it, 'accuracy>=0\.9', or write accuracy:0\.9 .*remove the file '=0\.9'"
    ):
        parse_target("accuracy")


@pytest.mark.parametrize(
    "text", ["", "0.9", "accuracy>0.9", "accuracy=0.9", "accuracy>=high", "accuracy>=nan", ">=0.9"]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"accuracy>=0\.9"):
        parse_target(text)


@pytest.mark.parametrize(
    ("metric", "op"),
    [
        ("top5_accuracy", ">="), ("val/accuracy", ">="), ("valAccuracy", ">="), ("trainLoss", "<="), ("logloss", "<="),
        ("word.error", "<="), ("perplexity", None), ("bits", None), ("f1", None), ("accuracy_loss", None),
        ("lossless", None),
    ],
)  # fmt: skip
def test_a_colon_stands_for_the_direction_that_the_name_tells(metric: str, op: str | None) -> None:
    assert parse_target(f"{metric}:0.5").op == op


def test_a_colon_is_refused_where_nobody_said_which_direction_is_better() -> None:
    with pytest.raises(PlanError, match=r"'perplexity<=20' or 'perplexity>=20'.*better=\{'perplexity': 'lower'\}"):
        parse_target("perplexity:20", better={"bits": "lower"})


def test_what_the_task_declares_or_the_operator_says_decides() -> None:
    assert parse_target("perplexity:20", {"perplexity": "lower"}) == Target("perplexity", 20, "<=")
    assert parse_target("loss:20", {"loss": "higher"}) == Target("loss", 20, ">=")
    assert parse_target("perplexity<=20", {"perplexity": "higher"}).op == "<="
    assert parse_target("perplexity<=20", {}).op == "<="


@pytest.mark.parametrize(("until", "meant"), [("accuracy>=1", 1.0), ("accuracy:1.0", 1.0), ("accuracy>=0", 0.0)])
def test_the_ends_of_what_a_score_can_be_are_targets_too(until: str, meant: float) -> None:
    data = torch.eye(3), torch.arange(3)
    assert target_of(mlp(data=data, evaluate=covey.accuracy(data)), until).value == meant


@pytest.mark.parametrize(
    ("until", "better", "said"),
    [
        ("accuracy<=0.9", {}, r"higher values of accuracy are better.*'accuracy>=0\.9'.*\{'accuracy': 'lower'\}"),
        ("loss>=0.5", {}, r"lower values of loss are better.*'loss<=0\.5'.*better=\{'loss': 'higher'\}"),
        ("bleu<=30", {"bleu": "higher"}, r"higher values of bleu are better.*'bleu>=30'"),
    ],
)
def test_a_target_in_the_direction_in_which_scores_get_worse_is_refused(
    until: str, better: dict[str, Better], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        target_of(mlp(better=better), until)
    assert target_of(mlp(better={"accuracy": "lower"}), "accuracy<=0.9").op == "<="
    assert target_of(mlp(), "bleu<=30").op == "<=", "nobody has said which way it gets better"

"""When a metric crossed its target, against numbers worked out by hand."""

from __future__ import annotations

from math import inf, nan

import pytest

from covey.observe.crossing import crossing
from covey.observe.referee import Row
from covey.target import Target

HIGHER, LOWER = Target("score", 0.9, ">="), Target("score", 0.9, "<=")


def row(seconds: float, samples: int, score: float | None) -> Row:
    return {"seconds": seconds, "samples": samples, "bytes": 0, "score": score, "loss": 0.5}


@pytest.mark.parametrize(
    ("target", "before", "first", "part"),
    [
        (HIGHER, 0.8, 1.0, 0.5),
        (HIGHER, 0.5, 1.0, 0.8),
        (HIGHER, 0.7, 0.9, 1.0),
        (LOWER, 1.7, 0.7, 0.8),
        (LOWER, 1.0, 0.8, 0.5),
        (LOWER, 2.9, -5.1, 0.25),
    ],
)
def test_it_lies_on_the_line_between_two_scores(target: Target, before: float, first: float, part: float) -> None:
    found = crossing(row(2.0, 100, before), row(4.0, 300, first), target)
    assert found.seconds == pytest.approx(2.0 + 2.0 * part)
    assert abs(found.samples - (100 + 200 * part)) <= 1


def test_the_sample_that_crosses_it_counts() -> None:
    """A crossing right after the initial weights is not one of the initial weights."""
    assert crossing(row(0.0, 0, 0.9 - 1e-12), row(1.0, 100, 1.0), HIGHER).samples == 1


@pytest.mark.parametrize("before", [nan, inf, None])
def test_where_there_is_no_line_the_score_itself_counts(before: float | None) -> None:
    assert crossing(row(2.0, 100, before), row(4.0, 300, 0.5), LOWER) == (4.0, 300)
    assert crossing(None, row(4.0, 300, 0.5), LOWER) == (4.0, 300)
    assert crossing(row(2.0, 100, 0.5), row(4.0, 300, inf), HIGHER) == (4.0, 300)

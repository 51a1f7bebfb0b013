"""Axes that are drawn without a library: what lies on them, and where."""

from __future__ import annotations

import math
from typing import Any

import pytest

from covey.report.axes import numbers, words


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [0, 0.0, -3.0, math.inf, -math.inf, math.nan, None, "bsp", 2, 30.0])
def test_whatever_an_axis_shows_has_a_place_on_it(value: Any, log: bool) -> None:
    axis = numbers([0.0, 1.0, 100.0], log=log)
    shown = axis.shows(value)
    assert shown == (value in (2, 30.0) or (not log and value in (0, -3.0)))
    if shown:
        assert math.isfinite(axis.at(value))


def test_marks_lie_where_their_values_do() -> None:
    for axis in (numbers([3.0, 97.0]), numbers([0.02, 500.0], log=True), numbers([0.0, 0.5], zero=True, percent=True)):
        marks = axis.marks()
        assert len(marks) > 2 and all(-1e-6 <= place <= 1 + 1e-6 for place, _ in marks)
    assert [name for _, name in words(["a", "b", "a"]).marks()] == ["a", "b"]

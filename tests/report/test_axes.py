"""Charts and their axes: what lies on them, and where."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from covey.report.axes import numbers, words
from covey.report.charts import all_of
from covey.run import fit
from tests.worlds import mlp


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


def test_charts_leave_out_what_is_no_number() -> None:
    """Browsers read neither NaN nor Infinity in JSON."""
    row = {"samples": 10, "bytes": 0, "accuracy": 0.5}
    losses = [1.0, math.inf, math.nan, None, 0.5]
    history: Any = [{**row, "seconds": float(at), "loss": loss} for at, loss in enumerate(losses)]
    result = msgspec.structs.replace(fit(mlp(), "bsp", 2, engine="simulated", steps=2), history=history)
    chart = next(chart for chart in all_of([("bsp", result)], "loss") if chart.name == "by-seconds")
    assert [line["y"] for line in chart.data] == [[1.0, 0.5]] or [line["y"] for line in chart.data] == [[0.5]]
    json.dumps([chart.data for chart in all_of([("bsp", result)], "loss")], allow_nan=False)


def test_a_row_of_the_picture_of_links_is_what_one_role_sent() -> None:
    result = fit(mlp(), "bsp", 2, engine="simulated", steps=2)
    result.traffic.by_link = {"worker 0->server 0": 7, "server 0->worker 0": 5, "server 0->worker 1": 3}
    (heat,) = next(chart for chart in all_of([("bsp", result)], "loss") if chart.name == "links").data
    assert heat["x"] == heat["y"] == ["server 0", "worker 0", "worker 1"]
    assert heat["z"] == [[None, 5, 3], [7, None, None], [None, None, None]] and heat["zmax"] == 7

"""The report says what the runs say, in one file that needs no network and trusts no text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from covey.compare import Comparison, compare
from covey.compare.page import page
from covey.report import render, write
from covey.report.single_run import page_of
from covey.run import fit

CHROMIUM = shutil.which("chromium")


@cache
def whole() -> Comparison:
    return compare(
        "examples/digits.py", "bsp,ssp(bound=3),easgd,hogwild", 3, engine="simulated", until="accuracy>=0.9", repeat=1,
        command="covey compare '<b>'",
    )  # fmt: skip


def charts(html: str) -> dict[str, Any]:
    found = re.search(r"<script id='charts' type='application/json'>(.*?)</script>", html, re.DOTALL)
    assert found
    return {chart["name"]: chart for chart in json.loads(found[1])}


def test_the_charts_hold_the_histories() -> None:
    drawn = charts(render(page(whole()), interactive=True))
    assert {"by-seconds", "by-samples", "by-bytes", "spent", "staleness", "links"} <= set(drawn)
    for outcome in whole().outcomes:
        if outcome.result:
            line = next(line for line in drawn["by-samples"]["data"] if line["name"] == outcome.spec)
            assert line["x"] == [row["samples"] for row in outcome.result.history]
            assert line["y"] == [row["accuracy"] for row in outcome.result.history]
    colours = {
        (line["name"], line["line"]["color"]) for name in ("by-seconds", "by-bytes") for line in drawn[name]["data"]
    }
    assert len(colours) == 3, "the same run has the same colour everywhere"


def test_where_the_time_went_adds_up() -> None:
    bars = charts(render(page(whole()), interactive=True))["spent"]["data"]
    for parts in zip(*(bar["x"] for bar in bars), strict=True):
        assert sum(parts) == pytest.approx(1, abs=0.02)


def test_a_few_steps_of_each_run_are_drawn_as_lanes() -> None:
    html = render(page(whole()))
    pictures = re.findall(r"<svg class='lanes'.*?</svg>", html, re.DOTALL)
    assert len(pictures) == 3
    names = [dict.fromkeys(re.findall(r"id='(lanes\d)-?", picture)) for picture in pictures]
    assert names == [{"lanes0": None}, {"lanes1": None}, {"lanes2": None}], "each has patterns of its own"
    for picture in pictures:
        assert picture.count("class='work'") > 3 * 5 and "class='message'" in picture


def test_it_needs_no_network_and_escapes_what_it_is_told() -> None:
    html = render(page(whole()))
    outside = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)  # Plotly names hosts of maps that are not used
    assert not re.search(r"(src|href)\s*=|url\((?!#)|@import", outside)
    assert "covey compare &#x27;&lt;b&gt;&#x27;" in outside
    assert "SGD without momentum" in outside, "a strategy that failed has its reason in the table"


def test_without_plotly_it_is_small_and_has_the_same_charts() -> None:
    """The library alone is 4.8 MB."""
    plain, drawn = render(page(whole())), charts(render(page(whole()), interactive=True))
    assert len(plain.encode()) < 1_000_000 and "<script" not in plain
    pictures = re.findall(r"<svg class='plot'.*?</svg>", plain, re.DOTALL)
    heat = sum(len(chart["data"]) - 1 for chart in drawn.values() if chart["data"][0]["type"] == "heatmap")
    assert len(pictures) == len(drawn) + heat, "one for each chart, and one for each choice of the links"
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "NaN" not in plain and "inf" not in "".join(re.findall(r"[xy]\d?='[^']*'", plain))


def test_a_curve_goes_through_its_scores() -> None:
    """The dot of a score lies where its value does, between the first and the last mark of either axis."""
    pictures = re.findall(r"<svg class='plot'.*?</svg>", render(page(whole())), re.DOTALL)
    picture = next(svg for svg in pictures if "against samples" in svg)
    bsp = [dot for dot in re.findall(r"<circle.*?</circle>", picture) if "<title>bsp:" in dot]
    result = next(outcome.result for outcome in whole().outcomes if outcome.result)
    assert len(bsp) == len([row for row in result.history if row["samples"]]) or len(bsp) == len(result.history)
    places = [tuple(float(re.search(rf"{name}='([\d.]+)'", dot)[1]) for name in ("cx", "cy")) for dot in bsp]  # type: ignore[index]
    assert places == sorted(places), "later scores lie further to the right"
    scores = [row["accuracy"] for row in result.history][-len(bsp) :]
    assert max(places, key=lambda place: -place[1]) == places[scores.index(max(scores))], "the best is the highest"


def test_each_run_has_a_dot_and_the_verdict_is_the_title() -> None:
    told = page(whole())
    assert told.title == whole().verdict and told.title.startswith("No verdict: one run of each")
    dots = next(chart for chart in told.charts if chart.name == "runs")
    assert sum(len(line["x"]) for line in dots.data) == 3


def test_a_label_cannot_end_the_script_that_it_stands_in() -> None:
    told, label = page(whole()), "</script><b>"
    drawn = charts(render(replace(told, runs=[replace(told.runs[0], label=label)]), interactive=True))
    assert [line["name"] for line in drawn["by-samples"]["data"]] == [label]


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write(page(whole()), file, interactive=True)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("main-svg") >= 6, "every chart has its picture"
    assert "js-plotly-plot" in done.stdout


def test_who_was_there_when_is_drawn() -> None:
    plan = "leave worker 1@30ms; join worker 1@60ms"
    result = fit("examples/digits.py", "bsp", "1:3", engine="simulated", steps=9, faults=plan, runs=False)
    (line,) = charts(render(page_of(result), interactive=True))["members"]["data"]
    assert line["y"] == [3, 3, 2, 2, 3, 3]
    assert line["x"] == [0.0, 0.03, 0.03, 0.06, 0.06, result.seconds]
    assert "Workers that were there" in render(page_of(result))
    assert "Workers that were there" not in render(page(whole()))

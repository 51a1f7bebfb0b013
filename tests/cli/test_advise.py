"""covey advise and covey scale, as they are typed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.advise.trials import layouts
from covey.cli import app
from covey.errors import RoleFailed

DIGITS = "examples/digits.py"


def test_quick_advice(tmp_path: Path) -> None:
    file = tmp_path / "advice.json"
    asked = ["advise", DIGITS, "--workers", "4", "--bandwidth", "100mbit", "--compute", "10ms", "--quick", "--json"]
    shown = CliRunner().invoke(app, [*asked, str(file)])
    assert shown.exit_code == 0, shown.output
    assert "4 workers, links of 100 Mbit/s; the model has 19.2 kB" in shown.output
    assert "one worker alone" in shown.output and "a rough guess" in shown.output
    found = json.loads(file.read_text())
    assert found["schema"] == "covey.advice/1"
    assert found["choices"][0]["command"].startswith(f"covey run {DIGITS} --strategy")


def test_model_parallel_adds_the_best_three_layouts(tmp_path: Path) -> None:
    file = tmp_path / "advice.json"
    asked = ["advise", DIGITS, "--workers", "2", "--bandwidth", "100mbit", "--compute", "10ms", "--quick"]
    shown = CliRunner().invoke(app, [*asked, "--model-parallel", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    found = json.loads(file.read_text())
    assert len(found["layouts"]) == 3 and all("with mesh(" in one["command"] for one in found["layouts"])
    speeds = [one["relative"] for one in found["layouts"]]
    assert speeds == sorted(speeds) and "model divided" in shown.output
    assert found["layouts"][0]["plan"] in " ".join(found["findings"])
    plain = CliRunner().invoke(app, [*asked, "--json", str(file)])
    assert plain.exit_code == 0 and json.loads(file.read_text())["layouts"] == []


def test_the_memory_of_a_worker_leaves_out_what_needs_more(tmp_path: Path) -> None:
    """Digits and Adam need 77 kB, and their activations: in 70 kB only a divided model fits."""
    file = tmp_path / "advice.json"
    asked = ["advise", DIGITS, "--workers", "2", "--bandwidth", "100mbit", "--compute", "10ms", "--quick"]
    shown = CliRunner().invoke(app, [*asked, "--memory", "70kB", "--model-parallel", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    found = json.loads(file.read_text())
    assert found["layouts"] and all(one["memory"] <= 70_000 for one in found["layouts"])
    assert "A worker has 70 kB, and with whole models it needs" in found["findings"][0]
    told = CliRunner().invoke(app, [*asked, "--memory", "30kB", "--json", str(file)])
    assert told.exit_code == 0, told.output
    tight = json.loads(file.read_text())
    (alone,) = tight["choices"]
    assert alone["workers"] == 1 and "a device has 30 kB" in alone["risks"][0]
    assert tight["findings"][0].startswith("Nothing here fits: ") and "--model-parallel" in tight["findings"][0]
    refused = CliRunner().invoke(app, [*asked, "--memory", "lots"])
    assert refused.exit_code == 2 and "lots" in refused.stderr


@pytest.mark.parametrize(("raised", "code"), [(RoleFailed("it broke"), 0), (KeyboardInterrupt(), 130)])
def test_advice_is_kept_where_layouts_cannot_be_found(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int
) -> None:
    asked: list[float] = []

    def fails(task: object, terms: layouts.LayoutTerms, told: object) -> None:
        asked.append(terms.memory)
        raise raised

    monkeypatch.setattr(layouts, "search_layouts", fails)
    given = ["advise", DIGITS, "--workers", "2", "--bandwidth", "100mbit", "--compute", "10ms", "--quick"]
    shown = CliRunner().invoke(app, [*given, "--model-parallel"])
    assert shown.exit_code == code and "covey run" in shown.output
    assert ("The model cannot be divided: it broke." in shown.output) == (code == 0)
    assert asked[0] < math.inf, "a layout must fit into a machine"


def test_this_machine_is_measured() -> None:
    shown = CliRunner().invoke(app, ["advise", DIGITS, "--quick"])
    assert shown.exit_code == 0, shown.output
    assert "processes of this machine" in shown.output and "(measured here)" in shown.output


def test_top_says_how_many_are_shown_also_where_all_would_be() -> None:
    words = ["advise", DIGITS, "--quick", "--workers", "2", "--bandwidth", "1gbit", "--verbose"]
    one, every = (len(CliRunner().invoke(app, [*words, *more]).stdout.splitlines()) for more in (["--top", "1"], []))
    assert 0 < one < every - 5


def test_delays(tmp_path: Path) -> None:
    page = tmp_path / "delays.html"
    shown = CliRunner().invoke(app, ["advise", DIGITS, "--delays", "--bandwidth", "10mbit", "--report", str(page)])
    assert shown.exit_code == 0, shown.output
    assert "recursive doubling" in shown.output and "19.2 kB at 10 Mbit/s" in shown.output
    assert "The least time of one exchange" in page.read_text()


def test_scale(tmp_path: Path) -> None:
    page = tmp_path / "scale.html"
    asked = ["scale", DIGITS, "--strategies", "gosgd,allreduce", "--workers", "1|4", "--report", str(page)]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "gosgd" in shown.output and page.exists()


@pytest.mark.parametrize(("flags", "figures"), [
    ([], ["a batch of 32 takes 10 ms (covey's usual value)", "links carry 1 Gbit/s (covey's usual value)"]),
    (["--compute", "5ms", "--latency", "1ms"], ["takes 5 ms (--compute)", "1 ms more (--latency)", "(covey's usual"]),
    (["--cluster", "examples/cluster.toml"], ["(examples/cluster.toml); links carry"]),
])  # fmt: skip
def test_scale_says_that_its_time_is_virtual_and_what_it_assumes(
    flags: list[str], figures: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "scale.json"
    words = ["scale", DIGITS, "--strategies", "allreduce", "--workers", "1|2", "--json", str(file), *flags]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "These figures are of virtual time; nothing ran on these workers." in text
    assert all(figure in text for figure in figures), text
    assert ("covey calibrate examples/digits.py" in text) == ("--cluster" not in flags)
    assumed = json.loads(file.read_text())["assumed"]
    assert assumed["time"] == "virtual" and assumed["batch"] == 32
    source = flags[1] if "--cluster" in flags else flags[0] if flags else "covey's usual value"
    assert assumed["compute_from"] == source


def test_scale_where_a_strategy_cannot_be_at_some_size() -> None:
    shown = CliRunner().invoke(app, ["scale", DIGITS, "--strategies", "butterfly", "--workers", "2|3"])
    assert shown.exit_code == 0, shown.output
    assert "butterfly on 3: butterfly pairs all workers" in " ".join(shown.output.split())


@pytest.mark.parametrize(("words", "message"), [
    (["advise", DIGITS, "--cluster", "examples/cluster.toml", "--bandwidth", "1gbit"], "omit --bandwidth"),
    (["advise", DIGITS, "--until", "accuracy"], "accuracy"),
    (["advise", DIGITS, "--slow", "9:2x", "--quick"], "there is no worker 9"),
    (["advise", DIGITS, "--delays", "--report", "/"], "is a folder"),
    (["advise", DIGITS, "--race"], "--until"),
    (["advise", DIGITS, "--race", "--until", "accuracy:0.9", "--bandwidth", "1gbit"], "omit the flags that describe"),
    (["advise", DIGITS, "--engine", "lab(hosts=2)", "--compute", "1ms"], "omit the flags that describe"),
    (["advise", DIGITS, "--engine", "ray"], "advice is measured on local"),
    (["advise", DIGITS, "--engine", "local", "--quick"], "--quick measures nothing"),
    (["advise", DIGITS, "--quick", "--within", "10s"], "formulas need no time"),
    (["advise", DIGITS, "--within", "0s"], "take time"),
    (["advise", DIGITS, "--workers", "1:4"], "needs one number"),
    (["advise", DIGITS, "--race", "--until", "accuracy:0.9", "--within", "0s"], "take time"),
    (["advise", DIGITS, "--delays", "--engine", "local"], "--delays are formulas"),
    (["advise", DIGITS, "--race", "--until", "perplexity:20"], "'perplexity<=20'"),
    (["advise", DIGITS, "--delays", "--spot-trace", "examples/spot.csv"], "omit it, or --spot-trace"),
    (["advise", DIGITS, "--quick", "--spot-trace", "none.csv"], "the file cannot be read: No such file"),
    (["scale", DIGITS, "--workers", "some"], "such as '1|10|100|1000'"),
    (["scale", DIGITS, "--strategies", "bps"], "bps"),
])  # fmt: skip
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2, shown.output
    assert message in shown.output and "Traceback" not in shown.output

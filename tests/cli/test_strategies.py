from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import catalog, topology
from covey.central.layouts import LAYOUTS
from covey.cli import app
from covey.exchange.codecs.bits import Int8
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.run.options import options
from covey.run.request import request
from covey.systems import SYSTEMS
from tests.promises.specs import TRAINED_AS


def test_the_list_has_every_name_and_column(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["strategies"])
    assert shown.exit_code == 0
    for word in (*catalog.names(), "optimization", "architecture", "scheduling", "exchange", "topology"):
        assert word in shown.stdout
    told = " ".join(shown.stdout.split())
    assert "what becomes of your rate with n workers" in told
    cut_off = [line for line in shown.stdout.splitlines() if line.rstrip().endswith("…")]
    assert not cut_off, "nothing is cut off at 80 columns"


def test_whether_workers_may_come_and_go_is_told_here_and_on_the_page(runner: CliRunner) -> None:
    page = " ".join(Path("docs/elastic.md").read_text().partition("## A range of workers")[2].split())
    listed = re.search(r"The strategies are (.*?), on the engines", page)
    assert listed is not None
    able = {name for name, entry in catalog.STRATEGIES.items() if entry.ranges}
    assert set(re.findall(r"`(\w+)`", listed[1])) == able
    assert "may come and go" in runner.invoke(app, ["strategies", "bsp"]).stdout
    assert "may come and go" not in runner.invoke(app, ["strategies", "tree_easgd"]).stdout


@pytest.mark.parametrize("name", catalog.names())
def test_one_is_told_in_full(runner: CliRunner, name: str, tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    shown = runner.invoke(app, ["strategies", name, "--json", str(file)])
    assert shown.exit_code == 0
    told = json.loads(file.read_text())
    entry, strategy = catalog.STRATEGIES[name], catalog.resolve(name, 4)
    text = " ".join(shown.stdout.split())
    words = strategy.description
    said = (words.scored, words.rate, words.scaling, words.samples, strategy.taxonomy.scheduling)
    for part in (entry.about, entry.paper, *said):
        assert part in text
    for setting, said_of_it in told["settings"].items():
        assert setting in text and said_of_it["allowed"] in text
    assert ("random_regular" in text) == (entry.graph is not None)
    sums = catalog.resolve(name, 4).servers.grouped is not None
    placed = [one for one in LAYOUTS if one != "proxies" or sums] if entry.placed else []
    assert told["topologies"] == (list(topology.GRAPHS) if entry.graph else placed)


def test_what_becomes_of_a_lost_worker_is_told_here_and_in_the_table_of_the_page(runner: CliRunner) -> None:
    rows = re.findall(r"^\| (`.*?`) \|.*\|.*\|$", Path("docs/elastic.md").read_text(), re.M)
    going_on = {name for row in rows for name in re.findall(r"`(\w+)", row)} & set(catalog.names())  # not graphs
    assert going_on == {name for name, entry in catalog.STRATEGIES.items() if entry.on_loss == "continue"}
    for name, told in (("bsp", "is replaced while the others go on"), ("firecaffe", "ends the run, or restarts it")):
        assert told in " ".join(runner.invoke(app, ["strategies", name]).stdout.split())


@pytest.mark.parametrize("name", catalog.names())
def test_the_example_can_be_copied(runner: CliRunner, name: str) -> None:
    lines = runner.invoke(app, ["strategies", name]).stdout.splitlines()
    words = shlex.split(lines[-1])
    assert words[:3] == ["covey", "run", f"examples/{'lasso' if catalog.STRATEGIES[name].models else 'digits'}.py"]
    spec = words[words.index("--strategy") + 1]
    assert catalog.resolve(spec, 4).name == name
    assert spec == TRAINED_AS.get(name, name), "so tests/promises train what the example shows"
    request(words[2], spec, 4, options({"until": words[-1]}))  # which would refuse an optimizer


def test_a_spec_shows_its_settings(runner: CliRunner) -> None:
    assert "bound=2 (default: 3)" in " ".join(runner.invoke(app, ["strategies", "ssp(bound=2)"]).stdout.split())
    assert "torus" in runner.invoke(app, ["strategies", "dpsgd over torus"]).stdout


def test_a_codec_is_told_in_full(runner: CliRunner) -> None:
    shown = " ".join(runner.invoke(app, ["strategies", "int8(block=64)"]).stdout.split())
    for part in (
        Int8.__doc__ or "",
        "block=64 (default: 1024) may be 0 or more",
        "rounding=random",
        "8.5 for each number",
    ):
        assert part in shown
    assert "--strategy 'bsp + int8(block=64)'" in shown and "bosen" not in shown, "which takes none"
    asked = runner.invoke(app, ["strategies", "int8", "--picture", "x.svg"])
    assert asked.exit_code == 2 and "covey strategies 'bsp + int8' --picture x.svg" in asked.stderr


@pytest.mark.parametrize("name", [*CODECS, *WRAPPERS])
def test_every_codec_and_wrapper_has_a_page(runner: CliRunner, name: str, tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    shown = runner.invoke(app, ["strategies", name, "--json", str(file)])
    assert shown.exit_code == 0, shown.stderr
    told, kind = json.loads(file.read_text()), {**CODECS, **WRAPPERS}[name]
    assert list(told["settings"]) == [field.name for field in fields(kind)]
    spec = shlex.split(shown.stdout.splitlines()[-1])[4]
    assert catalog.resolve(spec, 4).composition.codec.name == spec.removeprefix("bsp + ")


def test_an_unknown_name(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["strategies", "easdg"])
    assert shown.exit_code == 2
    assert "did you mean 'easgd'" in shown.stderr


def test_all_as_json(runner: CliRunner) -> None:
    told = json.loads(runner.invoke(app, ["strategies", "--quiet", "--json", "-"]).stdout)
    assert [one["name"] for one in told] == [*catalog.names(), *SYSTEMS]


def test_verbose_tells_all_of_all(runner: CliRunner) -> None:
    told = runner.invoke(app, ["strategies", "--verbose"]).stdout
    rows = [line for line in told.splitlines() if line.startswith("learning rate")]
    assert len(rows) == len([*catalog.names(), *SYSTEMS])
